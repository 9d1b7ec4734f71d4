"""What a job hands back: numbers for a machine, rows for a person, and where the time of each rank went."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collops.apps.costs import Costs
    from collops.apps.options import JobOptions
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = [
    "Outcome",
    "TimeSplit",
    "best_relative_error",
    "common_numbers",
    "common_rows",
    "relative_error",
    "versions",
]

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


def common_numbers(
    options: JobOptions,
    comm: Communicator,
    compute: Engine,
    *,
    residuals: np.ndarray,
    error: float | None,
    adjoint_error: float | None,
    costs: Costs,
) -> dict[str, Any]:
    """Return the numbers that every job prints as JSON.

    Parameters
    ----------
    options : JobOptions
        What was asked for.
    comm : Communicator
        The ranks.
    compute : Engine
        Where the computation was.
    residuals : numpy.ndarray
        Norm of the residual before the first iteration and after each.
    error, adjoint_error : float or None
        Relative error of what was found, and of the adjoint of the data at its best scale.
    costs : Costs
        Of an iteration.
    """
    first, last = float(residuals[0]), float(residuals[-1])
    return {
        "residual_initial": first,
        "residual_final": last,
        "residual_reduction": last / first if first else 0.0,
        "relative_error": error,
        "adjoint_relative_error": adjoint_error,
        "seconds_per_iteration": costs.seconds_per_iteration,
        "seconds_split": costs.split.summary(),
        "messages_per_iteration": costs.messages_per_iteration,
        "execution": costs.execution,
        "transport": comm.transport if compute.memory == "device" else comm.host_transport,
        "engine": compute.name,
        "ranks": comm.size,
        "iterations": len(residuals) - 1,
        "checkpoint": options.checkpoint,
        "resumed_from": costs.resumed_from,
        "dtype": options.dtype,
        "versions": versions(),
    }


def common_rows(
    numbers: dict[str, Any], subject: str, adjoint: str, *, residual_of: str = "", error_of: str = ""
) -> list[tuple[str, str]]:
    """Return the rows that every job shows, from its `common_numbers`.

    Parameters
    ----------
    numbers : dict
        What JSON gets.
    subject : str
        What the error is an error of, in a word.
    adjoint : str
        What the adjoint of the data is called.
    residual_of, error_of : str
        What else than the data the residual counts, and what the error is a share of where that is not the truth.
    """
    rows = [
        ("ranks", f"{numbers['ranks']} ({numbers['engine']}, messages by {numbers['transport']})"),
        (
            f"residual{residual_of}",
            f"{numbers['residual_initial']:.4g} -> {numbers['residual_final']:.4g} in {numbers['iterations']} "
            f"iterations, {numbers['residual_reduction']:.3g} of the first",
        ),
    ]
    if numbers["relative_error"] is not None:
        text = f"{100 * numbers['relative_error']:.1f} %{error_of}"
        if numbers["adjoint_relative_error"] is not None:
            text += f" ({adjoint} at its best scale: {100 * numbers['adjoint_relative_error']:.1f} %)"
        rows.append((f"{subject} error", text))
    rows.append(("time", f"{1e3 * numbers['seconds_per_iteration']:.3g} ms an iteration ({numbers['execution']})"))
    if numbers["checkpoint"] is not None:
        begun = "at the beginning" if numbers["resumed_from"] is None else f"after iteration {numbers['resumed_from']}"
        rows.append(("checkpoint", f"{numbers['checkpoint']}; this run began {begun}"))
    rows.append(("messages", f"{numbers['messages_per_iteration']:g} an iteration"))
    return rows


def relative_error(found: np.ndarray, truth: np.ndarray | None, comm: Communicator | None = None) -> float | None:
    """Return ``||found - truth|| / ||truth||``; nothing is rescaled, so that wrong amplitudes count.

    Parameters
    ----------
    found, truth : numpy.ndarray
        Of one shape; None for a truth that is not known.
    comm : Communicator, optional
        The ranks, where each of them holds a part. Collective then.

    Returns
    -------
    float or None
        None without a truth, or with one of zeros.
    """
    if truth is None:
        return None
    error_square, truth_square = _dots(comm, (found - truth, found - truth), (truth, truth))
    return float(np.sqrt(error_square / truth_square)) if truth_square else None


def best_relative_error(found: np.ndarray, truth: np.ndarray | None, comm: Communicator | None = None) -> float | None:
    """Return the same for the multiple of `found` that is closest to the truth: an adjoint has no scale of its own."""
    if truth is None:
        return None
    product, square = _dots(comm, (found, truth), (found, found))
    return relative_error(found.astype(np.float64) * (product / square), truth, comm) if square else None


def _dots(comm: Communicator | None, *pairs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    wide = np.result_type(np.float64, *(array.dtype for pair in pairs for array in pair))
    own = np.array([np.vdot(a.astype(wide), b.astype(wide)).real for a, b in pairs])
    return own if comm is None else comm.allreduce(own)


def versions() -> dict[str, str]:
    """Return the versions of Python and of those packages, installed here, that a result depends on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
