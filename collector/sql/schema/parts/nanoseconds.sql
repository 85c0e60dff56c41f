-- A function from seconds to whole nanoseconds. More than 1e7 s (116 days) becomes 1e7 s, because a start plus a duration
-- must stay a date. A view uses it so: WITH $nanoseconds AS nanoseconds, nanoseconds(number['seconds']) AS ns
(seconds -> toUInt64(round(least(seconds, 1e7) * 1e9)))
