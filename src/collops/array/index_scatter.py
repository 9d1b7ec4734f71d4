"""Scatters by index between distributed, replicated and private arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from collops.array.creation import check_memory
from collops.array.distributed import DistributedArray
from collops.array.layout import Layout
from collops.array.operands import GlobalArray
from collops.backend import Engine, LocalArray, engine, engine_of
from collops.comm import Communicator
from collops.comm.agreement import collective_errors
from collops.comm.arguments import communicator_or_world
from collops.errors import LayoutError, UnsupportedTypeError
from collops.exchange.exchange import Exchange
from collops.exchange.forest import OnTransport, StarForest
from collops.exchange.indices import as_count, as_indices, owners, sent_to
from collops.exchange.packing import Index, check_operation, packing_for

End: TypeAlias = Layout | int
"""A distributed or replicated array, by its layout, or a private array on each rank, by its number of elements."""


class IndexScatter(OnTransport):
    """Scatter ``target[target_indices[k]] = source[source_indices[k]]``, planned once. Collective.

    Each rank may pass any pairs; together they form one list, in the order of ranks. Elements of layouts are
    identified by their global index in C order, elements of private (*sequential*) arrays by their index on the rank
    that passes them.

    Parameters
    ----------
    source, target : Layout or int
        A layout, split in any way or replicated; or the number of elements of each rank's private array. A target that
        is a layout is split or replicated as a whole; all its copies receive the values.
    source_indices, target_indices : sequence of int or None
        Indices, equally many of both. ``None`` selects all elements of a private array, or all elements of a split
        layout on this rank; for a replicated layout, rank 0 passes all elements.
    comm : Communicator, optional
        The ranks; the world by default.
    **options
        ``transport`` and ``deterministic``, as for :class:`StarForest`.

    Attributes
    ----------
    forest : StarForest
        Its roots are the elements of the source.

    Raises
    ------
    LayoutError
        On every rank, if an index is invalid, the lists differ in length, or groups of ranks have different values in a
        layout (:attr:`Layout.has_group_values`).

    Examples
    --------
    >>> import collops, numpy as np
    >>> x = collops.from_global(np.arange(6.0))
    >>> backwards = collops.IndexScatter(x.layout, None, x.layout, 5 - np.arange(6)[x.layout.slices(x.comm.rank)])
    >>> backwards.forward(x, collops.zeros_like(x)).gather()
    array([5., 4., 3., 2., 1., 0.])
    """

    def __init__(
        self,
        source: End,
        source_indices: Sequence[int] | np.ndarray | None,
        target: End,
        target_indices: Sequence[int] | np.ndarray | None,
        *,
        comm: Communicator | None = None,
        **options: Any,
    ) -> None:
        comm = communicator_or_world(comm)
        self.comm = comm
        self.source, self.target = source, target
        with collective_errors(comm):
            pairs = _checked_pairs(comm, source, source_indices, target, target_indices)
        ranks, indices, places = _at_targets(comm, source, target, pairs)
        self._points, self._slots = Index(places), Index.run(len(places))
        # One leaf for each element if possible, so that values are received in place.
        self._direct = not comm.allreduce(np.array(not self._points.unique, np.int8), "max")
        nroots = source.local_size(comm.rank) if isinstance(source, Layout) else source
        self.forest = StarForest(comm, nroots, places if self._direct else None, ranks, indices, **options)
        self._moves: dict[tuple[bool, str, np.dtype, Engine], Callable[[LocalArray, LocalArray], LocalArray]] = {}

    @classmethod
    def to_all(cls, layout: Layout, *, comm: Communicator | None = None, **options: Any) -> IndexScatter:
        """Return the scatter of a whole distributed array to a replicated one. Collective."""
        comm = communicator_or_world(comm)
        _check_layout(layout, comm)
        local_entries = _indices(layout, None, comm.rank, "source_indices")
        return cls(
            layout, local_entries, Layout.replicated(layout.size, layout.ranks), local_entries, comm=comm, **options
        )

    @classmethod
    def to_zero(cls, layout: Layout, *, comm: Communicator | None = None, **options: Any) -> IndexScatter:
        """Return the scatter of a whole distributed array to a private one of rank 0. Collective."""
        comm = communicator_or_world(comm)
        _check_layout(layout, comm)
        everything = np.arange(layout.size if comm.rank == 0 else 0)
        return cls(layout, everything, len(everything), everything, comm=comm, **options)

    def forward(
        self, x: DistributedArray | LocalArray, out: DistributedArray | LocalArray, op: str = "replace"
    ) -> DistributedArray | LocalArray:
        """Move values of the source to the target. Collective: one neighbour exchange.

        Parameters
        ----------
        x : DistributedArray or array
            In the layout of the source; a private source is a plain array.
        out : DistributedArray or array
            Like the target; the received values are combined with its values. Plain JAX arrays are immutable.
        op : str
            ``"replace"`` inserts (the last of several values for one element), ``"sum"`` adds; see
            :meth:`StarForest.bcast`.

        Returns
        -------
        DistributedArray or array
            `out`; a new array in place of a plain one of JAX.

        Raises
        ------
        LayoutError
            If an array has another layout or size.
        """
        source, target = _flat(x, self.source, "the source"), _flat(out, self.target, "the target")
        if self._direct:
            return _result(out, target, self.forest.bcast(source, target, op))
        check_operation(op, source.dtype)
        slots = self.forest.bcast(source, engine_of(source).xp.empty(self._points.size, source.dtype))
        return _result(out, target, self._move(slots, self._slots, op, target, self._points))

    def reverse(
        self, y: DistributedArray | LocalArray, out: DistributedArray | LocalArray, op: str = "replace"
    ) -> DistributedArray | LocalArray:
        """Move values of the target back to the source, ``out[source_indices[k]] = y[target_indices[k]]``. Collective.

        Arguments and errors as for :meth:`forward`, with source and target exchanged. A replicated source is a
        :class:`LayoutError`, because its copies would no longer be equal.
        """
        if isinstance(self.source, Layout) and self.source.is_replicated and self.comm.size > 1:
            raise LayoutError("cannot scatter back into a replicated source: its copies would differ")
        source, target = _flat(y, self.target, "the target"), _flat(out, self.source, "the source")
        if not self._direct:
            slots = engine_of(source).xp.empty(self._points.size, source.dtype)
            source = self._move(source, self._points, "replace", slots, self._slots)
        return _result(out, target, self.forest.reduce(source, target, op))

    def _set_transport(self, transport: str | type[Exchange]) -> None:
        self.forest = self.forest.with_transport(transport)

    def free(self) -> None:
        """Free the memory and the requests of the forest. Collective."""
        self.forest.free()

    def _move(
        self, source_array: LocalArray, source: Index, op: str, target_array: LocalArray, target: Index
    ) -> LocalArray:
        """Move values between the leaves of the forest and their elements."""
        engine = engine_of(source_array)
        key = (source is self._slots, op, source_array.dtype, engine)
        if key not in self._moves:
            self._moves[key] = packing_for(engine).mover(source, target, op, source_array.dtype, 1, True)
        return self._moves[key](source_array, target_array)

    def __repr__(self) -> str:
        return f"<IndexScatter from {self.source} to {self.target}>"


def _checked_pairs(
    comm: Communicator,
    source: End,
    from_indices: Sequence[int] | np.ndarray | None,
    target: End,
    to_indices: Sequence[int] | np.ndarray | None,
) -> np.ndarray:
    """Return the pairs of this rank, one a row: its number, the index in the source and the index in the target."""
    for end, what in ((source, "source"), (target, "target")):
        if isinstance(end, Layout):
            if end.ranks != comm.size:
                raise LayoutError(f"a {what} on {end.ranks} ranks does not fit a communicator of {comm.size}")
            if end.has_group_values:
                raise LayoutError(
                    f"each group of ranks has values of its own in the {what} {end}: make arrays on the communicator "
                    "of each group (comm.split)"
                )
        elif isinstance(end, bool) or not isinstance(end, int | np.integer):
            raise LayoutError(f"a {what} is a layout or a number of elements, not {end!r}")
        else:
            as_count(end, f"elements of the {what}")
    if (
        isinstance(target, Layout)
        and not target.is_replicated
        and len(target.split_axes) < sum(extent > 1 for extent in target.process_grid)
    ):
        raise LayoutError(f"the target must be split or replicated as a whole, unlike {target}")
    source_entries = _indices(source, from_indices, comm.rank, "source_indices")
    target_entries = _indices(target, to_indices, comm.rank, "target_indices")
    if len(source_entries) != len(target_entries):
        raise LayoutError(
            f"{len(source_entries)} source_indices need as many target_indices, not {len(target_entries)}"
        )
    return np.stack([np.full(len(source_entries), comm.rank), source_entries, target_entries], axis=1)


def _at_targets(
    comm: Communicator, source: End, target: End, pairs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rank and local index of the source, and local index of the target, of pairs with a target on this rank."""
    if isinstance(target, Layout) and comm.size > 1:
        if target.is_replicated:
            pairs = comm.allgatherv(pairs)
        else:
            ranks, pairs[:, 2] = owners(target, comm.rank, pairs[:, 2])
            (pairs,) = sent_to(comm, ranks, pairs)
    if isinstance(source, Layout):
        return *owners(source, comm.rank, pairs[:, 1]), pairs[:, 2]
    return pairs[:, 0], pairs[:, 1], pairs[:, 2]


def _indices(end: End, indices: Sequence[int] | np.ndarray | None, rank: int, name: str) -> np.ndarray:
    if indices is None:
        if not isinstance(end, Layout):
            return np.arange(end)
        if end.is_replicated:
            return np.arange(end.size if rank == 0 else 0)
        return np.arange(end.size).reshape(end.shape)[end.slices(rank)].reshape(-1)
    size = end.size if isinstance(end, Layout) else int(end)
    return as_indices(indices, name, name.replace("_indices", " element"), size)


def _check_layout(layout: object, comm: Communicator) -> None:
    if not isinstance(layout, Layout) or layout.ranks != comm.size:
        raise LayoutError(f"expected the layout of the whole array on {comm.size} ranks, not {layout!r}")
    # Rank 0 lists all elements.
    check_memory(Layout.replicated(layout.size, comm.size), np.dtype(np.int64), engine("numpy"))


def _flat(array: GlobalArray | LocalArray, end: End, what: str) -> LocalArray:
    """Return the local values of one end as a flat array, a view if the engine has views."""
    if isinstance(end, Layout):
        if not isinstance(array, DistributedArray):
            raise UnsupportedTypeError(f"{what} is a distributed array, not {type(array).__qualname__}")
        if array.layout is not end:
            raise LayoutError(f"{what} has the layout {end}, but this array has {array.layout}")
        array = array.local_array
    else:
        array = engine_of(array).adopt(array)
        if array.shape != (end,):
            raise LayoutError(f"{what} has the shape ({end},), but this array has {tuple(array.shape)}")
    if array.ndim == 1:
        return array  # the forest checks that it is contiguous
    if engine_of(array).mutable and not array.flags.c_contiguous:
        raise LayoutError(f"{what} must be contiguous")
    return array.reshape(-1)


def _result(
    out: DistributedArray | LocalArray, target: LocalArray, result: LocalArray
) -> DistributedArray | LocalArray:
    """Return the array that was given for the result; in place of a plain one that cannot be written to, a new one."""
    if not isinstance(out, DistributedArray):
        return result
    if result is not target:
        out.local_array = result.reshape(out.local_array.shape)
    return out
