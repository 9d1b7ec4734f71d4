"""A folder for the length of a case, which all ranks of a node see."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from collops.comm import Communicator

__all__ = ["shared_folder"]


@contextmanager
def shared_folder(comm: Communicator) -> Iterator[str]:
    """Make a folder; rank 0 removes it when all have left. Collective."""
    name, error = None, None
    if comm.rank == 0:
        try:
            name = tempfile.mkdtemp(prefix="collops-soak-")
        except OSError as problem:
            error = problem
    comm.check(error)
    folder = comm.allgather_metadata(name)[0]
    try:
        yield folder
        comm.barrier()
    finally:
        if comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
