-- Evictions of the window that took a running request's blocks, per engine process.
-- no rows without: kv_events
SELECT $parts.process, countIf(reason = 'preemption') AS preemptions
FROM kv_events
WHERE $parts.started_in_window
  AND $process_filter
GROUP BY $parts.process
