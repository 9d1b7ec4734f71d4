"""The star forest: a map from leaves to roots across ranks, and the operations that move values between them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from collops.backend import Engine, LocalArray, engine_of, repeatable
from collops.comm.agreement import collective_errors
from collops.comm.arguments import checked_communicator
from collops.errors import LayoutError, UnsupportedTypeError
from collops.exchange import algebra
from collops.exchange.exchange import Exchange, InFlight, Mover, points_of
from collops.exchange.indices import as_count, as_indices, edges_of, owners
from collops.exchange.packing import Index, check_operation, packing_for
from collops.exchange.pattern import pattern_of_edges
from collops.exchange.transports import check_transport, exchange_of, is_on_stream

if TYPE_CHECKING:
    from typing import Self

    from collops.comm import Communicator

__all__ = ["OnTransport", "StarForest"]

_MAX_CHECKED = 64  # kinds of arrays
_DOWN, _UP, _FETCH = "roots to leaves", "leaves to roots", "fetch"


class OnTransport:
    """Base class of objects whose transport can be chosen."""

    _set_transport: Any  # sets the name of the transport

    def with_transport(self, transport: str | type[Exchange]) -> Self:
        """Return a copy that uses another transport: a name or a subclass of `Exchange`. Collective; sends nothing."""
        check_transport(transport)
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._set_transport(transport)
        return copy


class StarForest(OnTransport):
    """A star forest: each star has a root, owned by one rank, and any number of leaves on any ranks.

    *Points* are the rows of arrays along their first axis; further axes are the values of a point. Root arrays have
    ``nroots`` points, leaf arrays at least ``leaf_space``. Movers (:meth:`bcast`, :meth:`reduce`, ...) take local
    arrays of NumPy, CuPy or JAX, of one dtype and engine on all ranks, and send at most one message to each rank. All
    of them are collective. Source and target may share memory, as points and their ghosts do, unless a point is both
    read and written. JAX arrays are immutable: the result is a new array. All movers can be traced: in ``jit``, in
    derivatives (the transpose of ``bcast`` is ``reduce`` with ``"sum"``), and under ``vmap``.

    Parameters
    ----------
    comm : Communicator
    nroots : int
        Number of roots of this rank.
    leaves : sequence of int or None
        Points of this rank's leaf arrays that are leaves, without repetitions; ``None`` for ``0, 1, ...``.
    remote_ranks, remote_indices : sequence of int
        For each leaf, the rank that owns its root, and the root's index there. Roots may have any number of leaves.
    transport : str or type
        The transport, the same on all ranks: one of :data:`collops.exchange.TRANSPORTS`, which also describes
        ``"auto"``, or a transport of your own: a subclass of :class:`collops.extend.exchanges.Exchange`.
    deterministic : bool
        Whether sums over leaves are bitwise reproducible, in every run and on every transport: leaves are then added to
        their root sequentially, first the leaves of the root's rank, then leaves of other ranks by rank, in the order
        of each rank's leaves. Otherwise devices may add with atomic operations, which is faster if a few roots have
        very many leaves. All other operations are always bitwise reproducible.

    Attributes
    ----------
    nroots, nleaves : int
        Number of roots and leaves of this rank.
    leaf_space : int
        Minimum number of points of leaf arrays: the last leaf plus one.
    leaves, remote_ranks, remote_indices : numpy.ndarray
        The edges of this rank's leaves, 64-bit, read-only.
    pattern : Pattern
        The pattern from roots to leaves.

    Raises
    ------
    LayoutError
        On every rank, if lengths differ, a leaf is used twice, or a rank or a root does not exist.

    Notes
    -----
    With :math:`A` the matrix that has a one for each leaf (row) and its root (column), ``bcast`` is :math:`A` and
    ``reduce`` with ``"sum"`` its transpose [1]_.

    The constructor is collective: it exchanges the indices of roots. The transports ``shared``, ``mixed`` and
    ``symmetric`` hold memory until :meth:`free`, or until such memory is next allocated after no rank refers to the
    forest.

    References
    ----------
    .. [1] J. Zhang et al., "The PetscSF scalable communication layer", IEEE TPDS 33(4), 842-853, 2022.

    Examples
    --------
    >>> import collops, numpy as np
    >>> comm = collops.world()
    >>> ring = collops.StarForest(comm, 1, None, [(comm.rank + 1) % comm.size], [0])
    >>> int(ring.bcast(np.array([comm.rank]))[0]) == (comm.rank + 1) % comm.size
    True
    """

    def __init__(
        self,
        comm: Communicator,
        nroots: SupportsIndex,
        leaves: Sequence[int] | np.ndarray | None,
        remote_ranks: Sequence[int] | np.ndarray,
        remote_indices: Sequence[int] | np.ndarray,
        *,
        transport: str | type[Exchange] = "auto",
        deterministic: bool = True,
    ) -> None:
        check_transport(transport)
        self.comm = checked_communicator(comm)
        with collective_errors(comm):
            self.nroots = as_count(nroots, "roots")
            edges = _checked_edges(comm, leaves, remote_ranks, remote_indices)
        self.leaves, self.remote_ranks, self.remote_indices = edges
        counts = comm.allgather(np.array(self.nroots, np.int64))
        with collective_errors(comm):
            _check_roots(self.remote_ranks, self.remote_indices, counts)
        self.nleaves = len(self.leaves)
        self.leaf_space = int(self.leaves.max()) + 1 if self.nleaves else 0
        self.deterministic = deterministic or repeatable()
        self.pattern = pattern_of_edges(comm, *edges)
        self._set_transport(transport)

    def __deepcopy__(self, memo: dict[int, object]) -> StarForest:
        """Return this forest, which is immutable: prepared launches store addresses of its memory."""
        return self

    def _set_transport(self, transport: str | type[Exchange]) -> None:
        """Set the transport, and drop exchanges and prepared movers."""
        self.transport = transport
        self._tag = self.comm.next_plan_tag()
        self._exchanges: dict[tuple[object, ...], Exchange] = {}
        self._movers: dict[Any, Any] = {}
        self._checked: dict[tuple[object, ...], Mover] = {}
        self._multi: StarForest | None = None

    # Constructors

    @classmethod
    def from_pattern(
        cls, comm: Communicator, pattern: str, count: int = 1, *, root: int = 0, **options: Any
    ) -> StarForest:
        """Return the forest of a collective operation. Collective.

        Parameters
        ----------
        comm, **options
            As for the class.
        pattern : str
            ``"allgather"``: every rank's roots are leaves of all ranks, in the order of ranks; ``"gather"``: only of
            rank `root`; ``"alltoall"``: root block *i* of rank *j* is leaf block *j* of rank *i*.
        count : int
            Number of roots of this rank, which may differ from rank to rank; for ``"alltoall"`` the points of a block,
            the same on all ranks.
        root : int
            The root of ``"gather"``.
        """
        checked_communicator(comm)
        return cls(comm, *edges_of(comm, pattern, count, root), **options)

    @classmethod
    def from_layout(
        cls,
        comm: Communicator,
        layout: Any,
        indices: Sequence[int] | np.ndarray,
        leaves: Sequence[int] | np.ndarray | None = None,
        **options: Any,
    ) -> StarForest:
        """Return the forest whose roots are the elements of a layout, given by global index. Collective.

        Parameters
        ----------
        comm, leaves, **options
            As for the class.
        layout : Layout
            Layout of the roots, on any process grid. Root arrays are this rank's parts, ravelled. Leaves of replicated
            elements refer to the nearest replica: on this rank, or in its row or column of the process grid.
        indices : sequence of int
            For each leaf, the index of its root in the global array, in C order.

        Raises
        ------
        LayoutError
            On every rank, if an index is out of range, or the layout has another number of ranks.
        """
        checked_communicator(comm)
        with collective_errors(comm):
            if getattr(layout, "ranks", None) != comm.size or not hasattr(layout, "coordinates"):
                raise LayoutError(f"layout must be a layout of {comm.size} ranks, not {layout!r}")
            owners_of_roots = owners(layout, comm.rank, indices)
        return cls(comm, layout.local_size(comm.rank), leaves, *owners_of_roots, **options)

    def __enter__(self) -> StarForest:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if kind is None:
            self.free()

    def __repr__(self) -> str:
        return (
            f"<StarForest rank {self.comm.rank} of {self.comm.size}: {self.nroots} roots, {self.nleaves} leaves, "
            f"transport {getattr(self.transport, '__name__', self.transport)}>"
        )

    def degrees(self) -> np.ndarray:
        """Return the number of leaves of each of this rank's roots, 64-bit. Not collective."""
        indices = self.pattern.sends.points, self.pattern.local_sources
        return sum(np.bincount(index.points, minlength=self.nroots) for index in indices)  # pyright: ignore

    @property
    def on_stream(self) -> bool:
        """Whether movers of device arrays never block the host, so that a CUDA graph can record them."""
        return not self.pattern.most_points or is_on_stream(self.comm, self.transport)

    def free(self) -> None:
        """Free the memory and the requests of exchanges; the next use recreates them. Collective."""
        if self._multi is not None:
            self._multi.free()
        for exchange in self._exchanges.values():
            exchange.free()
        for cache in (self._exchanges, self._movers, self._checked):
            cache.clear()

    # Movers

    def bcast(self, roots: LocalArray, leaves: LocalArray | None = None, op: str = "replace") -> LocalArray:
        """Copy the value of each root to its leaves. Collective: one neighbour exchange.

        Parameters
        ----------
        roots : array
            Shape ``(nroots, *block)``.
        leaves : array, optional
            Shape ``(n, *block)`` with ``n >= leaf_space``, contiguous; receives the result. By default zeros.
        op : str
            Combines the values of root and leaf: ``replace, sum, prod, min, max, land, lor, lxor``.

        Returns
        -------
        array
            The leaves.

        Raises
        ------
        LayoutError
            If shapes do not fit.
        UnsupportedTypeError
            If dtypes or engines differ, or `op` is not defined for the dtype.
        """
        mover, roots, leaves = self._prepared(_DOWN, op, roots, leaves)
        return mover.move(roots, leaves)

    def start_bcast(self, roots: LocalArray, leaves: LocalArray | None = None, op: str = "replace") -> InFlight:
        """Start a :meth:`bcast`, whose result :meth:`InFlight.finish` returns. Collective."""
        mover, roots, leaves = self._prepared(_DOWN, op, roots, leaves)
        return mover.start(roots, leaves)

    def reduce(self, leaves: LocalArray, roots: LocalArray, op: str = "sum") -> LocalArray:
        """Combine every root with the values of its leaves. Collective: one neighbour exchange.

        Parameters
        ----------
        leaves, roots, op
            As for :meth:`bcast`; the roots are contiguous and updated in place. With ``"replace"`` a root gets the
            value of its last leaf, in the order described in the class.

        Returns
        -------
        array
            The roots.
        """
        mover, leaves, roots = self._prepared(_UP, op, leaves, roots)
        return mover.move(leaves, roots)

    def start_reduce(self, leaves: LocalArray, roots: LocalArray, op: str = "sum") -> InFlight:
        """Start a :meth:`reduce`, whose result :meth:`InFlight.finish` returns. Collective."""
        mover, leaves, roots = self._prepared(_UP, op, leaves, roots)
        return mover.start(leaves, roots)

    def fetch_and_op(
        self, roots: LocalArray, leaves: LocalArray, fetched: LocalArray | None = None, op: str = "sum"
    ) -> LocalArray:
        """Combine roots with their leaves sequentially; each leaf gets the value of its root before its own update.

        Collective: two neighbour exchanges. The order is the order of sums described in the class.

        Parameters
        ----------
        roots, leaves, op
            As for :meth:`reduce`; ``"replace"`` passes values from leaf to leaf.
        fetched : array, optional
            Like `leaves`, contiguous; receives the result. By default zeros.

        Returns
        -------
        array
            The fetched values; for JAX arrays, which are immutable, the pair of fetched values and new roots.
        """
        return self.start_fetch_and_op(roots, leaves, fetched, op).finish()

    def start_fetch_and_op(
        self, roots: LocalArray, leaves: LocalArray, fetched: LocalArray | None = None, op: str = "sum"
    ) -> InFlight:
        """Start a :meth:`fetch_and_op`. All ranks finish the operations of one forest in the same order. Collective."""
        (collect, fetch, flat), leaves, _ = self._prepared(_FETCH, op, leaves, roots)
        engine, multi = engine_of(leaves), self.multi
        if fetched is None:
            fetched = engine.xp.zeros(leaves.shape, leaves.dtype)
        slots = engine.xp.empty((multi.nroots, *leaves.shape[1:]), leaves.dtype)
        back, _, _ = multi._prepared(_DOWN, "replace", slots, fetched)
        collected = collect.start(leaves, slots)

        def complete(fetched: LocalArray | None) -> LocalArray:
            multi_values = points_of(collected.finish(), flat)
            before, sums = fetch(multi_values, points_of(roots, flat), multi_values)
            result = back.move(before.reshape(slots.shape), fetched)
            return result if engine.mutable else (result, sums.reshape(roots.shape))

        return InFlight(complete, fetched)

    def gather(self, leaves: LocalArray, multi_roots: LocalArray | None = None) -> LocalArray:
        """Collect the leaves of every root consecutively, in the order of ranks and then of leaves. Collective.

        Parameters
        ----------
        leaves : array
            As for :meth:`bcast`.
        multi_roots : array, optional
            Shape ``(sum of degrees, *block)``, contiguous; receives the leaves of root 0, then of root 1, ...

        Returns
        -------
        array
            The collected values.
        """
        return self.start_gather(leaves, multi_roots).finish()

    def start_gather(self, leaves: LocalArray, multi_roots: LocalArray | None = None) -> InFlight:
        """Start a :meth:`gather`. Collective."""
        multi = self.multi
        if multi_roots is None:
            multi_roots = engine_of(leaves).xp.empty((multi.nroots, *leaves.shape[1:]), leaves.dtype)
        return multi.start_reduce(leaves, multi_roots, "replace")

    def scatter(self, multi_roots: LocalArray, leaves: LocalArray | None = None) -> LocalArray:
        """Copy to each leaf its own value in an array as :meth:`gather` collects it. Collective."""
        return self.multi.bcast(multi_roots, leaves)

    def start_scatter(self, multi_roots: LocalArray, leaves: LocalArray | None = None) -> InFlight:
        """Start a :meth:`scatter`. Collective."""
        return self.multi.start_bcast(multi_roots, leaves)

    @property
    def multi(self) -> StarForest:
        """The forest in which every leaf has a root of its own, see :meth:`gather`. Collective at its first use."""
        if self._multi is None:
            self._multi = algebra.multi_forest(self)
        return self._multi

    def _prepared(
        self, way: str, op: str, source: LocalArray, target: LocalArray
    ) -> tuple[Any, LocalArray, LocalArray]:
        """Return the mover between these arrays, the contiguous source, and the target (by default zeros)."""
        try:
            kind = way, op, type(source), source.dtype, source.shape, type(target), target.dtype, target.shape
            mover = self._checked.get(kind)
            if mover and source.flags.c_contiguous and target.flags.c_contiguous:
                return mover, source, target  # arrays of a kind that has passed all checks
        except AttributeError:
            kind = None  # no target, or not arrays, for which the checks raise a clearer error
        engine = engine_of(source)
        names = ("roots", "leaves") if way == _DOWN else ("leaves", "roots")
        by_default = target is None and way == _DOWN
        if not by_default:
            self._check_alike(source, target)
        source = self._checked_points(names[0], source, engine)
        block, dtype = source.shape[1:], source.dtype
        if by_default:
            target = engine.xp.zeros((self.leaf_space, *block), dtype)
        else:
            self._checked_points(names[1], target, engine, True)
        mover = self._mover(way, op, dtype, block, engine)
        if kind is not None and engine.mutable:
            if len(self._checked) >= _MAX_CHECKED:
                self._checked.clear()
            self._checked[kind] = mover
        return mover, source, target

    def _mover(self, way: str, op: str, dtype: np.dtype, block: tuple[int, ...], engine: Engine) -> Any:
        """Return the mover of such values. Collective if it is new.

        For a fetch: the mover that collects leaves, the function that updates roots, and the shape of a point for it.
        """
        key, width = (way, op, dtype, block, engine), prod(block)
        if key in self._movers:
            return self._movers[key]
        if way == _FETCH:
            check_operation(op, dtype)
            edges, multi_roots = map(Index, algebra.edges_of_roots(self))
            fetch = packing_for(engine).fetcher(multi_roots, edges, op, dtype, width)
            mover: Any = self.multi._mover(_UP, "replace", dtype, block, engine), fetch, () if width == 1 else (width,)
        else:
            exchange = self._exchange(way == _DOWN, width, dtype, engine)
            mover = Mover(exchange, op, block, self.deterministic, way)
        return self._movers.setdefault(key, mover)

    def _check_alike(self, source: LocalArray, target: LocalArray) -> None:
        if engine_of(source) is not engine_of(target) or source.dtype != target.dtype:
            raise UnsupportedTypeError("roots and leaves must share engine and dtype")
        blocks = [tuple(array.shape[1:]) for array in (source, target)]
        if blocks[0] != blocks[1]:
            raise LayoutError(f"a point has the shape {blocks[0]} among the source and {blocks[1]} among the target")

    def _checked_points(self, name: str, array: LocalArray, engine: Engine, written: bool = False) -> LocalArray:
        """Return a contiguous array of roots or leaves; an array that is `written` must be contiguous already."""
        exact, points = name == "roots", self.nroots if name == "roots" else self.leaf_space
        if array.ndim == 0 or array.shape[0] < points or (exact and array.shape[0] != points):
            expected = f"{points}" if exact else f"at least {points}"
            raise LayoutError(
                f"{name} must have {expected} points along the first axis, not shape {tuple(array.shape)}"
            )
        if not engine.mutable or array.flags.c_contiguous:
            return array
        if written:
            raise LayoutError(f"{name} must be contiguous, since they are overwritten")
        return engine.xp.ascontiguousarray(array)

    def _exchange(self, down: bool, width: int, dtype: np.dtype, engine: Engine) -> Exchange:
        """Return the exchange for one direction and kind of values. Collective if it is new."""
        key = (down, width, dtype, engine)
        if key not in self._exchanges:
            pattern = self.pattern if down else self.pattern.reversed()
            self._exchanges[key] = exchange_of(self.comm, self.transport, pattern, dtype, width, engine, self._tag)
        return self._exchanges[key]

    def move_once(self, down: bool, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Move host arrays once by messages, without caching, to derive other forests. Collective."""
        engine, block = engine_of(source), source.shape[1:]
        pattern = self.pattern if down else self.pattern.reversed()
        exchange = exchange_of(
            self.comm, self.comm.host_transport, pattern, source.dtype, prod(block), engine, self._tag
        )
        return Mover(exchange, "replace", block, True, _DOWN if down else _UP).move(source, target)

    # Forests made of forests

    inverse = algebra.inverse
    compose = algebra.compose
    compose_inverse = algebra.compose_inverse
    embed_roots = algebra.embed_roots
    embed_leaves = algebra.embed_leaves
    strided = algebra.strided
    concatenate = staticmethod(algebra.concatenate)
    distribute = algebra.distribute


def _checked_edges(
    comm: Communicator,
    leaves: Sequence[int] | np.ndarray | None,
    ranks: Sequence[int] | np.ndarray,
    indices: Sequence[int] | np.ndarray,
) -> tuple[np.ndarray, ...]:
    """Return the edges of a rank's leaves, after all checks that need no communication."""
    ranks, indices = as_indices(ranks, "remote_ranks"), as_indices(indices, "remote_indices")
    leaves = np.arange(len(ranks), dtype=np.int64) if leaves is None else as_indices(leaves, "leaves")
    if not len(leaves) == len(ranks) == len(indices):
        raise LayoutError(
            "leaves, remote_ranks and remote_indices must have the same length, "
            f"not {len(leaves)}, {len(ranks)} and {len(indices)}"
        )
    if leaves.min(initial=0) < 0:
        raise LayoutError(f"leaf {leaves.min()} is negative")
    different, counts = np.unique(leaves, return_counts=True)
    if len(different) < len(leaves):
        raise LayoutError(f"leaf {different[np.argmax(counts)]} is used {counts.max()} times")
    wrong = ranks[(ranks < 0) | (ranks >= comm.size)]
    if len(wrong):
        raise LayoutError(f"a leaf has its root on rank {wrong[0]}, but there are {comm.size} ranks")
    for array in (leaves, ranks, indices):
        array.flags.writeable = False
    return leaves, ranks, indices


def _check_roots(ranks: np.ndarray, indices: np.ndarray, counts: np.ndarray) -> None:
    """Check that the roots of edges exist, given how many each rank has."""
    wrong = np.flatnonzero((indices < 0) | (indices >= counts[ranks]))
    if len(wrong):
        rank, index = ranks[wrong[0]], indices[wrong[0]]
        raise LayoutError(f"a leaf refers to root {index} of rank {rank}, which has {counts[rank]} roots")
