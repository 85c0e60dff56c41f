-- Requests by their keys in `causes`. Others with the same key may be among them, one in thousands.
request_key IN (SELECT toUInt32($parts.request_key) FROM requests WHERE $parts.ended_in_window AND $filter)
