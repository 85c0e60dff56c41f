-- A sender chooses how large spans are: a thousand of the largest would be 400 MiB, and take 2 GiB to answer.
SETTINGS max_result_bytes = 67108864, result_overflow_mode = 'throw'
