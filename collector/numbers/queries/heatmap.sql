-- Requests by time and logarithm of a latency in µs, rounded up. Row 0: no latency, or one of 0; row 1: the least latencies.
SELECT
    toUInt16(least(intDiv(toUnixTimestamp64Nano($parts.counts_at) - {start_ns:Int64}, {width_ns:Int64}), {columns:UInt16} - 1)) AS x,
    toUInt16(if($known, 1 + greatest(0, least(floor((log2($us) - {low:Float64}) / {step:Float64}), {rows:UInt16} - 1)), 0)) AS y,
    sum(weight) AS n, sumIf(weight, $bad) AS bad, sumIf(weight, status = 'error') AS failed
FROM requests
WHERE $parts.ended_in_window AND $filter
GROUP BY x, y
ORDER BY x, y
