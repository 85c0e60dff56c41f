-- When the chunks of a Traceloop stream arrived, in µs after the span's start, in order. Empty: not known.
-- An SDK keeps 128 events of a span, and Python's drops the oldest, so that the first event is not the first chunk. So with 128
-- events or more there must be one for each of the `n` output tokens. A time outside of the span makes the others doubtful too.
if((length(events) < 128 OR ifNull(countEqual(arrayMap(e -> endsWith(e.name, '.content.completion.chunk'), events), true) >= n, false))
        AND arrayAll(e -> e.time_unix_nano BETWEEN toUnixTimestamp64Nano(start) AND toUnixTimestamp64Nano(end), events),
    arraySort(arrayMap(e -> intDiv(e.time_unix_nano - toUnixTimestamp64Nano(start), 1000),
        arrayFilter(e -> endsWith(e.name, '.content.completion.chunk'), events))),
    [])
