-- How far from a moment a request's end is still taken into account.
-- 1. In open_requests, a request that ended has `seen` this long after its end: a late announcement does not reopen it.
-- 2. The end of an announced request is looked for among those that began at most this long before the announced ones.
-- 3. A request that was in flight at a past moment and has ended since is looked for among those that ended this soon after.
INTERVAL 1 HOUR
