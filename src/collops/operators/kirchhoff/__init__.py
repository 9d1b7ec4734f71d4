"""Kirchhoff demigration and migration with kernels of our own, for CPUs and GPUs."""

from __future__ import annotations

from collops.operators.kirchhoff.distributed import Kirchhoff, threads_of_rank
from collops.operators.kirchhoff.fixed_point import FixedTables
from collops.operators.kirchhoff.local import LocalKirchhoff

__all__ = ["FixedTables", "Kirchhoff", "LocalKirchhoff", "threads_of_rank"]
