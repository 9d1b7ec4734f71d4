"""The options of ``collops jacobi``, with the defaults of NVIDIA's samples."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import typer

from collops.apps.options import (
    METHOD,
    AtLeast,
    Dtype,
    EngineName,
    Folder,
    NotNegative,
    OneOf,
    check_must,
    option,
)
from collops.errors import InputError
from collops.stencil import MODELS, Problem

__all__ = ["Options"]

_GRID, _OUTPUT = "Grid", "Output"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of ``collops jacobi``."""

    variant: Annotated[
        str, option(f"How ranks work together: auto, {', '.join(MODELS)}.", METHOD), OneOf("auto", *MODELS)
    ] = "auto"
    nx: Annotated[int, typer.Option("--nx", "-nx", help="Columns.", rich_help_panel=_GRID), AtLeast(3)] = 16384
    ny: Annotated[int, typer.Option("--ny", "-ny", help="Rows.", rich_help_panel=_GRID), AtLeast(3)] = 16384
    process_grid: Annotated[str | None, option("Blocks down and across, as 2x2.", _GRID, show_default="whole rows")] = (
        None
    )
    niter: Annotated[
        int, typer.Option("--niter", "-niter", help="Iterations, at most.", rich_help_panel=METHOD), AtLeast(1)
    ] = 1000
    nccheck: Annotated[
        int,
        typer.Option("--nccheck", "-nccheck", help="Iterations from norm to norm.", rich_help_panel=METHOD),
        AtLeast(1),
    ] = 1
    tolerance: Annotated[float, option("Norm of the update at which to stop.", METHOD), NotNegative] = 1e-8
    dtype: Dtype = "float32"
    engine: EngineName = "auto"
    skip_single_gpu: Annotated[
        bool,
        typer.Option(
            "--skip-single-gpu",
            "-skip_single_gpu",
            help="Leave out the run on one rank, and with it the check of values.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False
    csv: Annotated[bool, typer.Option("--csv", "-csv", help="Print one line for a table.", rich_help_panel=_OUTPUT)] = (
        False
    )
    compare: Annotated[
        bool, option("Run and check all variants; print a table, draw it.", _OUTPUT, flag="--compare")
    ] = False
    timeline: Annotated[bool, option("Draw the work of each stream.", _OUTPUT, flag="--timeline")] = False
    out: Annotated[str, option("Folder for the pictures.", metavar="DIR"), Folder] = "collops-result"

    def check(self) -> None:
        """Raise if a number makes no sense or options contradict each other.

        Raises
        ------
        InputError
            Naming the option and what to do.
        """
        check_must(self)
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
