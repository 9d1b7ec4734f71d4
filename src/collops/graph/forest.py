"""The star forest: which leaf on which rank belongs to which root, and the movers that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from collops.backend import Engine, engine_of, repeatable
from collops.comm.given import checked_communicator
from collops.errors import REFUSALS, UnsupportedTypeError
from collops.graph.derived import Derived
from collops.graph.edges import Edges
from collops.graph.moving import Fetching, Moving, UnderWay, UnderWayFetch, check_alike, flat_points
from collops.graph.plan import Plan, plan_of
from collops.graph.traced import TracedMoving
from collops.graph.wires.agreed import agreed
from collops.graph.wires.choice import check_name, wire_for
from collops.graph.wires.own import OwnWire
from collops.graph.wires.wire import Channel, Routes

if TYPE_CHECKING:
    from collops.array import Layout
    from collops.comm import Communicator

__all__ = ["StarForest"]

_MOST_CHECKED = 64  # kinds of arrays


class StarForest(Derived):
    """Stars between ranks: each has a root, which one rank owns, and any number of leaves, each on any rank.

    *Points* are the rows of arrays along their first axis; further axes are the values of a point. Root arrays have
    ``nroots`` points, leaf arrays at least ``leaf_space``. Movers take plain local arrays of NumPy, CuPy or JAX, of one
    dtype and engine on all ranks, and send one message to each rank that needs any. All of them are collective. Source
    and target may share memory, as points beside their ghosts do, unless a point is both read and written. Arrays of
    JAX stay as they are, and the result is a new one (its variables are written to); ``bcast``, ``reduce``, ``gather``
    and ``scatter`` can be traced: in ``jit``, in derivatives (the transpose of ``bcast`` is ``reduce`` with ``"sum"``),
    and under ``vmap``.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    nroots : int
        Roots of this rank.
    leaves : sequence of int or None
        Points of this rank's leaf arrays that are leaves, each once; ``None`` for ``0, 1, ...``.
    remote_ranks, remote_indices : sequence of int
        For each leaf the rank that owns its root, and the root's number there. Roots may have any number of leaves.
    wire : str
        How values travel: one of :data:`collops.graph.WIRES`. ``"auto"`` takes the fastest of those that this machine
        has, measured once for the communicator.
    deterministic : bool
        Whether a sum over leaves has the same bits in every run and on every wire: leaves are then added to their root
        one after the other, this rank's own first, then those of the other ranks by rank, each rank's in the order
        of its leaves. Without it devices may add with atomic operations, which is faster where a few roots have very
        many leaves. All other operations give the same bits in any case.

    Attributes
    ----------
    comm : Communicator
    nroots, nleaves : int
        Roots and leaves of this rank.
    leaf_space : int
        Points that leaf arrays need at least: one more than the last leaf.
    leaves, remote_ranks, remote_indices : numpy.ndarray
        The edges that end here, 64-bit, not to be written to.

    Raises
    ------
    LayoutError
        On every rank, if lengths differ, a leaf is used twice, or a rank or a root does not exist.
    InputError
        If there is no such wire.

    Notes
    -----
    With :math:`A` the matrix that has a one for each leaf (row) and its root (column), ``bcast`` is :math:`A` and
    ``reduce`` with ``"sum"`` its transpose [1]_.

    Collective: the indices of roots travel once, here. Wires named ``neighbor`` and ``shared`` keep communicators or
    memory of MPI until :meth:`free`.

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
        wire: str = "auto",
        deterministic: bool = True,
    ) -> None:
        check_name(wire)
        self.comm = checked_communicator(comm)
        edges, error = None, None
        try:
            edges = Edges(comm, nroots, leaves, remote_ranks, remote_indices)
        except REFUSALS as problem:
            error = problem
        comm.check(error)
        assert edges is not None
        counts = comm.allgather(np.array(edges.nroots, np.int64))
        comm.check(edges.wrong_root(counts))
        self.nroots = edges.nroots
        self.leaves, self.remote_ranks, self.remote_indices = edges.arrays
        for array in edges.arrays:
            array.flags.writeable = False
        self.nleaves = len(self.leaves)
        self.leaf_space = int(self.leaves.max()) + 1 if self.nleaves else 0
        self.wire = wire
        self.deterministic = deterministic or repeatable()
        self.plan: Plan = plan_of(comm, *edges.arrays)
        self._tag = comm.next_plan_tag()
        self._channels: dict[Any, Channel | None] = {}
        self._movings: dict[Any, Any] = {}
        self._checked: dict[Any, Any] = {}
        self._multi: StarForest | None = None

    # Ways to make one

    @classmethod
    def from_pattern(
        cls, comm: Communicator, pattern: str, count: int = 1, *, root: int = 0, **options: Any
    ) -> StarForest:
        """Return the forest of a collective operation. Collective.

        Parameters
        ----------
        comm : Communicator
            The ranks.
        pattern : str
            ``"allgather"``: every rank's roots are leaves of all ranks, in the order of ranks; ``"gather"``: only of
            rank `root`; ``"alltoall"``: root block *i* of rank *j* is leaf block *j* of rank *i*.
        count : int
            Roots of this rank, which may differ from rank to rank; for ``"alltoall"`` the points of a block, the same
            everywhere.
        root : int
            For ``"gather"``.
        **options
            As for the class.

        Raises
        ------
        InputError
            If there is no such pattern, or no rank `root`.
        """
        from collops.graph.patterns import edges_of

        checked_communicator(comm)
        return cls(comm, *edges_of(comm, pattern, count, root), **options)

    @classmethod
    def from_layout(
        cls,
        comm: Communicator,
        layout: Layout,
        indices: Sequence[int] | np.ndarray,
        leaves: Sequence[int] | np.ndarray | None = None,
        **options: Any,
    ) -> StarForest:
        """Return the forest whose roots are a layout's elements, which leaves name by global index. Collective.

        Parameters
        ----------
        comm : Communicator
            The ranks.
        layout : Layout
            Of the roots, any process grid. Root arrays are this rank's parts, ravelled. Where copies exist, leaves take
            the nearest: this rank's own, or that of its row or column of the process grid.
        indices : sequence of int
            For each leaf the index of its root in the global array, in C order.
        leaves : sequence of int, optional
            As for the class.
        **options
            As for the class.

        Raises
        ------
        LayoutError
            On every rank, if there is no such element.
        """
        from collops.graph.patterns import owners

        checked_communicator(comm)
        places, error = None, None
        try:
            places = owners(layout, comm.rank, indices)
        except REFUSALS as problem:
            error = problem
        comm.check(error)
        assert places is not None
        return cls(comm, layout.local_size(comm.rank), leaves, *places, **options)

    def with_wire(self, wire: str) -> StarForest:
        """Return the same forest on another wire. Sends nothing; collective, as every making of a forest."""
        check_name(wire)
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.wire = wire
        other._tag = self.comm.next_plan_tag()
        other._channels, other._movings, other._checked, other._multi = {}, {}, {}, None
        return other

    def free(self) -> None:
        """Give back what wires keep in MPI; the forest can still be used, and takes it again. Collective."""
        if self._multi is not None:
            self._multi.free()
        for channel in self._channels.values():
            if channel is not None:
                channel.free()
        self._channels.clear()
        self._movings.clear()
        self._checked.clear()

    def __enter__(self) -> StarForest:
        return self

    def __exit__(self, kind: Any, *details: Any) -> None:
        if kind is None:
            self.free()

    # Movers

    def bcast(self, roots: Any, leaves: Any = None, op: str = "replace") -> Any:
        """Give every leaf the value of its root. Collective: one neighbour exchange.

        Parameters
        ----------
        roots : array
            Shape ``(nroots, *block)``.
        leaves : array, optional
            Shape ``(at least leaf_space, *block)``, contiguous; gets the result. By default zeros.
        op : str
            How the value is combined with the leaf's own: ``replace, sum, prod, min, max, land, lor, lxor``.

        Returns
        -------
        array
            The leaves.

        Raises
        ------
        LayoutError
            If shapes do not fit.
        UnsupportedTypeError
            If dtypes or engines differ, or `op` has no meaning for the dtype.
        """
        moving, roots, leaves = self._down(roots, leaves, op)
        return moving.move(roots, leaves)

    def start_bcast(self, roots: Any, leaves: Any = None, op: str = "replace") -> UnderWay:
        """Start a :meth:`bcast`; the result is there after :meth:`UnderWay.finish`. Collective."""
        moving, roots, leaves = self._down(roots, leaves, op)
        return moving.start(roots, leaves)

    def reduce(self, leaves: Any, roots: Any, op: str = "sum") -> Any:
        """Combine every root with the values of its leaves. Collective: one neighbour exchange.

        Parameters
        ----------
        leaves : array
            Shape ``(at least leaf_space, *block)``.
        roots : array
            Shape ``(nroots, *block)``, contiguous; values are combined with what is there. With ``"replace"`` a root
            gets the last of its leaves in the order that the class describes.
        op : str
            As for :meth:`bcast`.

        Returns
        -------
        array
            The roots.

        Raises
        ------
        LayoutError, UnsupportedTypeError
            As for :meth:`bcast`.
        """
        moving, leaves = self._up(leaves, roots, op)
        return moving.move(leaves, roots)

    def start_reduce(self, leaves: Any, roots: Any, op: str = "sum") -> UnderWay:
        """Start a :meth:`reduce`; the result is there after :meth:`UnderWay.finish`. Collective."""
        moving, leaves = self._up(leaves, roots, op)
        return moving.start(leaves, roots)

    def fetch_and_op(self, roots: Any, leaves: Any, fetched: Any = None, op: str = "sum") -> Any:
        """Combine roots with their leaves one after the other; each leaf gets what its root had just before.

        Collective: two neighbour exchanges. The order is that of sums, see the class.

        Parameters
        ----------
        roots : array
            Shape ``(nroots, *block)``, contiguous; changed as by :meth:`reduce`.
        leaves : array
            Shape ``(at least leaf_space, *block)``.
        fetched : array, optional
            Like `leaves`, contiguous; gets the result. By default zeros.
        op : str
            As for :meth:`bcast`; ``"replace"`` hands values on from leaf to leaf.

        Returns
        -------
        array
            What was fetched.
        """
        return self.start_fetch_and_op(roots, leaves, fetched, op).finish()

    def start_fetch_and_op(self, roots: Any, leaves: Any, fetched: Any = None, op: str = "sum") -> UnderWayFetch:
        """Start a :meth:`fetch_and_op`. All ranks finish those of one forest in the same order. Collective."""
        engine = engine_of(leaves)
        if not engine.keeps:
            raise UnsupportedTypeError(f"fetch_and_op writes to its arrays, which those of {engine.name} do not allow")
        check_alike(leaves, roots, engine, engine_of(roots))
        leaves = flat_points(leaves, engine, self.leaf_space, False, "leaves", False)
        flat_points(roots, engine, self.nroots, True, "roots", True)
        if fetched is None:
            fetched = engine.xp.zeros(leaves.shape, leaves.dtype)
        else:
            check_alike(leaves, fetched, engine, engine_of(fetched))
            flat_points(fetched, engine, self.leaf_space, False, "fetched", True)
        key = ("fetch", op, leaves.dtype, leaves.shape[1:], engine)
        fetching = self._movings.get(key)
        if fetching is None:
            block, dtype = leaves.shape[1:], leaves.dtype
            up = self._channel(False, block, dtype, engine)
            down = self._channel(True, block, dtype, engine)
            fetching = self._movings[key] = Fetching(self.plan, op, block, dtype, engine, up, down)
        return fetching.start(roots, leaves, fetched)

    def gather(self, leaves: Any, multi_roots: Any = None) -> Any:
        """Collect the leaves of every root, side by side, in the order of ranks and then of leaves. Collective.

        Parameters
        ----------
        leaves : array
            Shape ``(at least leaf_space, *block)``.
        multi_roots : array, optional
            Shape ``(sum of degrees, *block)``, contiguous; gets the result: the leaves of root 0, those of root 1, ...

        Returns
        -------
        array
            The collected values.
        """
        return self.start_gather(leaves, multi_roots).finish()

    def start_gather(self, leaves: Any, multi_roots: Any = None) -> UnderWay:
        """Start a :meth:`gather`. Collective."""
        multi = self.multi
        if multi_roots is None:
            multi_roots = engine_of(leaves).xp.empty((multi.nroots, *leaves.shape[1:]), leaves.dtype)
        return multi.start_reduce(leaves, multi_roots, "replace")

    def scatter(self, multi_roots: Any, leaves: Any = None) -> Any:
        """Give every leaf its own value of what :meth:`gather` collects. Collective."""
        return self.multi.bcast(multi_roots, leaves)

    def start_scatter(self, multi_roots: Any, leaves: Any = None) -> UnderWay:
        """Start a :meth:`scatter`. Collective."""
        return self.multi.start_bcast(multi_roots, leaves)

    # What follows from the graph

    def degrees(self) -> np.ndarray:
        """Return the number of leaves of each of this rank's roots, 64-bit. Sends nothing."""
        plan = self.plan
        return np.bincount(plan.roots.points.points, minlength=self.nroots) + np.bincount(
            plan.local_roots.points, minlength=self.nroots
        )

    @property
    def multi(self) -> StarForest:
        """The forest in which every leaf has a root of its own, see :meth:`gather`. Collective at its first use."""
        if self._multi is None:
            from collops.graph.algebra import multi_forest

            self._multi = multi_forest(self)
        return self._multi

    @property
    def on_stream(self) -> bool:
        """Whether movers of device arrays never hold the host, so that a CUDA graph can record them."""
        if not self.plan.most_points or self.wire in ("nccl", "symmetric"):
            return True
        return self.wire in ("auto", "own") and self.comm.device_transport == "nccl"

    def __repr__(self) -> str:
        return (
            f"<StarForest rank {self.comm.rank} of {self.comm.size}: {self.nroots} roots, {self.nleaves} leaves, "
            f"wire {self.wire}>"
        )

    # How it is done

    def _down(self, roots: Any, leaves: Any, op: str) -> tuple[Moving | TracedMoving, Any, Any]:
        """Return what moves these roots to these leaves, and both."""
        known = self._seen(True, op, roots, leaves)
        if known is not None:
            return known, roots, leaves
        engine = engine_of(roots)
        given = flat_points(roots, engine, self.nroots, True, "roots", False)
        if leaves is None:
            leaves = engine.xp.zeros((self.leaf_space, *given.shape[1:]), given.dtype)
        else:
            check_alike(given, leaves, engine, engine_of(leaves))
            flat_points(leaves, engine, self.leaf_space, False, "leaves", True)
        return self._moving(True, op, given, leaves, engine), given, leaves

    def _up(self, leaves: Any, roots: Any, op: str) -> tuple[Moving | TracedMoving, Any]:
        """Return what moves these leaves to these roots, and the leaves."""
        known = self._seen(False, op, leaves, roots)
        if known is not None:
            return known, leaves
        engine = engine_of(leaves)
        check_alike(leaves, roots, engine, engine_of(roots))
        given = flat_points(leaves, engine, self.leaf_space, False, "leaves", False)
        flat_points(roots, engine, self.nroots, True, "roots", True)
        return self._moving(False, op, given, roots, engine), given

    def _seen(self, down: bool, op: str, source: Any, target: Any) -> Moving | None:
        """Return the mover of arrays such as have passed all checks before; small messages cannot wait for more."""
        if target is None:
            return None
        try:
            moving = self._checked.get((down, op, _signature(source), _signature(target)))
        except AttributeError:
            return None  # no arrays, which the checks say better
        return moving if moving and source.flags.c_contiguous and target.flags.c_contiguous else None

    def _moving(self, down: bool, op: str, source: Any, target: Any, engine: Engine) -> Moving | TracedMoving:
        moving = self._moving_of(down, op, source, engine)
        if not engine.keeps:
            return moving  # nothing is gained by knowing arrays that a compiler has seen
        if len(self._checked) >= _MOST_CHECKED:
            self._checked.clear()
        self._checked[down, op, _signature(source), _signature(target)] = moving
        return moving

    def _moving_of(self, down: bool, op: str, source: Any, engine: Engine) -> Moving | TracedMoving:
        key = (down, op, source.dtype, source.shape[1:], engine)
        moving = self._movings.get(key)
        if moving is None and not engine.keeps:
            moving = self._movings[key] = TracedMoving(self.comm, self.plan, down, op)
        if moving is None:
            block, dtype = source.shape[1:], source.dtype
            channel = self._channel(down, block, dtype, engine)
            moving = self._movings[key] = Moving(self.plan, down, op, block, dtype, engine, channel, self.deterministic)
        return moving

    def _channel(self, down: bool, block: tuple[int, ...], dtype: Any, engine: Engine) -> Channel | None:
        """Return the channel for one direction and kind of values. Collective where it is new."""
        width = int(np.prod(block, dtype=np.int64))
        if not self.plan.most_points or not width:
            return None
        key = (down, width, dtype, engine)
        if key not in self._channels:
            nbytes = self.plan.most_points * width * dtype.itemsize
            wire = wire_for(self.comm, self.wire, engine, nbytes)
            channel = wire.channel(self._routes(down), _flat(width), dtype, engine, self._tag)
            way = "roots to leaves" if down else "leaves to roots"
            self._channels[key] = agreed(channel, self.comm, way=way, forest=self._tag, values=width, dtype=str(dtype))
        return self._channels[key]

    def _routes(self, down: bool) -> Routes:
        roots, leaves = self.plan.roots, self.plan.leaves
        return Routes.between(roots, leaves) if down else Routes.between(leaves, roots)

    def move_once(self, down: bool, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Move host arrays without keeping anything for a next time: for making forests of forests. Collective."""
        dtype, block = source.dtype, source.shape[1:]
        width = int(np.prod(block, dtype=np.int64))
        channel = None
        engine = engine_of(source)
        if self.plan.most_points:
            channel = OwnWire(self.comm).channel(self._routes(down), _flat(width), dtype, engine, self._tag)
        moving = Moving(self.plan, down, "replace", block, dtype, engine, channel, True)
        return moving.start(source, target).finish()


def _signature(array: Any) -> tuple[Any, ...]:
    return type(array), array.dtype, array.shape


def _flat(width: int) -> tuple[int, ...]:
    return () if width == 1 else (width,)
