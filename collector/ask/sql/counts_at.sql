-- When a request counts: at its end, or at its arrival if its sender's clock is so far ahead that it ended later. It would be
-- played as the present when its time comes. Ten seconds are those of the condition clock_ahead.
if(end > ingested_at + INTERVAL 10 SECOND, toDateTime64(ingested_at, 9, 'UTC'), end)
