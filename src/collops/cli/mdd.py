"""``collops mdd``: multi-dimensional deconvolution of wavefields on a line of receivers, recorded or made up."""

from __future__ import annotations

from typing import Annotated

import typer

from collops.apps.mdd.options import Options
from collops.cli import options as common
from collops.cli.job import job

__all__ = ["mdd"]

_DATA, _MADE, _METHOD = "Data", "Made data", "Method"
_FILE = "FILE.npy|STORE.zarr"


@job(Options)
def mdd(
    *,
    down: Annotated[
        str | None,
        typer.Option(
            metavar=_FILE,
            help="Downgoing field, of shape (sources, receivers, samples); else fields are made.",
            rich_help_panel=_DATA,
        ),
    ],
    up: Annotated[
        str | None,
        typer.Option(
            metavar=_FILE, help="Upgoing field, of shape (sources, receivers, samples).", rich_help_panel=_DATA
        ),
    ],
    interval: Annotated[
        float | None,
        typer.Option(help="Milliseconds between samples.", show_default="4 for made fields", rich_help_panel=_DATA),
    ],
    spacing: Annotated[
        float | None,
        typer.Option(
            help="Metres between receivers of the downgoing field.",
            show_default="15 for made fields",
            rich_help_panel=_DATA,
        ),
    ],
    sources: Annotated[int | None, typer.Option(help="Number of sources.", rich_help_panel=_MADE)],
    receivers: Annotated[int | None, typer.Option(help="Number of receivers.", rich_help_panel=_MADE)],
    samples: common.Samples,
    fmax: Annotated[
        float | None,
        typer.Option(
            help="Highest frequency, Hz.", show_default="where the downgoing field ends", rich_help_panel=_METHOD
        ),
    ],
    damp: Annotated[float, typer.Option(help="Damping relative to the operator's norm.", rich_help_panel=_METHOD)],
) -> None:
    """Deconvolve the upgoing field on a line of receivers by the downgoing one, with CGLS.

    Without files it makes the fields of a sea whose water reverberates and compares the reflections below its bed
    that it finds with the true ones. With --down and --up it deconvolves yours. Writes image.png, convergence.png
    and result.zarr.
    """
