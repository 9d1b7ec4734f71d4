"""The movers of a star forest: checked and prepared once for each kind of array, then one dictionary look-up a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from collops.backend import Engine, engine_of
from collops.graph.moving import Fetching, Moving, UnderWay, UnderWayFetch, check_alike, flat_points
from collops.graph.wires.choice import wire_for
from collops.graph.wires.own import OwnWire
from collops.graph.wires.traced import TracedChannel
from collops.graph.wires.wire import Channel, Routes, rank_consistent

if TYPE_CHECKING:
    from collops.comm import Communicator
    from collops.graph.forest import StarForest
    from collops.graph.plan import Plan

__all__ = ["Movers"]

_MOST_CHECKED = 64  # kinds of arrays


class Movers:
    """The part of :class:`collops.StarForest` that moves values."""

    comm: Communicator
    plan: Plan
    nroots: int
    leaf_space: int
    wire: str
    deterministic: bool
    _tag: int
    _multi: StarForest | None

    def _prepare_nothing(self) -> None:
        """Begin, or begin anew, without channels and prepared movers."""
        self._channels: dict[Any, Channel | None] = {}
        self._movings: dict[Any, Any] = {}
        self._checked: dict[Any, Any] = {}
        self._multi = None

    def bcast(self, roots: Any, leaves: Any = None, op: str = "replace") -> Any:
        """Give every leaf the value of its root. Collective: one neighbour exchange.

        Parameters
        ----------
        roots : array
            Shape ``(nroots, *block)``.
        leaves : array, optional
            Shape ``(at least leaf_space, *block)``, contiguous; gets the result. By default zeros.
        op : str
            How a value is combined with the leaf's own: ``replace, sum, prod, min, max, land, lor, lxor``.

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
        moving = self._seen(True, op, roots, leaves)
        if moving is None:
            moving, roots, leaves = self._down(roots, leaves, op)
        return moving.move(roots, leaves)

    def start_bcast(self, roots: Any, leaves: Any = None, op: str = "replace") -> UnderWay:
        """Start a :meth:`bcast`, whose result :meth:`UnderWay.finish` returns. Collective."""
        moving = self._seen(True, op, roots, leaves)
        if moving is None:
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
        moving = self._seen(False, op, leaves, roots)
        if moving is None:
            moving, leaves = self._up(leaves, roots, op)
        return moving.move(leaves, roots)

    def start_reduce(self, leaves: Any, roots: Any, op: str = "sum") -> UnderWay:
        """Start a :meth:`reduce`, whose result :meth:`UnderWay.finish` returns. Collective."""
        moving = self._seen(False, op, leaves, roots)
        if moving is None:
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
            The fetched values; of JAX arrays, whose roots cannot be written to, a pair: these and new roots.

        Raises
        ------
        LayoutError, UnsupportedTypeError
            As for :meth:`bcast`.
        """
        return self.start_fetch_and_op(roots, leaves, fetched, op).finish()

    def start_fetch_and_op(self, roots: Any, leaves: Any, fetched: Any = None, op: str = "sum") -> UnderWayFetch:
        """Start a :meth:`fetch_and_op`. All ranks finish those of one forest in the same order. Collective."""
        engine = engine_of(leaves)
        check_alike(leaves, roots, engine, engine_of(roots))
        leaves = flat_points(leaves, engine, self.leaf_space, False, "leaves", False)
        flat_points(roots, engine, self.nroots, True, "roots", True)
        if fetched is None:
            fetched = engine.xp.zeros(leaves.shape, leaves.dtype)
        else:
            check_alike(leaves, fetched, engine, engine_of(fetched))
            flat_points(fetched, engine, self.leaf_space, False, "fetched", True)
        return self._fetching(op, leaves.shape[1:], leaves.dtype, engine).start(roots, leaves, fetched)

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
        """Give every leaf its own one of the values that :meth:`gather` collects. Collective."""
        return self.multi.bcast(multi_roots, leaves)

    def start_scatter(self, multi_roots: Any, leaves: Any = None) -> UnderWay:
        """Start a :meth:`scatter`. Collective."""
        return self.multi.start_bcast(multi_roots, leaves)

    @property
    def multi(self) -> StarForest:
        """The forest in which every leaf has a root of its own, see :meth:`gather`. Collective at its first use."""
        if self._multi is None:
            from collops.graph.algebra import multi_forest

            self._multi = multi_forest(self)  # pyright: ignore[reportArgumentType] - of which this is a part
        return self._multi

    def free(self) -> None:
        """Free the resources that wires hold in MPI; they are made again when the forest is used again. Collective."""
        if self._multi is not None:
            self._multi.free()
        for channel in self._channels.values():
            if channel is not None:
                channel.free()
        self._channels.clear()
        self._movings.clear()
        self._checked.clear()

    def _down(self, roots: Any, leaves: Any, op: str) -> tuple[Moving, Any, Any]:
        """Return the mover of these roots to these leaves, and both."""
        engine = engine_of(roots)
        given = flat_points(roots, engine, self.nroots, True, "roots", False)
        if leaves is None:
            leaves = engine.xp.zeros((self.leaf_space, *given.shape[1:]), given.dtype)
        else:
            check_alike(given, leaves, engine, engine_of(leaves))
            flat_points(leaves, engine, self.leaf_space, False, "leaves", True)
        return self._moving(True, op, given, leaves, engine), given, leaves

    def _up(self, leaves: Any, roots: Any, op: str) -> tuple[Moving, Any]:
        """Return the mover of these leaves to these roots, and the leaves."""
        engine = engine_of(leaves)
        check_alike(leaves, roots, engine, engine_of(roots))
        given = flat_points(leaves, engine, self.leaf_space, False, "leaves", False)
        flat_points(roots, engine, self.nroots, True, "roots", True)
        return self._moving(False, op, given, roots, engine), given

    def _seen(self, down: bool, op: str, source: Any, target: Any) -> Moving | None:
        """Return the mover of arrays like ones that have passed all checks; more would delay small messages."""
        if target is None:
            return None
        try:
            kind = down, op, type(source), source.dtype, source.shape, type(target), target.dtype, target.shape
            moving = self._checked.get(kind)
        except AttributeError:
            return None  # no arrays; the checks raise a better error
        return moving if moving and source.flags.c_contiguous and target.flags.c_contiguous else None

    def _moving(self, down: bool, op: str, source: Any, target: Any, engine: Engine) -> Moving:
        block, dtype = source.shape[1:], source.dtype
        key = (down, op, dtype, block, engine)
        moving = self._movings.get(key)
        if moving is None:
            channel = self._channel(down, block, dtype, engine)
            moving = self._movings[key] = Moving(self.plan, down, op, block, dtype, engine, channel, self.deterministic)
        if engine.mutable:
            if len(self._checked) >= _MOST_CHECKED:
                self._checked.clear()
            kind = down, op, type(source), dtype, source.shape, type(target), target.dtype, target.shape
            self._checked[kind] = moving
        return moving

    def _fetching(self, op: str, block: tuple[int, ...], dtype: Any, engine: Engine) -> Fetching:
        key = ("fetch", op, dtype, block, engine)
        if key not in self._movings:
            up, down = (self._channel(way, block, dtype, engine) for way in (False, True))
            self._movings[key] = Fetching(self.plan, op, block, dtype, engine, up, down)
        return self._movings[key]

    def _channel(self, down: bool, block: tuple[int, ...], dtype: Any, engine: Engine) -> Channel | None:
        """Return the channel for one direction and kind of values. Collective where it is new."""
        width = int(np.prod(block, dtype=np.int64))
        if not self.plan.most_points or not width:
            return None
        if engine.traced:
            return TracedChannel(self.comm, self._routes(down))
        key = (down, width, dtype, engine)
        if key not in self._channels:
            nbytes = self.plan.most_points * width * dtype.itemsize
            wire = wire_for(self.comm, self.wire, engine, nbytes)
            channel = wire.channel(self._routes(down), _flat(width), dtype, engine, self._tag)
            way = "roots to leaves" if down else "leaves to roots"
            facts = {"way": way, "forest": self._tag, "values": width, "dtype": str(dtype)}
            self._channels[key] = rank_consistent(channel, self.comm, **facts)
        return self._channels[key]

    def _routes(self, down: bool) -> Routes:
        roots, leaves = self.plan.roots, self.plan.leaves
        return Routes.between(roots, leaves) if down else Routes.between(leaves, roots)

    def move_once(self, down: bool, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Move host arrays once, keeping nothing: for making forests of forests. Collective."""
        dtype, block = source.dtype, source.shape[1:]
        width = int(np.prod(block, dtype=np.int64))
        channel = None
        engine = engine_of(source)
        if self.plan.most_points:
            channel = OwnWire(self.comm).channel(self._routes(down), _flat(width), dtype, engine, self._tag)
        moving = Moving(self.plan, down, "replace", block, dtype, engine, channel, True)
        return moving.start(source, target).finish()


def _flat(width: int) -> tuple[int, ...]:
    return () if width == 1 else (width,)
