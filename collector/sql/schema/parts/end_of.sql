-- A function from a finish reason to how the answer ended, as tokentrail/shared/finish_reasons.py says: ok, refused, error, cancelled, unknown
-- for a word that nobody knows, or '' without a reason.
(reason -> if(reason = '', '', transform(replaceAll(lower(reason), '-', '_'), $end_words, $end_kinds, 'unknown')))
