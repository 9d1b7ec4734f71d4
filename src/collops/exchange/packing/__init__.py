"""Kernels that move values between points of two arrays, one module for each engine.

Only this code of the room differs between engines. Each module has ``mover(source, target, op, dtype, width,
deterministic)`` and ``fetcher(source, target, op, dtype, width)``, which prepare a move between two indices once, on
arrays of shape ``(points, width)``. A move returns its target: the array itself where its engine is mutable, else a
new one.
"""

from collops.exchange.packing.index import Affine, Index, Segments
from collops.exchange.packing.operations import OPERATIONS, check_operation, packing_for

__all__ = ["OPERATIONS", "Affine", "Index", "Segments", "check_operation", "packing_for"]
