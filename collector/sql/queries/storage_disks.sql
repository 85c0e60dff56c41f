-- The disks of the store's server, or of one replica of each shard.
SELECT name, path, free_space AS free_bytes, total_space AS total_bytes
FROM $stored_disks
ORDER BY name, path
