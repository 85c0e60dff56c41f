-- The events of a held span, with the attributes that views read.
Array(Tuple(name LowCardinality(String), time DateTime64(9, 'UTC'), text Map(LowCardinality(String), String)))
