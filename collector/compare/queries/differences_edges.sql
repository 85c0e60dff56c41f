-- Quantiles of what requests are sorted by into few and many (NaN: no value is known); and how much there is to read of the time that
-- the caller may see.
SELECT
    quantilesExactInclusive(0.25, 0.5, 0.75, 0.9, 0.99)(input_tokens) AS of_input_tokens,
    quantilesExactInclusive(0.25, 0.5, 0.75, 0.9, 0.99)($parts.answered_tokens) AS of_output_tokens,
    quantilesExactInclusive(0.25, 0.5, 0.75, 0.9)($parts.cached_share) AS of_cached_share,
    (SELECT count() FROM requests WHERE $parts.ended_in_window AND $visible) AS requests_of_all,
    (SELECT count() FROM steps WHERE $parts.started_in_window AND $own) AS steps_of_all
FROM requests
WHERE $parts.ended_in_window AND $filter
