-- Requests with all columns, for a query that may read them with more than these.
SELECT *, ttft_us, tpot_us, e2e_us, queue_us, is_sampled, gap_us, first_visible_us FROM requests
