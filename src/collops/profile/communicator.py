"""What the profile asks of a communicator, which lives in a room above and is only ever passed in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from collops.errors import InputError

__all__ = ["Comm", "write_on_root"]


class Comm(Protocol):
    """The part of `collops.comm.Communicator` that aggregation over ranks needs."""

    @property
    def rank(self) -> int:
        """Number of this rank."""
        ...

    def allgather_metadata(self, value: Any) -> list[Any]:
        """Return every rank's value, which must be representable in JSON."""
        ...

    def check(self, error: Exception | None) -> None:
        """Raise an error on every rank if any rank has one."""
        ...


def write_on_root(path: str | os.PathLike[str], text: Callable[[], str], comm: Comm | None) -> None:
    """Write a file on rank 0. Collective if a communicator is given.

    Raises
    ------
    InputError
        If that fails; on every rank.
    """
    error = None
    if comm is None or comm.rank == 0:
        try:
            Path(path).write_text(text(), encoding="utf-8")
        except OSError as failure:
            error = InputError(f"cannot write the profile to {os.fspath(path)}: {failure.strerror}")
    if comm is not None:
        comm.check(error)
    elif error is not None:
        raise error
