-- Steps, KV events and cold starts are assumed to last no longer: an event that overlaps a request began at most this long before.
INTERVAL 1 HOUR
