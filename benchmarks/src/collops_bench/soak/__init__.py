"""The soak: random problems against serial answers for a given time, while memory is watched.

Each case draws a problem from a seed, which is the same on all ranks, computes it on them, and compares with the answer
of NumPy, SciPy or PyLops for the whole. A case that fails can be run alone by its number.
"""
