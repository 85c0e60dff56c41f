-- The latencies of `requests` in µs as numbers: 0 cannot exist, NaN is not known. The only place where queries name these narrow columns.
if(ttft_us = 4294967295, nan, toFloat64(ttft_us)), if(tpot_us = 4294967295, nan, toFloat64(tpot_us)), toFloat64(e2e_us),
    if(gap_us = 4294967295, nan, toFloat64(gap_us)), if(first_visible_us = 4294967295, nan, toFloat64(first_visible_us))
