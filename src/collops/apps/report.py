"""What a job hands back: numbers for a machine, rows for a person, and where the time of each rank went."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["Outcome", "TimeSplit", "versions"]

_PACKAGES = (
    "collops",
    "numpy",
    "scipy",
    "pylops",
    "mpi4py",
    "mpich",
    "openmpi",
    "numba",
    "cupy",
    "cupy-cuda13x",
    "nccl4py",
)


@dataclass(frozen=True)
class TimeSplit:
    """Seconds of one iteration by what they were spent on.

    Parameters
    ----------
    kinds : tuple of str
        Names of the columns.
    seconds : numpy.ndarray
        Shape ``(ranks, kinds)``.
    """

    kinds: tuple[str, ...]
    seconds: np.ndarray

    @classmethod
    def gather(cls, comm: Communicator, own: dict[str, float]) -> TimeSplit:
        """Collect what every rank measured. Collective; all ranks pass the same kinds in the same order."""
        return cls(tuple(own), comm.allgather(np.array(list(own.values()), dtype=np.float64)))

    def summary(self) -> dict[str, dict[str, float]]:
        """Return the smallest, mean and largest time over the ranks, by kind."""
        return {
            kind: {"min": float(column.min()), "mean": float(column.mean()), "max": float(column.max())}
            for kind, column in zip(self.kinds, self.seconds.T, strict=True)
        }


@dataclass(frozen=True)
class Outcome:
    """The result of a job as it is shown.

    Parameters
    ----------
    numbers : dict
        What ``--json`` prints; only what JSON can hold.
    rows : list of tuple of str
        Label and value, for the table.
    split : TimeSplit
        Where the time went.
    files : list of pathlib.Path
        What was written.
    """

    numbers: dict[str, Any]
    rows: list[tuple[str, str]]
    split: TimeSplit
    files: list[Path] = field(default_factory=list)


def versions() -> dict[str, str]:
    """Return the versions of Python and of those packages, installed here, that a result depends on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
