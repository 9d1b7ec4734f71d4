"""The soak test: compare random problems with serial results for a given time, and monitor memory.

Each case draws a problem from a seed, which is the same on all ranks, solves it on them, and compares with the result
of NumPy, SciPy or PyLops for the whole problem. A case that fails can be run alone by its number.
"""
