-- The labels of a request, and those that OpenTelemetry's GenAI conventions have attributes for (genai_names.yaml), and `stream`, as long as collector/receive/labels.py
-- lets labels be. A label of the span's own goes before.
mapUpdate(
    mapApply(
        (name, value) -> (name, if(lengthUTF8(value) > 256, concat(leftUTF8(value, 239), '…', lower(left(hex(SHA256(value)), 16))), value)),
        mapFilter((_, value) -> value != '', map('stream', $stream_label, $text_labels))),
    $labels)
