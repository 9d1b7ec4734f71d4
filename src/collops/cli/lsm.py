"""``collops lsm``: least-squares migration of a seismic survey, real or made up."""

from __future__ import annotations

from typing import Annotated

import typer

from collops.apps.lsm.options import Options
from collops.cli.job import job

__all__ = ["lsm"]

_FILES, _IMAGE, _MADE, _METHOD = "Survey and velocity", "Image", "Made data", "Method"


@job(Options)
def lsm(
    *,
    survey: Annotated[
        str | None,
        typer.Option(metavar="FILE.sgy", help="SEG-Y survey to migrate; else one is made.", rich_help_panel=_FILES),
    ],
    velocity: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.npy|FILE.sgy|EXPRESSION",
            help="Velocity in m/s: 1800, or 1500+0.6z, or a file in depth. A .npy file has shape (nx, nz).",
            show_default="1500+0.6z for the synthetic survey",
            rich_help_panel=_FILES,
        ),
    ],
    inline: Annotated[
        int | None,
        typer.Option(help="Inline of a SEG-Y velocity.", show_default="the middle one", rich_help_panel=_FILES),
    ],
    nx: Annotated[int | None, typer.Option(help="Image points along the line.", rich_help_panel=_IMAGE)],
    nz: Annotated[int | None, typer.Option(help="Image points in depth.", rich_help_panel=_IMAGE)],
    dx: Annotated[float | None, typer.Option(help="Their spacing along the line, m.", rich_help_panel=_IMAGE)],
    dz: Annotated[float | None, typer.Option(help="Their spacing in depth, m.", rich_help_panel=_IMAGE)],
    x0: Annotated[float | None, typer.Option(help="Position of the first column, m.", rich_help_panel=_IMAGE)],
    shots: Annotated[int | None, typer.Option(help="Number of shots.", rich_help_panel=_MADE)],
    receivers: Annotated[int | None, typer.Option(help="Number of receivers.", rich_help_panel=_MADE)],
    samples: Annotated[int | None, typer.Option(help="Samples of a trace, 4 ms each.", rich_help_panel=_MADE)],
    write_survey: Annotated[
        str | None, typer.Option(metavar="FILE.sgy", help="Write the survey to SEG-Y.", rich_help_panel=_MADE)
    ],
    frequency: Annotated[
        float | None,
        typer.Option(
            help="Peak frequency of the Ricker wavelet, Hz.",
            show_default="from the data",
            rich_help_panel=_METHOD,
        ),
    ],
    mute: Annotated[
        float | None,
        typer.Option(
            metavar="SPEED",
            help="Zero what arrives before offset / SPEED (m/s) and one wavelet, as the direct wave does.",
            rich_help_panel=_METHOD,
        ),
    ],
    mode: Annotated[
        str | None,
        typer.Option(
            help="Travel times: eikonal, or analytic (constant velocity).",
            show_default="eikonal",
            rich_help_panel=_METHOD,
        ),
    ],
    damp: Annotated[float, typer.Option(help="Damping relative to the operator's norm.", rich_help_panel=_METHOD)],
) -> None:
    """Migrate a seismic survey by least squares, with a Kirchhoff operator and CGLS.

    Without files it makes a survey over faulted, dipping layers and shows how well they are found. With
    --survey and --velocity it migrates yours. Writes image.png, convergence.png, result.zarr, and result.html, which
    shows it in a browser.
    """
