"""Operators of a time step on a tile of a host: of each medium a reference in NumPy, a form in Numba; all in JAX."""
