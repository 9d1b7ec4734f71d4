"""``collops poststack``: acoustic impedance from stacked data, recorded or made up."""

from __future__ import annotations

from typing import Annotated

import typer

from collops.apps.poststack.options import Options
from collops.cli import options as common
from collops.cli.job import run_job

__all__ = ["poststack"]

_METHOD = "Method"
_DEFAULT = Options()


def poststack(
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
    background: Annotated[
        str | None,
        typer.Option(
            metavar="smooth|NUMBER|FILE",
            help="Impedance to start from: that of the made volume without its details, a constant, or a file of the "
            "volume's shape.",
            show_default="smooth for made data, else 1: impedances are relative",
            rich_help_panel=_METHOD,
        ),
    ] = None,
    weight: Annotated[
        float,
        typer.Option(help="Weight of the lateral Laplacian, relative to the operator's norm.", rich_help_panel=_METHOD),
    ] = _DEFAULT.weight,
    damp: Annotated[
        float,
        typer.Option(help="Damping towards the background, relative to the operator's norm.", rich_help_panel=_METHOD),
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
    """Invert stacked data for acoustic impedance, smooth from trace to trace, with CGLS.

    Without a file it makes a volume of folded and faulted layers with a channel and shows how well they are found.
    With --volume it inverts yours. Writes image.png, map.png (of a volume), convergence.png and result.zarr.
    """
    run_job("poststack", Options, locals())
