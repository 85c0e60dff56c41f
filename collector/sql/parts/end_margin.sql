-- How far from a moment a request's end is still taken into account.
-- 1. In open_requests, a request that ended has `seen` this long after its end: a late announcement does not reopen it.
-- 2. A request that was in flight at a past moment and has ended since is looked for among those that ended this soon after.
INTERVAL 1 HOUR
