-- chDB removes the parts that were merged as soon as it cleans up, and a merged part was left to the operating system. It started more
-- than a hundred threads to remove a hundred old parts of a table.

ALTER TABLE requests MODIFY SETTING min_rows_to_fsync_after_merge = 1, concurrent_part_removal_threshold = 1000000000;
ALTER TABLE tokens MODIFY SETTING min_rows_to_fsync_after_merge = 1, concurrent_part_removal_threshold = 1000000000;
ALTER TABLE phases MODIFY SETTING min_rows_to_fsync_after_merge = 1, concurrent_part_removal_threshold = 1000000000;
ALTER TABLE steps MODIFY SETTING min_rows_to_fsync_after_merge = 1, concurrent_part_removal_threshold = 1000000000;
ALTER TABLE kv_events MODIFY SETTING min_rows_to_fsync_after_merge = 1, concurrent_part_removal_threshold = 1000000000;
ALTER TABLE cold_starts MODIFY SETTING min_rows_to_fsync_after_merge = 1, concurrent_part_removal_threshold = 1000000000;
ALTER TABLE open_requests MODIFY SETTING min_rows_to_fsync_after_merge = 1, concurrent_part_removal_threshold = 1000000000;
ALTER TABLE spans MODIFY SETTING min_rows_to_fsync_after_merge = 1, concurrent_part_removal_threshold = 1000000000;
ALTER TABLE payload_claims MODIFY SETTING min_rows_to_fsync_after_merge = 1, concurrent_part_removal_threshold = 1000000000;
ALTER TABLE early_claims MODIFY SETTING min_rows_to_fsync_after_merge = 1, concurrent_part_removal_threshold = 1000000000;
ALTER TABLE held_requests MODIFY SETTING min_rows_to_fsync_after_merge = 1, concurrent_part_removal_threshold = 1000000000;
ALTER TABLE held_spans MODIFY SETTING min_rows_to_fsync_after_merge = 1, concurrent_part_removal_threshold = 1000000000;
ALTER TABLE joined_segments MODIFY SETTING min_rows_to_fsync_after_merge = 1, concurrent_part_removal_threshold = 1000000000;
ALTER TABLE samples MODIFY SETTING min_rows_to_fsync_after_merge = 1, concurrent_part_removal_threshold = 1000000000;
