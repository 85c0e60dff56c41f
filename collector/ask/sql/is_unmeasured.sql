-- Whether nobody knows when the first token of a row of `requests` came, though it may have one.
ttft_us = 4294967295
