"""``collops reflectivity``: sparse reflection coefficients from stacked data, recorded or made up."""

from __future__ import annotations

from typing import Annotated

import typer

from collops.apps.reflectivity.options import Options
from collops.cli import options as common
from collops.cli.job import run_job

__all__ = ["reflectivity"]

_METHOD = "Method"
_DEFAULT = Options()


def reflectivity(
    *,
    ranks: common.Ranks = None,
    transport: common.Transport = "auto",
    iterations: common.Iterations = _DEFAULT.iterations,
    volume: common.Volume = None,
    interval: common.Interval = None,
    inline_byte: common.InlineByte = None,
    crossline_byte: common.CrosslineByte = None,
    inlines: common.Inlines = None,
    crosslines: common.Crosslines = None,
    samples: common.Samples = None,
    noise: common.Noise = None,
    seed: common.Seed = _DEFAULT.seed,
    wavelet: common.Wavelet = None,
    strength: common.Strength = None,
    sparsity: Annotated[
        float,
        typer.Option(
            help="Weight of the absolute values: 0 asks for no sparsity, 1 leaves no spike.", rich_help_panel=_METHOD
        ),
    ] = _DEFAULT.sparsity,
    threshold: Annotated[
        str, typer.Option(help="What shrinks the spikes: soft, half or hard.", rich_help_panel=_METHOD)
    ] = _DEFAULT.threshold,
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
    """Invert stacked data for sparse reflection coefficients, with FISTA.

    Without a file it makes a section over folded and faulted layers and compares what it finds with the true
    coefficients. With --volume it inverts yours. Writes image.png, convergence.png and result.zarr.
    """
    run_job("reflectivity", Options, locals())
