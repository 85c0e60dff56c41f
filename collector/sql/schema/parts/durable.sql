-- An insert is on the disk when it ends, and a merged part before the parts that it was made of are removed. Old parts are removed by one
-- thread: from 100 of them on, ClickHouse would start more than a hundred threads, which stay.
non_replicated_deduplication_window = 10000, fsync_after_insert = 1, min_rows_to_fsync_after_merge = 1,
         concurrent_part_removal_threshold = 1000000000
