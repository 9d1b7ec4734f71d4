"""Options of the command line that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

from collops.apps.options import Dtype, Folder, option
from collops.apps.options import EngineName as Engine
from collops.errors import InputError

__all__ = ["Debug", "Dtype", "Engine", "Json", "Out", "Quiet", "Ranks", "Transport", "check_engine"]

Ranks = Annotated[
    int | None,
    typer.Option(help="Processes to run on. Under mpiexec or srun: as many as these started.", show_default="1"),
]
Transport = Annotated[
    str, typer.Option(help="Transport of arrays on GPUs: auto, mpi, staged or nccl. Arrays on CPUs go by MPI.")
]
Json = Annotated[
    bool, typer.Option("--json", help="End standard output with one JSON object; all else goes to stderr.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar, no table, no notes; warnings and errors stay.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Out = Annotated[str, option("Folder for the results.", metavar="DIR"), Folder]


def check_engine(name: str) -> None:
    """Raise unless an engine is one that commands run on."""
    if name not in ("auto", "numpy", "cupy"):
        raise InputError(f"--engine must be one of auto, numpy, cupy, not {name!r}")
