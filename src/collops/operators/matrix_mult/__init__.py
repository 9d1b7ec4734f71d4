"""Products of distributed matrices: by rows of blocks, and by SUMMA on any grid of processes."""

from __future__ import annotations

from collops.operators.matrix_mult.distributed import MatrixMult, best_process_grid

__all__ = ["MatrixMult", "best_process_grid"]
