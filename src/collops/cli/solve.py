"""``collops solve``: a sparse linear system, from a file or on a mesh that is made up."""

from __future__ import annotations

from typing import Annotated

import typer

from collops.apps.solve.options import Options
from collops.cli.job import job

__all__ = ["solve"]

_SYSTEM, _METHOD = "System", "Method"


@job(Options)
def solve(
    *,
    matrix: Annotated[
        str | None,
        typer.Option(metavar="FILE.mtx", help="Matrix Market file; else a mesh is made.", rich_help_panel=_SYSTEM),
    ],
    rhs: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.mtx|FILE.npy",
            help="Right-hand side.",
            show_default="the matrix times ones",
            rich_help_panel=_SYSTEM,
        ),
    ],
    points: Annotated[
        int | None,
        typer.Option(help="Inner points of the made mesh.", show_default="8000", rich_help_panel=_SYSTEM),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            help="cg, cgls or lsqr.", show_default="cg for a symmetric matrix, else lsqr", rich_help_panel=_METHOD
        ),
    ],
    partition: Annotated[
        str | None,
        typer.Option(
            help="Who gets which rows of a square matrix: metis, so that few entries reach across, or rows, as they "
            "come.",
            show_default="metis where pymetis is installed",
            rich_help_panel=_METHOD,
        ),
    ],
    tol: Annotated[float, typer.Option(help="Stop at this residual, relative to the first.", rich_help_panel=_METHOD)],
) -> None:
    """Solve a sparse linear system with CG, CGLS or LSQR, its rows ordered to cut communication.

    Without a file it makes a Poisson problem on an unstructured mesh in a cube. With --matrix it solves yours.
    Writes image.png (who has which rows, and where entries are), convergence.png and result.zarr.
    """
