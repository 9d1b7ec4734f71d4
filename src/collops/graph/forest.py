"""The star forest: which leaf on which rank belongs to which root."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from collops.backend import repeatable
from collops.comm.given import checked_communicator
from collops.errors import REFUSALS, LayoutError
from collops.graph.indices import as_count, as_indices
from collops.graph.movers import Movers
from collops.graph.plan import Plan, plan_of
from collops.graph.wires.choice import check_name

if TYPE_CHECKING:
    from collops.array import Layout
    from collops.comm import Communicator

__all__ = ["StarForest"]


class StarForest(Movers):
    """Stars between ranks: each has a root, which one rank owns, and any number of leaves, each on any rank.

    *Points* are the rows of arrays along their first axis; further axes are the values of a point. Root arrays have
    ``nroots`` points, leaf arrays at least ``leaf_space``. Movers take plain local arrays of NumPy, CuPy or JAX, of one
    dtype and engine on all ranks, and send one message to each rank that needs any. All of them are collective. Source
    and target may share memory, as points beside their ghosts do, unless a point is both read and written. JAX arrays
    cannot be written to: the result is a new array. Every mover can be traced: in ``jit``, in derivatives (the
    transpose of ``bcast`` is ``reduce`` with ``"sum"``), and under ``vmap``.

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
            edges = _Edges(comm, nroots, leaves, remote_ranks, remote_indices)
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
        self._prepare_nothing()

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
        from collops.graph.indices import edges_of

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
            On every rank, if there is no such element, or the layout is one of other ranks.
        """
        from collops.graph.indices import owners

        checked_communicator(comm)
        places, error = None, None
        try:
            if getattr(layout, "ranks", None) != comm.size:
                raise LayoutError(f"roots are in a layout of {comm.size} ranks, not in {layout!r}")
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
        other._prepare_nothing()
        return other

    def __enter__(self) -> StarForest:
        return self

    def __exit__(self, kind: Any, *details: Any) -> None:
        if kind is None:
            self.free()

    def degrees(self) -> np.ndarray:
        """Return the number of leaves of each of this rank's roots, 64-bit. Sends nothing."""
        plan = self.plan
        return np.bincount(plan.roots.points.points, minlength=self.nroots) + np.bincount(
            plan.local_roots.points, minlength=self.nroots
        )

    @property
    def on_stream(self) -> bool:
        """Whether movers of device arrays never hold the host, so that a CUDA graph can record them."""
        if not self.plan.most_points or self.wire in ("nccl", "symmetric"):
            return True
        return self.wire in ("auto", "own") and self.comm.device_transport == "nccl"

    # Forests made of forests

    def inverse(self) -> StarForest:
        """Return the forest with roots and leaves exchanged; its leaf arrays are this one's root arrays. Collective.

        Raises
        ------
        LayoutError
            On every rank, if a root has more than one leaf.
        """
        from collops.graph.algebra import inverse

        return inverse(self)

    def compose(self, other: StarForest) -> StarForest:
        """Return the forest from this one's roots to `other`'s leaves; `other`'s roots are our leaf array. Collective.

        ``f.compose(g).bcast(x)`` is ``g.bcast(f.bcast(x))`` at those leaves of `other` whose root is a leaf of this.

        Raises
        ------
        LayoutError
            On every rank, if `other` has fewer roots than this forest's ``leaf_space``, or other ranks.
        """
        from collops.graph.algebra import compose

        return compose(self, other)

    def compose_inverse(self, other: StarForest) -> StarForest:
        """Return the forest from this one's roots to `other`'s roots, along leaves that both have. Collective.

        Raises
        ------
        LayoutError
            On every rank, if a root of `other` has more than one leaf.
        """
        from collops.graph.algebra import compose_inverse

        return compose_inverse(self, other)

    def embed_roots(self, selected: Sequence[int] | np.ndarray) -> StarForest:
        """Return the forest with the leaves of these of this rank's roots only; numbers stay. Collective."""
        from collops.graph.algebra import embed_roots

        return embed_roots(self, selected)

    def embed_leaves(self, selected: Sequence[int] | np.ndarray) -> StarForest:
        """Return the forest with these of this rank's leaves only (points of the leaf array). Collective."""
        from collops.graph.algebra import embed_leaves

        return embed_leaves(self, selected)

    def strided(self, block: int, *, root_stride: int | None = None, leaf_stride: int | None = None) -> StarForest:
        """Return the forest of `block` values for each point. Collective.

        Parameters
        ----------
        block : int
            Values of a point.
        root_stride, leaf_stride : int, optional
            Distance between the values of a point: value *j* of point *i* is ``i + j * stride``. By default they lie
            side by side: ``i * block + j``.

        Raises
        ------
        LayoutError
            On every rank, if a stride is shorter than the array of points.
        """
        from collops.graph.algebra import strided

        return strided(self, block, root_stride, leaf_stride)

    @classmethod
    def concatenate(
        cls,
        forests: Sequence[StarForest],
        *,
        shared_roots: bool = False,
        leaf_offsets: Sequence[int] | None = None,
    ) -> StarForest:
        """Return several forests as one. Collective.

        Parameters
        ----------
        forests : sequence of StarForest
            On the same ranks.
        shared_roots : bool
            Whether they have the same roots; else each rank's roots follow each other.
        leaf_offsets : sequence of int, optional
            Where the leaf array of each begins; by default they follow each other.

        Raises
        ------
        LayoutError
            On every rank, if they do not fit together, or leaves fall on each other.
        """
        from collops.graph.algebra import concatenate

        return concatenate(forests, shared_roots, leaf_offsets)

    def distribute(self, counts: Sequence[int] | np.ndarray) -> tuple[StarForest, np.ndarray]:
        """Return the forest of values where every root has a number of them of its own. Collective.

        Parameters
        ----------
        counts : sequence of int
            Values of each of this rank's roots; they lie one after the other.

        Returns
        -------
        forest : StarForest
            Of the values.
        counts : numpy.ndarray
            Values of each point of this rank's leaf array, 0 where there is no leaf; they lie one after the other, too.

        Raises
        ------
        LayoutError
            On every rank, if there is not one non-negative count for each root.
        """
        from collops.graph.algebra import distribute

        return distribute(self, counts)

    def __repr__(self) -> str:
        return (
            f"<StarForest rank {self.comm.rank} of {self.comm.size}: {self.nroots} roots, {self.nleaves} leaves, "
            f"wire {self.wire}>"
        )


class _Edges:
    """The edges that end on a rank, checked as far as one rank can."""

    def __init__(self, comm: Communicator, nroots: Any, leaves: Any, ranks: Any, indices: Any) -> None:
        self._comm = comm
        self.nroots = as_count(nroots, "roots")
        ranks, indices = as_indices(ranks, "remote_ranks"), as_indices(indices, "remote_indices")
        leaves = np.arange(len(ranks), dtype=np.int64) if leaves is None else as_indices(leaves, "leaves")
        if not len(leaves) == len(ranks) == len(indices):
            raise LayoutError(
                f"{len(leaves)} leaves need as many roots, but there are {len(ranks)} remote_ranks "
                f"and {len(indices)} remote_indices"
            )
        if len(leaves):
            if leaves.min() < 0:
                raise LayoutError(f"leaf {leaves.min()} is negative")
            different, counts = np.unique(leaves, return_counts=True)
            if len(different) < len(leaves):
                raise LayoutError(f"leaf {different[np.argmax(counts)]} is used {counts.max()} times")
            wrong = ranks[(ranks < 0) | (ranks >= comm.size)]
            if len(wrong):
                raise LayoutError(f"a leaf has its root on rank {wrong[0]}, but there are {comm.size} ranks")
        self.arrays = leaves, ranks, indices

    def wrong_root(self, counts: np.ndarray) -> LayoutError | None:
        """Return what is wrong with the numbers of roots, given how many each rank has."""
        _, ranks, indices = self.arrays
        wrong = np.flatnonzero((indices < 0) | (indices >= counts[ranks]))
        if not len(wrong):
            return None
        first = wrong[0]
        return LayoutError(
            f"a leaf names root {indices[first]} of rank {ranks[first]}, which has {counts[ranks[first]]} roots"
        )
