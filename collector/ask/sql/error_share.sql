-- One standard deviation of the parts of a row of `causes`, as a share of its E2E; NaN: not known.
toFloat32(if(error_permille = 65535, nan, error_permille / 1000))
