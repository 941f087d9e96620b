"""Rows in blocks of 16 to 128 elements, cast to e4m3 or e2m1 with a scale factor for each block."""
