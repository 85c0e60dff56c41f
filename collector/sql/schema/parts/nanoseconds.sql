-- A function from seconds to whole nanoseconds. Seconds that are not known, or longer than the second argument allows, are NULL.
-- A view uses it so: WITH $nanoseconds AS nanoseconds, nanoseconds(reported('seconds'), duration_ns) AS ns
((seconds, longest_ns) -> accurateCastOrNull(if(round(seconds * 1e9) <= longest_ns, round(seconds * 1e9), nan), 'UInt64'))
