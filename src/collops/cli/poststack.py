"""``collops poststack``: acoustic impedance from stacked data, recorded or made up."""

from __future__ import annotations

from typing import Annotated

import typer

from collops.apps.poststack.options import Options
from collops.cli.job import job
from collops.cli.options import STACKED

__all__ = ["poststack"]

_METHOD = "Method"


@job(Options, STACKED)
def poststack(
    *,
    background: Annotated[
        str | None,
        typer.Option(
            metavar="smooth|NUMBER|FILE",
            help="Impedance to start from: that of the made volume without its details, a constant, or a file of the "
            "volume's shape.",
            show_default="smooth for made data, else 1: impedances are relative",
            rich_help_panel=_METHOD,
        ),
    ],
    weight: Annotated[
        float,
        typer.Option(help="Weight of the lateral Laplacian, relative to the operator's norm.", rich_help_panel=_METHOD),
    ],
    damp: Annotated[
        float,
        typer.Option(help="Damping towards the background, relative to the operator's norm.", rich_help_panel=_METHOD),
    ],
) -> None:
    """Invert stacked data for acoustic impedance, smooth from trace to trace, with CGLS.

    Without a file it makes a volume of folded and faulted layers with a channel and shows how well they are found.
    With --volume it inverts yours. Writes image.png, map.png (of a volume), convergence.png and result.zarr.
    """
