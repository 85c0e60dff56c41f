-- The keys of the requests that ended ok in the window.
SELECT cityHash64(trace_id, span_id) FROM requests WHERE $parts.ended_in_window AND $filter AND status = 'ok'
