"""Restriction to some samples along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array, Layout
from collops.array.dtypes import real_of
from collops.array.layout_arguments import normal_axis
from collops.array.redistribute import agree_on_values
from collops.backend import Engine, LocalArray
from collops.comm import Communicator
from collops.errors import InputError
from collops.exchange import Box, ExchangePlan
from collops.exchange.packing.index import Index
from collops.operators.base import LinearOperator, is_complex
from collops.operators.dims import Dims, placed
from collops.operators.memory import Buffers, Coefficients, check_holds, filled, store


class Restriction(LinearOperator):
    """Restriction to samples along one axis, in any order and with repetition.

    If the samples are in the order of the blocks along the axis, as sorted indices always are, they stay on their
    ranks, and no message is sent. Otherwise, or with `rebalance`, the data are split evenly, and every application
    takes one exchange among the ranks that the axis is split over.

    Collective.

    Parameters
    ----------
    dims : Layout, int or sequence of int
        The model; a shape is split along axis 0.
    iava : sequence of int
        Indices of the samples along `axis`, the same on every rank; negative ones count from the end.
    axis : int, optional
        The axis that is restricted.
    rebalance : bool, optional
        Whether to split the data evenly even if the samples could stay on their ranks.
    comm, dtype
        As for :class:`Identity`.

    Attributes
    ----------
    repeated : bool
        Whether an index occurs more than once; adjoint then sums its samples.

    Raises
    ------
    InputError
        If an index is outside the axis, or indices are not integers.

    Examples
    --------
    >>> import collops
    >>> collops.Restriction(5, [0, 3]).range.shape
    (2,)
    """

    _has_coefficients = False

    def __init__(
        self,
        dims: Dims,
        iava: Sequence[int] | np.ndarray,
        axis: int = -1,
        *,
        rebalance: bool = False,
        comm: Communicator | None = None,
        dtype: DTypeLike = "float64",
    ) -> None:
        model, comm = placed(dims, comm)
        self.axis = axis = normal_axis(axis, model.ndim)
        indices = _checked(iava, model.shape[axis])
        agree_on_values(comm, "iava", indices)
        self.repeated = not Index(indices).unique
        ends = np.cumsum(model.sizes[axis])
        owners = np.searchsorted(ends, indices, side="right")
        blocks = len(ends)
        self._moves = blocks > 1 and (rebalance or bool(np.any(np.diff(owners) < 0)))
        sizes_by_axis: list[Sequence[int] | None] = [*model.sizes]
        sizes_by_axis[axis] = None if self._moves else np.bincount(owners, minlength=blocks).tolist()  # None: evenly
        shape = (*model.shape[:axis], len(indices), *model.shape[axis + 1 :])
        data = Layout(shape, model.ranks, model.process_grid, model.axes, sizes_by_axis, model.mask)
        super().__init__(model, data, dtype, comm)
        grid_axis = model.axes[axis]
        position = 0 if grid_axis is None else model.coordinates(comm.rank)[grid_axis]
        if not self._moves:
            self._chosen = _Selection(indices[owners == position] - model.offset(comm.rank)[axis], axis)
            return
        wanted_by = np.repeat(np.arange(blocks), data.sizes[axis])
        leaving = [indices[(owners == position) & (wanted_by == block)] for block in range(blocks)]
        sources = owners[wanted_by == position]
        # Samples leave in the order of their destinations, and arrive in the order of their sources.
        chosen = np.concatenate(leaving) - model.offset(comm.rank)[axis]
        arrival = np.argsort(sources, kind="stable")
        self._chosen = _Selection(chosen, axis)
        self._arrived = _Selection(np.argsort(arrival), axis)
        self._by_source = _Selection(arrival, axis)
        local = model.local_shape(comm.rank)
        self._leaving = (*local[:axis], len(chosen), *local[axis + 1 :])
        self._arriving = (*local[:axis], len(arrival), *local[axis + 1 :])
        peers = _along(model, axis, comm.rank)
        sends = _boxes(peers, [len(part) for part in leaving], axis, self._leaving)
        receives = _boxes(peers, np.bincount(sources, minlength=blocks).tolist(), axis, self._arriving)
        self._plan = ExchangePlan(comm, sends, receives)
        self._back = ExchangePlan(comm, receives, sends)
        self._buffers = Buffers()

    def _forward(self, x: Array, out: Array | None) -> Array:
        out = self._new(self.range, x) if out is None else out
        samples = self._chosen.take(x.local_array, x.engine)
        if self._moves:
            samples = self._moved(self._plan, samples, self._arriving, x)[self._arrived.on_engine(x.engine)]
        return filled(out, samples)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        out = self._new(self.domain, y) if out is None else out
        samples = y.local_array
        if self._moves:
            samples = self._moved(self._back, samples[self._by_source.on_engine(y.engine)], self._leaving, y)
        check_holds(out.dtype, samples.dtype)
        return filled(out, self._chosen.scatter(samples, out.local_array, y.engine))

    def _moved(self, plan: ExchangePlan, samples: LocalArray, shape: tuple[int, ...], like: Array) -> LocalArray:
        """Send samples and return the received ones, of `shape`, in a buffer. One exchange."""
        dtype, engine = like.dtype, like.engine
        slots = ("model", "data") if plan is self._plan else ("data", "model")
        leaving = store(samples, self._buffers.local(slots[0], samples.shape, dtype, engine))
        arriving = self._buffers.local(slots[1], shape, dtype, engine)
        return plan(leaving, engine.xp.empty(shape, dtype) if arriving is None else arriving)


class _Selection:
    """Indices along one axis: a slice, which yields a view, if they are evenly spaced, else an array."""

    __slots__ = ("_before", "_indices", "_repeated", "_slice")

    def __init__(self, indices: np.ndarray, axis: int) -> None:
        self._before = (slice(None),) * axis
        self._indices: Coefficients | None = None
        self._slice = slice(0, 0)
        points = Index(indices)
        self._repeated = not points.unique
        if points.slice is None:
            self._indices = Coefficients(indices)
        else:
            self._slice = points.slice

    def on_engine(self, engine: Engine) -> tuple[slice | LocalArray, ...]:
        """Return the index for arrays of `engine`."""
        return (*self._before, self._slice if self._indices is None else self._indices.on_engine(engine))

    def take(self, array: LocalArray, engine: Engine) -> LocalArray:
        """Return the elements of `array` at the indices."""
        if self._indices is None:
            return engine.sliced(array, (*self._before, self._slice))
        return array[self.on_engine(engine)]

    def scatter(self, samples: LocalArray, target: LocalArray, engine: Engine) -> LocalArray:
        """Return `target` with `samples` at the indices, added up at repeated ones, and zeros elsewhere."""
        if self._indices is None:
            return engine.embedded(samples, (*self._before, self._slice), target)
        target = engine.put(target, ..., 0)
        if not self._repeated:
            return engine.put(target, self.on_engine(engine), samples)
        if not engine.mutable:
            return target.at[self.on_engine(engine)].add(samples.astype(target.dtype))
        # CuPy's add.at supports real numbers only.
        engine.xp.add.at(_as_reals(target), self.on_engine(engine), _as_reals(samples.astype(target.dtype, order="C")))
        return target


def _as_reals(array: LocalArray) -> LocalArray:
    """Return a view of a complex contiguous array as real and imaginary parts along a new axis; others unchanged."""
    if not is_complex(array.dtype):
        return array
    return array.view(real_of(array.dtype)).reshape(*array.shape, 2)


def _checked(iava: Sequence[int] | np.ndarray, extent: int) -> np.ndarray:
    """Return the indices as non-negative 64-bit integers."""
    indices = np.asarray(iava)
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise InputError(f"iava must be a sequence of integers, not of shape {indices.shape} and type {indices.dtype}")
    if indices.size and not (-extent <= indices.min() and indices.max() < extent):  # before uint64 could wrap around
        raise InputError(f"iava has indices from {indices.min()} to {indices.max()}; the axis has {extent} samples")
    indices = indices.astype(np.int64)
    return np.where(indices < 0, indices + extent, indices)


def _along(model: Layout, axis: int, rank: int) -> list[int]:
    """Return the ranks whose coordinates in the process grid differ from `rank` along `axis` only."""
    grid_axis = model.axes[axis]
    assert grid_axis is not None
    stride = prod(model.process_grid[grid_axis + 1 :])
    first = rank - model.coordinates(rank)[grid_axis] * stride
    return [first + number * stride for number in range(model.process_grid[grid_axis])]


def _boxes(peers: Sequence[int], counts: Sequence[int], axis: int, shape: tuple[int, ...]) -> list[tuple[int, Box]]:
    """Return consecutive boxes of an array along `axis`, one for each peer."""
    cuts = pairwise(accumulate(counts, initial=0))
    full = [slice(0, extent) for extent in shape]
    return [
        (peer, (*full[:axis], slice(begin, end), *full[axis + 1 :]))
        for peer, (begin, end) in zip(peers, cuts, strict=True)
    ]
