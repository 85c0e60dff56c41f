-- The columns of `requests` that RequestRow of collector.count.request_rows shows, and the parent by which collector.count.hops links it.
lower(hex(trace_id)) AS trace_id_hex, lower(hex(span_id)) AS span_id_hex, lower(hex(parent_span_id)) AS parent_hex, request_id, engine, service, instance, process_tenant, variant,
    vantage, operation, model, tenant, slo_class, labels, toUnixTimestamp64Nano(start) AS began_ns, toUnixTimestamp64Nano(end) AS ended_ns,
    status, error_type, finish_reason, input_tokens, output_tokens, cached_tokens, reasoning_tokens, image_input_tokens, audio_input_tokens,
    image_output_tokens, audio_output_tokens, drafted_tokens,
    accepted_tokens, perplexity, mean_entropy, preemptions, ttft_ns,
    tpot_ns, tpot_at_most_ns, e2e_ns, queue_ns, cold_start_ns, prefill_ns, decode_ns, preempted_ns, kv_transfer_ns, stalled_ns,
    first_visible_ns, wait_batch_ns, wait_tokens_ns, wait_kv_ns, wait_priority_ns, weight,
    gap_ns, gap_index
