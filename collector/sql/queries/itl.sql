-- Per token after the first, of requests that ended ok: how many tokens had each duration. collector.api.itl makes exact
-- percentiles of it. There are far fewer durations than tokens, so the answer's memory does not grow with the tokens.
SELECT duration_us, count() AS n
$parts.itl_tokens
GROUP BY duration_us
