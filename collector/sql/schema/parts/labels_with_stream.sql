-- The labels of a request, and `stream`. A label of the span's own goes before.
if($stream_label = '', $labels, mapUpdate(map('stream', $stream_label), $labels))
