"""``collops reflectivity``: sparse reflection coefficients from stacked data, recorded or made up."""

from __future__ import annotations

from typing import Annotated

import typer

from collops.apps.reflectivity.options import Options
from collops.cli.job import job
from collops.cli.options import STACKED

__all__ = ["reflectivity"]

_METHOD = "Method"


@job(Options, STACKED)
def reflectivity(
    *,
    sparsity: Annotated[
        float,
        typer.Option(
            help="Weight of the absolute values: 0 asks for no sparsity, 1 leaves no spike.", rich_help_panel=_METHOD
        ),
    ],
    threshold: Annotated[
        str, typer.Option(help="What shrinks the spikes: soft, half or hard.", rich_help_panel=_METHOD)
    ],
) -> None:
    """Invert stacked data for sparse reflection coefficients, with FISTA.

    Without a file it makes a section over folded and faulted layers and compares what it finds with the true
    coefficients. With --volume it inverts yours. Writes image.png, convergence.png and result.zarr.
    """
