-- When the oldest of the requests arrived that were announced and not lost before `start_ns`; whether they have ended is not asked.
SELECT toUnixTimestamp64Nano(minOrNull(start)) AS first_ns FROM open_requests WHERE $parts.announced
