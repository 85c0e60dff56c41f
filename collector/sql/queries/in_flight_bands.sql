-- As slo_bands.sql, for requests that have not ended. A lost request belongs to the window in which it was given up, a request in
-- flight to every window.
SELECT
    if(is_lost, arrayFirstIndex(w -> lost_at_ns >= {end_ns:Int64} - w, {windows:Array(Int64)}), 1) AS band,
    countIf(NOT is_lost) AS in_flight,
    countIf(NOT is_lost AND $bad_already) AS in_flight_violations,
    countIf(is_lost) AS lost
FROM ($parts.in_flight)
GROUP BY band
