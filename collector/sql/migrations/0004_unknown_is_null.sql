-- A count that its source does not report is NULL, not 0. tokentrail's SDK leaves out what is 0, so its rows keep their zeros. A
-- zero of another source may be a count that it did not send, so it becomes unknown. A TTFT of 0 came from a value that was
-- not a number; the TPOT that follows from it is as wrong.

ALTER TABLE requests
    MODIFY COLUMN input_tokens Nullable(UInt32),
    MODIFY COLUMN output_tokens Nullable(UInt32),
    MODIFY COLUMN cached_tokens Nullable(UInt32),
    MODIFY COLUMN reasoning_tokens Nullable(UInt32),
    MODIFY COLUMN preemptions Nullable(UInt32);
ALTER TABLE open_requests
    MODIFY COLUMN input_tokens Nullable(UInt32),
    MODIFY COLUMN output_tokens Nullable(UInt32);
ALTER TABLE requests UPDATE
    input_tokens = nullIf(input_tokens, 0),
    output_tokens = nullIf(output_tokens, 0),
    cached_tokens = nullIf(cached_tokens, 0),
    reasoning_tokens = nullIf(reasoning_tokens, 0),
    preemptions = nullIf(preemptions, 0)
WHERE engine != 'tokentrail';
ALTER TABLE requests UPDATE ttft_ns = NULL, tpot_ns = NULL WHERE ttft_ns = 0;
