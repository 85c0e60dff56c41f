-- How many requests a span stands for: a sampler's threshold tells it (collector/otlp/thresholds.py). What cannot be one is not known.
if(mapContains(number, 'tokentrail.sampling.weight') AND number['tokentrail.sampling.weight'] BETWEEN 1 AND 1e6, number['tokentrail.sampling.weight'], 1)
