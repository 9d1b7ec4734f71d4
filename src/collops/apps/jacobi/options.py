"""The choices of ``collops jacobi``, with the defaults of NVIDIA's samples."""

from __future__ import annotations

import re
from dataclasses import dataclass

from collops.apps.options import check_choice, check_folders, check_least, check_not_negative
from collops.errors import InputError
from collops.stencil import MODELS, Problem

__all__ = ["Options"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the job can be told.

    Parameters
    ----------
    variant : str
        A key of `collops.stencil.MODELS`, or ``"auto"``: the fastest that there is for the engine.
    nx, ny, niter, nccheck : int
        Columns, rows, iterations, and from one check of the norm to the next.
    tolerance : float
        The norm at which to stop.
    dtype, engine : str
        Of the grid.
    process_grid : str, optional
        Blocks down and across, as ``2x2``; by default whole rows.
    skip_single_gpu : bool
        Whether to leave out the run on one rank, and with it the comparison of values.
    csv : bool
        Whether to print one line for a table instead of sentences.
    compare : bool
        Whether to run all variants.
    timeline : bool
        Whether to draw what each stream did.
    out : str
        Folder for pictures.
    """

    variant: str = "auto"
    nx: int = 16384
    ny: int = 16384
    niter: int = 1000
    nccheck: int = 1
    tolerance: float = 1e-8
    dtype: str = "float32"
    engine: str = "auto"
    process_grid: str | None = None
    skip_single_gpu: bool = False
    csv: bool = False
    compare: bool = False
    timeline: bool = False
    out: str = "collops-result"

    def check(self) -> None:
        """Raise if a number makes no sense or options contradict each other.

        Raises
        ------
        InputError
            Naming the option and what to do.
        """
        check_least(self, {"nx": 3, "ny": 3, "niter": 1, "nccheck": 1})
        check_not_negative(self, ["tolerance"])
        check_choice("dtype", self.dtype, ("float32", "float64"))
        check_choice("engine", self.engine, ("auto", "numpy", "cupy"))
        check_choice("variant", self.variant, ("auto", *MODELS))
        check_folders(self, ["out"])
        if self.compare and self.variant != "auto":
            raise InputError("--compare runs every variant: leave out --variant")
        if self.compare and (self.csv or self.skip_single_gpu):
            raise InputError("--compare checks all variants against one rank: leave out -csv and -skip_single_gpu")
        self.blocks()

    def blocks(self) -> tuple[int, int] | None:
        """Return the process grid."""
        if self.process_grid is None:
            return None
        found = re.fullmatch(r"([1-9]\d*)[xX]([1-9]\d*)", self.process_grid.strip())
        if found is None:
            raise InputError(f"--process-grid must be like 2x2 (blocks down and across), not {self.process_grid!r}")
        return int(found[1]), int(found[2])

    def problem(self) -> Problem:
        """Return what is to be solved."""
        return Problem(self.nx, self.ny, self.niter, self.nccheck, self.tolerance, self.dtype)
