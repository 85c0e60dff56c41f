-- One standard deviation of the parts of a row of `causes`, as a share of its E2E; NaN: not known.
if(error_permille = 65535, nan, toFloat32(error_permille) / 1000)
