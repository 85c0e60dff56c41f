-- All time before the first token, in µs.
(toUInt64(ttft_cold_start_us) + ttft_wait_batch_us + ttft_wait_kv_us + ttft_wait_tokens_us + ttft_wait_priority_us + ttft_busy_us + ttft_own_prompt_us + ttft_others_prompts_us + ttft_batch_us + ttft_alone_us + ttft_preempted_us + ttft_recompute_us + ttft_kv_transfer_us + ttft_drift_us + ttft_stall_us + ttft_gap_us + ttft_unexplained_us)
