"""Options that several commands take, described once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from collops.apps.options import check_choice

__all__ = [
    "FIRST",
    "LAST",
    "STACKED",
    "Debug",
    "Dtype",
    "Engine",
    "Json",
    "Out",
    "Quiet",
    "Ranks",
    "Samples",
    "Transport",
    "check_engine",
]

_DATA, _MADE, _METHOD, _CHECKPOINTS = "Data", "Made data", "Method", "Checkpoints"

Ranks = Annotated[
    int | None,
    typer.Option(help="Processes to run on. Under mpiexec or srun: as many as these started.", show_default="1"),
]
Transport = Annotated[
    str, typer.Option(help="Wire for arrays on GPUs: auto, mpi, staged or nccl. Arrays on CPUs go by MPI.")
]
Json = Annotated[
    bool, typer.Option("--json", help="End standard output with one JSON object; all else goes to stderr.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar, no table, no notes; warnings and errors stay.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Out = Annotated[str, typer.Option(metavar="DIR", help="Folder for the results.")]

Iterations = Annotated[int, typer.Option(help="Iterations of the solver.")]
Dtype = Annotated[str, typer.Option(help="float32 or float64.", rich_help_panel=_METHOD)]
Engine = Annotated[
    str, typer.Option(help="numpy, cupy, or auto: cupy where every rank has a GPU.", rich_help_panel=_METHOD)
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder for checkpoints of the solver, one of them written when SIGTERM or SIGUSR1 ends the job.",
        rich_help_panel=_CHECKPOINTS,
    ),
]
Every = Annotated[
    str | None,
    typer.Option(
        metavar="N|TIME",
        help="Iterations between checkpoints, or a time such as 30s, 10m or 2h.",
        show_default="10m",
        rich_help_panel=_CHECKPOINTS,
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on from the checkpoint, if there is one.", rich_help_panel=_CHECKPOINTS),
]
Noise = Annotated[
    float | None, typer.Option(help="Noise relative to the signal (rms) of made data.", rich_help_panel=_MADE)
]
Seed = Annotated[int, typer.Option(help="Seed of the noise.", rich_help_panel=_MADE)]

Volume = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.sgy|FILE.npy|STORE.zarr",
        help="Stacked volume or section, samples along the last axis; else one is made.",
        rich_help_panel=_DATA,
    ),
]
Interval = Annotated[
    float | None,
    typer.Option(help="Milliseconds between samples.", show_default="from the file, else 4", rich_help_panel=_DATA),
]
InlineByte = Annotated[
    int | None,
    typer.Option(help="Where SEG-Y headers hold the inline.", show_default="189", rich_help_panel=_DATA),
]
CrosslineByte = Annotated[
    int | None,
    typer.Option(help="Where SEG-Y headers hold the crossline.", show_default="193", rich_help_panel=_DATA),
]
Wavelet = Annotated[
    str | None,
    typer.Option(
        metavar="ricker:HZ|FILE.npy|data",
        help="A Ricker wavelet; one from a file, with time zero at its middle sample; or one of zero phase with the "
        "spectrum of the data.",
        show_default="ricker:25 for made data, else data",
        rich_help_panel=_METHOD,
    ),
]
Strength = Annotated[
    float | None,
    typer.Option(
        help="Assumed rms of the reflection coefficients of recorded data, where the wavelet comes from no file.",
        show_default="0.05",
        rich_help_panel=_METHOD,
    ),
]
Inlines = Annotated[
    int | None, typer.Option(help="Inlines of the made volume, or traces of the section.", rich_help_panel=_MADE)
]
Crosslines = Annotated[int | None, typer.Option(help="Crosslines; 1 makes a section.", rich_help_panel=_MADE)]
Samples = Annotated[int | None, typer.Option(help="Samples of a trace.", rich_help_panel=_MADE)]


def check_engine(name: str) -> None:
    """Raise unless an engine is one that commands run on."""
    check_choice("engine", name, ("auto", "numpy", "cupy"))


FIRST: dict[str, Any] = {"ranks": Ranks, "transport": Transport, "iterations": Iterations}
"""What every job is asked first, by the name of the argument."""

LAST: dict[str, Any] = {
    "noise": Noise,
    "seed": Seed,
    "dtype": Dtype,
    "engine": Engine,
    "checkpoint": Checkpoint,
    "every": Every,
    "resume": Resume,
    "out": Out,
    "as_json": Json,
    "quiet": Quiet,
    "debug": Debug,
}
"""What every job is asked last."""

STACKED: dict[str, Any] = {
    "volume": Volume,
    "interval": Interval,
    "inline_byte": InlineByte,
    "crossline_byte": CrosslineByte,
    "inlines": Inlines,
    "crosslines": Crosslines,
    "samples": Samples,
    "wavelet": Wavelet,
    "strength": Strength,
}
"""What jobs on stacked data are asked."""
