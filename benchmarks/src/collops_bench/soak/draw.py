"""Random sizes, layouts and arrays of a case, drawn from its seed; comparisons; and a folder for its files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from collops.array import DistributedArray, Layout, from_global
from collops.backend import Engine
from collops.comm import Communicator
from collops.errors import CollopsError

__all__ = ["Draw", "WrongAnswer", "shared_folder"]

_SPREAD = 4000.0  # tolerance in rounding units, relative to the largest element


class WrongAnswer(CollopsError):
    """The result of a distributed computation differs from the serial one."""


class Draw:
    """Random choices of a case, the same on every rank of its communicator.

    They follow from the seed of the run and the number of the case. `random` is their generator.
    """

    def __init__(self, seed: int, number: int, comm: Communicator, engine: Engine) -> None:
        self.random = np.random.default_rng([seed, number])
        self.comm = comm
        self.engine = engine

    def choice(self, *options: Any) -> Any:
        """Return one of the options."""
        return options[int(self.random.integers(len(options)))]

    def integer(self, low: int, high: int) -> int:
        """Return an integer of `low` to `high`, both included."""
        return int(self.random.integers(low, high + 1))

    def shape(self, ndim: int, most: int = 4000) -> tuple[int, ...]:
        """Return a shape of `ndim` axes and at most about `most` elements; extents may be less than the ranks."""
        longest = max(2, int(most ** (1 / ndim)))
        return tuple(self.integer(1, longest) for _ in range(ndim))

    def dtype(self, kinds: str = "fc") -> np.dtype:
        """Return a dtype of single or double precision."""
        return np.dtype(
            self.choice(*(f"{kind}{size}" for kind in kinds for size in ((4, 8) if kind != "c" else (8, 16))))
        )

    def layout(self, shape: tuple[int, ...]) -> Layout:
        """Return any layout of a shape."""
        ranks = self.comm.size
        form = self.choice("even", "uneven", "copies", "grid")
        axis = self.integer(0, len(shape) - 1)
        if form == "copies":
            return Layout.replicated(shape, ranks)
        if form == "uneven":
            return Layout.split(shape, ranks, axis, sizes=self.sizes(shape[axis]))
        if form == "grid" and len(shape) > 1:
            rows = self.choice(*(p for p in range(1, ranks + 1) if ranks % p == 0))
            return Layout.grid(shape, (rows, ranks // rows) + (1,) * (len(shape) - 2))
        return Layout.split(shape, ranks, axis)

    def sizes(self, extent: int) -> list[int]:
        """Return a random split of `extent` over the ranks; some may have nothing."""
        ends = np.sort(self.random.integers(0, extent + 1, self.comm.size - 1))
        return np.diff(np.concatenate([[0], ends, [extent]])).tolist()

    def values(self, shape: Any, dtype: Any) -> np.ndarray:
        """Return normal random numbers (small integers for integer types)."""
        dtype = np.dtype(dtype)
        if dtype.kind in "iu":
            return self.random.integers(-9, 10, shape).astype(dtype)
        values = self.random.standard_normal(shape)
        if dtype.kind == "c":
            values = values + 1j * self.random.standard_normal(shape)
        return values.astype(dtype)

    def array(self, values: np.ndarray, layout: Any) -> DistributedArray:
        """Return a distributed array of these values."""
        return from_global(values, layout, comm=self.comm, engine=self.engine)

    def local(self, values: np.ndarray) -> Any:
        """Return this rank's values in the memory of the engine."""
        return self.engine.from_host(np.ascontiguousarray(values))

    def whole(self, array: Any) -> np.ndarray:
        """Return a distributed array as one array of NumPy. Collective."""
        return self.engine.to_host(array.gather())

    def same(self, what: str, result: Any, expected: Any) -> None:
        """Raise `WrongAnswer` unless two arrays are equal to the last bit."""
        result, expected = np.asarray(result), np.asarray(expected)
        if result.shape != expected.shape or not np.array_equal(result, expected, equal_nan=True):
            raise WrongAnswer(f"{what} differs from the result of one rank ({result.shape}, {expected.shape})")

    def close(self, what: str, result: Any, expected: Any, factor: float = 1.0) -> None:
        """Raise `WrongAnswer` unless two arrays agree to rounding, relative to the largest element."""
        result, expected = np.asarray(result), np.asarray(expected)
        if result.shape != expected.shape:
            raise WrongAnswer(f"{what} has the shape {result.shape}, not {expected.shape}")
        if not result.size:
            return
        unit = max(_unit(result), _unit(expected))
        scale = max(1.0, float(np.abs(expected).max()))
        error = float(np.abs(result - expected).max()) / scale
        if not error <= factor * _SPREAD * unit:
            raise WrongAnswer(f"{what}: the error is {error:.3g}, more than {factor * _SPREAD * unit:.3g}")


def _unit(array: np.ndarray) -> float:
    return float(np.finfo(array.dtype).eps) if array.dtype.kind in "fc" else 0.0


@contextmanager
def shared_folder(comm: Communicator) -> Iterator[str]:
    """Create a folder; rank 0 removes it after all ranks have left the body. Collective."""
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
