-- TPOT of a client's call, from the time of its first chunk (`first_ns`) and its output tokens (`n`). With `reasoning` tokens it is NULL: nobody
-- tells whether they arrived, and so how many tokens came after the first chunk.
if(n > 1 AND ifNull(reasoning, 0) = 0, (duration_ns - first_ns) / (n - 1), NULL)
