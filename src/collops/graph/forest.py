"""The star forest: which leaf on which rank belongs to which root."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from collops.backend import repeatable
from collops.comm.given import checked_communicator
from collops.errors import REFUSALS, LayoutError
from collops.graph.derived import Derived
from collops.graph.edges import Edges
from collops.graph.movers import Movers
from collops.graph.plan import Plan, plan_of
from collops.graph.wires.choice import check_name

if TYPE_CHECKING:
    from collops.array import Layout
    from collops.comm import Communicator

__all__ = ["StarForest"]


class StarForest(Movers, Derived):
    """Stars between ranks: each has a root, which one rank owns, and any number of leaves, each on any rank.

    *Points* are the rows of arrays along their first axis; further axes are the values of a point. Root arrays have
    ``nroots`` points, leaf arrays at least ``leaf_space``. Movers take plain local arrays of NumPy, CuPy or JAX, of one
    dtype and engine on all ranks, and send one message to each rank that needs any. All of them are collective. Source
    and target may share memory, as points beside their ghosts do, unless a point is both read and written. Arrays of
    JAX stay as they are, and the result is a new one (its variables are written to); every mover can be traced: in
    ``jit``, in derivatives (the transpose of ``bcast`` is ``reduce`` with ``"sum"``), and under ``vmap``.

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
            On every rank, if there is no such element, or the layout is one of other ranks.
        """
        from collops.graph.patterns import owners

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

    def __repr__(self) -> str:
        return (
            f"<StarForest rank {self.comm.rank} of {self.comm.size}: {self.nroots} roots, {self.nleaves} leaves, "
            f"wire {self.wire}>"
        )
