-- All time after the first token, in µs.
(toUInt64(rest_cold_start_us) + rest_wait_batch_us + rest_wait_kv_us + rest_wait_tokens_us + rest_wait_priority_us + rest_busy_us + rest_own_prompt_us + rest_others_prompts_us + rest_batch_us + rest_alone_us + rest_preempted_us + rest_recompute_us + rest_kv_transfer_us + rest_drift_us + rest_stall_us + rest_gap_us + rest_unexplained_us)
