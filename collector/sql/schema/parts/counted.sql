-- A function from a number to a count. A number that is no count reads 0.
(n -> if(n < 4294967296, n, 0))
