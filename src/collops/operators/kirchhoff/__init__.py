"""Kirchhoff demigration and migration with kernels of our own, for CPUs and GPUs."""

from __future__ import annotations

from collops.operators.kirchhoff.distributed import Kirchhoff, threads_of_rank
from collops.operators.kirchhoff.fixed_point import FixedTables
from collops.operators.kirchhoff.local import LocalKirchhoff, StreamedKirchhoff
from collops.operators.kirchhoff.weights import Bands, Weighting, Weights

__all__ = [
    "Bands",
    "FixedTables",
    "Kirchhoff",
    "LocalKirchhoff",
    "StreamedKirchhoff",
    "Weighting",
    "Weights",
    "threads_of_rank",
]
