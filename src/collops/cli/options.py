"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from collops.apps.options import EngineName as Engine
from collops.errors import InputError

__all__ = ["Debug", "Engine", "Json", "Quiet", "Ranks", "Transport", "check_engine"]

Ranks = Annotated[
    int | None,
    typer.Option(help="Number of processes; under mpiexec or srun, the number that these started.", show_default="1"),
]
Transport = Annotated[
    str, typer.Option(help="Transport of arrays on GPUs: auto, mpi, staged or nccl. Arrays on CPUs travel by MPI.")
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object at the end of standard output; everything else goes to stderr."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show only warnings and errors: no progress bar, table or notes.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def check_engine(name: str) -> None:
    """Raise `InputError` unless commands run on an engine."""
    if name not in ("auto", "numpy", "cupy"):
        raise InputError(f"--engine must be one of auto, numpy, cupy, not {name!r}")
