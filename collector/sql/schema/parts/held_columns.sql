-- The columns of a span that waits for the rest of its request. An engine holds only the attributes that its views read.
claim LowCardinality(String),
trace_id FixedString(16), span_id FixedString(8), parent_span_id String,
service LowCardinality(String), instance LowCardinality(String), variant LowCardinality(String), tenant LowCardinality(String),
start DateTime64(9, 'UTC'), end DateTime64(9, 'UTC'), duration_ns UInt64,
text Map(LowCardinality(String), String), number Map(LowCardinality(String), Float64),
events $held_events,
status_code Int32, status_message String
