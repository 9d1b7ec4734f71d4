"""Moving values between points of two arrays, by kernels of each engine.

The only code of this room that differs between engines. Each module has ``mover(source, target, op, dtype, width,
deterministic)`` and, but for JAX's, ``fetcher(source, target, op, dtype, width)``, which prepare a move between two
indices once and return what does it on arrays of shape ``(points, width)``. Movers of JAX's arrays, whose results are
new, are made of the functions that its module has beside.
"""

from collops.graph.packing.dispatch import packing_for
from collops.graph.packing.index import Affine, Index, Segments
from collops.graph.packing.operations import OPERATIONS, check_operation

__all__ = ["OPERATIONS", "Affine", "Index", "Segments", "check_operation", "packing_for"]
