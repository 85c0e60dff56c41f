-- The bucket of a latency in whole microseconds: the exponent and the first ten bits of the fraction of its 32-bit float.
toUInt16(bitShiftRight(reinterpretAsUInt32(toFloat32(greatest($us, 1))), 13) - 130048)
