-- A function: the count, or NULL where a part is more than the whole that it belongs to. One of the two is wrong then, and nobody knows which.
((count, part, whole) -> if(part > whole, NULL, count))
