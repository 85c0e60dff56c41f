-- Requests by their keys in `causes`, for a filter that needs more of them than `causes` has.
(end, request_key) IN (SELECT end, toUInt32($parts.request_key) FROM requests WHERE $parts.ended_in_window AND $filter)
