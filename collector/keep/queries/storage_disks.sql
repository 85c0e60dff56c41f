-- The disks of the store's server, or of every node of a cluster that answers.
SELECT host, name, path, free_space AS free_bytes, total_space AS total_bytes
FROM $stored_disks
ORDER BY host, name, path
SETTINGS skip_unavailable_shards = 1
