"""Restriction: some of the samples along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np

from collops.array import Layout
from collops.array.dtypes import real_of
from collops.array.layout_arguments import normal_axis
from collops.comm import Communicator, ExchangePlan
from collops.comm.given import communicator_or_world
from collops.comm.plan import Box
from collops.errors import InputError
from collops.operators.base import LinearOperator, is_complex
from collops.operators.coefficients import Coefficients
from collops.operators.dims import Dims, along_axis, as_layout, check_holds
from collops.operators.local import store
from collops.operators.scratch import Scratch

__all__ = ["Restriction"]


class Restriction(LinearOperator):
    """Some of the samples along one axis, in any order and as often as wanted.

    The samples stay on the ranks that hold them, and nothing is sent, as long as their order allows: that of the blocks
    along the axis, which sorted indices always have. Otherwise, or if `rebalance` asks for it, the data are split
    evenly and every application sends one exchange among the ranks that the axis is split over.

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
        Whether the data are split evenly wherever the samples come from.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Of the operator.

    Attributes
    ----------
    repeated : bool
        Whether an index occurs more than once; adjoint then adds up.

    Raises
    ------
    InputError
        If an index is outside the axis, or they are no integers.

    Examples
    --------
    >>> import collops
    >>> from collops.operators import Restriction
    >>> Restriction(5, [0, 3]).range.shape
    (2,)
    """

    def __init__(
        self,
        dims: Dims,
        iava: Sequence[int] | np.ndarray,
        axis: int = -1,
        *,
        rebalance: bool = False,
        comm: Communicator | None = None,
        dtype: Any = "float64",
    ) -> None:
        comm = communicator_or_world(comm)
        model = as_layout(dims, comm)
        self.axis = axis = normal_axis(axis, model.ndim)
        indices = _checked(iava, model.shape[axis])
        self.repeated = len(np.unique(indices)) < len(indices)
        ends = np.cumsum(model.sizes[axis])
        owners = np.searchsorted(ends, indices, side="right")
        blocks = len(ends)
        self._moves = blocks > 1 and (rebalance or bool(np.any(np.diff(owners) < 0)))
        if self._moves:
            share, longer = divmod(len(indices), blocks)
            sizes = [share + (block < longer) for block in range(blocks)]
        else:
            sizes = np.bincount(owners, minlength=blocks).tolist()
        super().__init__(model, along_axis(model, axis, sizes), dtype, comm)
        place = model.axes[axis]
        mine = 0 if place is None else model.coordinates(comm.rank)[place]
        if not self._moves:
            self._chosen = _Selection(indices[owners == mine] - model.offset(comm.rank)[axis], axis, model.ndim)
            return
        wanted_by = np.repeat(np.arange(blocks), sizes)
        leaving = [indices[(owners == mine) & (wanted_by == block)] for block in range(blocks)]
        sources = owners[wanted_by == mine]
        # What is sent is in the order of its destinations, what arrives in the order of its sources.
        chosen = np.concatenate(leaving) - model.offset(comm.rank)[axis]
        arrival = np.argsort(sources, kind="stable")
        self._chosen = _Selection(chosen, axis, model.ndim)
        self._arrived = _Selection(np.argsort(arrival), axis, model.ndim)
        self._by_source = _Selection(arrival, axis, model.ndim)
        self._shapes = tuple(
            _resized(model.local_shape(comm.rank), axis, count) for count in (len(chosen), len(arrival))
        )
        peers = _along(model, axis, comm.rank)
        sends = _boxes(peers, [len(part) for part in leaving], axis, self._shapes[0])
        receives = _boxes(peers, np.bincount(sources, minlength=blocks).tolist(), axis, self._shapes[1])
        self._there = ExchangePlan(comm, sends, receives)
        self._back = ExchangePlan(comm, receives, sends)
        self._scratch = Scratch()

    def _forward(self, x: Any, out: Any) -> Any:
        target = self._new(self.range, x) if out is None else out
        given, wanted = x.local_array, target.local_array
        if not self._moves:
            store(given[self._chosen.on(x.engine)], wanted)
            return target
        leaving, arriving = self._buffers(x)
        leaving[...] = given[self._chosen.on(x.engine)]
        self._there(leaving, arriving)
        store(arriving[self._arrived.on(x.engine)], wanted)
        return target

    def _adjoint(self, y: Any, out: Any) -> Any:
        target = self._new(self.domain, y) if out is None else out
        given, wanted = y.local_array, target.local_array
        if self._moves:
            returning, leaving = self._buffers(y)
            leaving[...] = given[self._by_source.on(y.engine)]
            given = self._back(leaving, returning)
        check_holds(wanted, given)
        self._chosen.spread(given, wanted, y.engine)
        return target

    def _buffers(self, like: Any) -> tuple[Any, Any]:
        """Return memory for the samples that rest with their holders, and for those that the data need."""
        here, there = self._shapes
        dtype, engine = like.dtype, like.engine
        return self._scratch.get("model", here, dtype, engine), self._scratch.get("data", there, dtype, engine)


class _Selection:
    """Indices along one axis: as a slice where they are evenly spaced, which takes no copy, else as an array."""

    __slots__ = ("_before", "_indices", "_repeated", "_slice")

    def __init__(self, indices: np.ndarray, axis: int, ndim: int) -> None:
        self._before = (slice(None),) * axis
        self._indices: Coefficients | None = None
        self._slice = slice(0, 0)
        self._repeated = len(np.unique(indices)) < len(indices)
        steps = np.unique(np.diff(indices))
        if len(indices) == 0:
            return
        if len(steps) == 0 or (len(steps) == 1 and steps[0] > 0):
            self._slice = slice(int(indices[0]), int(indices[-1]) + 1, int(steps[0]) if len(steps) else 1)
        else:
            self._indices = Coefficients(indices)

    def on(self, engine: Any) -> tuple[Any, ...]:
        """Return the index for arrays of `engine`."""
        return (*self._before, self._slice if self._indices is None else self._indices.on(engine))

    def spread(self, given: Any, wanted: Any, engine: Any) -> None:
        """Put `given` where the indices say, adding up where one occurs several times, and zeros elsewhere."""
        wanted.fill(0)
        if self._repeated:
            # CuPy adds up real numbers only.
            engine.xp.add.at(_as_reals(wanted), self.on(engine), _as_reals(given.astype(wanted.dtype, order="C")))
        else:
            wanted[self.on(engine)] = given


def _as_reals(array: Any) -> Any:
    """Return a contiguous array, if it is complex, as real and imaginary parts along one more axis."""
    if not is_complex(array.dtype):
        return array
    return array.view(real_of(array.dtype)).reshape(*array.shape, 2)


def _checked(iava: Sequence[int] | np.ndarray, extent: int) -> np.ndarray:
    """Return the indices as non-negative 64-bit integers."""
    indices = np.asarray(iava)
    if indices.size == 0:
        indices = indices.astype(np.int64)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise InputError(f"iava must be a sequence of integers, not of shape {indices.shape} and type {indices.dtype}")
    indices = indices.astype(np.int64)
    if indices.size and not (-extent <= indices.min() and indices.max() < extent):
        raise InputError(f"iava has indices from {indices.min()} to {indices.max()}; the axis has {extent} samples")
    return np.where(indices < 0, indices + extent, indices)


def _along(model: Layout, axis: int, rank: int) -> list[int]:
    """Return the ranks that hold the blocks along `axis` which have the place of `rank` along all others."""
    place = model.axes[axis]
    assert place is not None
    stride = prod(model.process_grid[place + 1 :])
    first = rank - model.coordinates(rank)[place] * stride
    return [first + number * stride for number in range(model.process_grid[place])]


def _boxes(peers: Sequence[int], counts: Sequence[int], axis: int, shape: tuple[int, ...]) -> list[tuple[int, Box]]:
    """Return consecutive boxes of an array along `axis`, one for each peer."""
    cuts = pairwise(accumulate(counts, initial=0))
    whole = [slice(0, extent) for extent in shape]
    return [
        (peer, (*whole[:axis], slice(begin, end), *whole[axis + 1 :]))
        for peer, (begin, end) in zip(peers, cuts, strict=True)
    ]


def _resized(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])
