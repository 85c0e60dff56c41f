-- A part of a joined request.
Tuple(start DateTime64(9, 'UTC'), end DateTime64(9, 'UTC'), claim LowCardinality(String), text Map(LowCardinality(String), String),
    number Map(LowCardinality(String), Float64), events $held_events)
