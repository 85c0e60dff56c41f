-- A function from a finish reason to how the answer ended, as tokentrail/shared/finish_reasons.py says: ok, refused, error, cancelled, unknown
-- for a word that nobody knows, or '' without a reason. The spelling is that of `spelled` there.
(reason -> if(reason = '', '', transform(if(match(reason, '^[a-z_]+$$'), reason, replaceRegexpOne(replaceAll(replaceAll(lower(
    replaceRegexpAll(replaceRegexpOne(trim(reason), '^[A-Za-z]+[.](\\w)', '\\1'), '([a-z0-9])([A-Z])', '\\1_\\2')), '-', '_'), ' ', '_'),
    '^(?:finish_|stop_)?reason_(\\w)', '\\1')), $end_words, $end_kinds, 'unknown')))
