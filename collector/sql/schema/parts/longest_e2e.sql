-- A request that a span reports lasts no longer than the span, and so it does not end in the future. A clock that is set back meanwhile
-- makes the span shorter, by a second at most.
duration_ns + 1e9
