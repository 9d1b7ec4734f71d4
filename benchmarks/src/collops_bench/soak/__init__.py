"""The soak: random problems against serial answers for as long as one likes, while memory is watched.

Each case draws a problem from a seed, which is the same on all ranks, computes it on them, and compares with what
NumPy, SciPy or PyLops compute of the whole. A case that fails can be run alone by its number.
"""

from collops_bench.soak.cases import CASES
from collops_bench.soak.draw import Draw, WrongAnswer
from collops_bench.soak.run import Failure, Tally, soak

__all__ = ["CASES", "Draw", "Failure", "Tally", "WrongAnswer", "soak"]
