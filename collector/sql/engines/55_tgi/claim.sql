-- A request of text-generation-inference's router. Its times are fields of one span.
WHEN mapContains(text, 'validation_time') AND mapContains(text, 'inference_time') AND mapContains(text, 'time_per_token') THEN 'tgi.request'
