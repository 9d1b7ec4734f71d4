"""Kirchhoff demigration and migration with kernels of our own, for CPUs and GPUs."""

from __future__ import annotations

from collops.seismic.kirchhoff.distributed import Kirchhoff, threads_of_rank
from collops.seismic.kirchhoff.fixed_point import FixedTables
from collops.seismic.kirchhoff.local import LocalKirchhoff, StreamedKirchhoff
from collops.seismic.kirchhoff.weights import Bands, Weighting, Weights

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
