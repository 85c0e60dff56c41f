-- A request with several answers has several tokens of each index. A column can be added to the end of the sorting key only.

ALTER TABLE tokens
    ADD COLUMN IF NOT EXISTS choice UInt16 CODEC(T64, ZSTD) AFTER request_span_id,
    MODIFY ORDER BY (minute, trace_id, request_span_id, token_index, choice);
