-- The traces of a list of hex digits. The primary key and a filter of traces find what a subquery makes, and not what a lambda makes,
-- which is also computed again for each block of rows.
(SELECT toFixedString(unhex(arrayJoin({trace_ids:Array(String)})), 16))
