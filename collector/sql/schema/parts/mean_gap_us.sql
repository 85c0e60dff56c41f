-- The mean time between two tokens of a request of which the last one was its end, in whole µs, rounded up; 0 for fewer than two.
if(output_tokens > 1, toUInt32(least(intDiv($sum_of_rest + greatest(output_tokens, 2) - 2, greatest(output_tokens, 2) - 1), 4294967294)), 0)
