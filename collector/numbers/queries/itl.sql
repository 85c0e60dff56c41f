-- Per token after the first, of requests that ended ok: how many tokens had each duration. collector.numbers.itl makes exact
-- percentiles of it. There are far fewer durations than tokens, so the answer's memory does not grow with the tokens. Most tokens
-- match, so filtering columns early (PREWHERE) costs more than it saves, and so does a hash table in 256 parts (two levels).
SELECT duration_us, count() AS n
$parts.itl_tokens
GROUP BY duration_us
SETTINGS optimize_move_to_prewhere = 0, group_by_two_level_threshold = 0, group_by_two_level_threshold_bytes = 0
