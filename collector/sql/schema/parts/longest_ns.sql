-- 116 days. A latency that is longer is not one, and a start plus a latency must stay a date.
1e16
