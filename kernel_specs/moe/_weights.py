"""How routing weights are normalised: the one sum that every kernel of the family forms, bit for bit.

``s_j += s_(j xor m)`` for m of `HALVES`, where both exist; the denominator is ``EPSILON + s_0``.
"""

EPSILON = 1e-20
"""Keeps a row of zeros from dividing by zero."""

HALVES = (16, 8, 4, 2, 1)
"""Distances of the sum's partners, in order."""
