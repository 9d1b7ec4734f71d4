"""``collops mdd``: multi-dimensional deconvolution of wavefields on a line of receivers, recorded or made up."""

from __future__ import annotations

from typing import Annotated

import typer

from collops.apps.mdd.options import Options
from collops.cli import options as common
from collops.cli.job import run_job

__all__ = ["mdd"]

_DATA, _MADE, _METHOD = "Data", "Made data", "Method"
_FILE = "FILE.npy|STORE.zarr"
_DEFAULT = Options()


def mdd(
    *,
    ranks: common.Ranks = None,
    transport: common.Transport = "auto",
    iterations: common.Iterations = _DEFAULT.iterations,
    down: Annotated[
        str | None,
        typer.Option(
            metavar=_FILE,
            help="Downgoing field, of shape (sources, receivers, samples); else fields are made.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    up: Annotated[
        str | None,
        typer.Option(
            metavar=_FILE, help="Upgoing field, of shape (sources, receivers, samples).", rich_help_panel=_DATA
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(help="Milliseconds between samples.", show_default="4 for made fields", rich_help_panel=_DATA),
    ] = None,
    spacing: Annotated[
        float | None,
        typer.Option(
            help="Metres between receivers of the downgoing field.",
            show_default="15 for made fields",
            rich_help_panel=_DATA,
        ),
    ] = None,
    sources: Annotated[int | None, typer.Option(help="Number of sources.", rich_help_panel=_MADE)] = None,
    receivers: Annotated[int | None, typer.Option(help="Number of receivers.", rich_help_panel=_MADE)] = None,
    samples: common.Samples = None,
    noise: common.Noise = None,
    seed: common.Seed = _DEFAULT.seed,
    fmax: Annotated[
        float | None,
        typer.Option(
            help="Highest frequency, Hz.", show_default="where the downgoing field ends", rich_help_panel=_METHOD
        ),
    ] = None,
    damp: Annotated[
        float, typer.Option(help="Damping relative to the operator's norm.", rich_help_panel=_METHOD)
    ] = _DEFAULT.damp,
    dtype: common.Dtype = _DEFAULT.dtype,
    engine: common.Engine = _DEFAULT.engine,
    checkpoint: common.Checkpoint = None,
    every: common.Every = None,
    resume: common.Resume = False,
    out: common.Out = _DEFAULT.out,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
    debug: common.Debug = False,
) -> None:
    """Deconvolve the upgoing field on a line of receivers by the downgoing one, with CGLS.

    Without files it makes the fields of a sea whose water reverberates and compares the reflections below its bed
    that it finds with the true ones. With --down and --up it deconvolves yours. Writes image.png, convergence.png
    and result.zarr.
    """
    run_job("mdd", Options, locals())
