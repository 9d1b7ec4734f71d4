"""Redistribution: move an array from one layout to another; gathering and scattering are special cases.

Only the overlaps of blocks are sent, which every rank works out by arithmetic.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from types import ModuleType

import numpy as np

from collops.array.dtypes import real_of, significant_bytes
from collops.array.layout import Block, Layout
from collops.array.operands import GlobalArray
from collops.array.plans import recent_plans
from collops.array.regions import Region, holders, transfers
from collops.backend import LocalArray, engine_of, is_traced
from collops.comm import Communicator
from collops.comm.agreement import raised_together
from collops.comm.call import Call
from collops.errors import LayoutError
from collops.exchange import Box, ExchangePlan
from collops.exchange.peer_copy import PeerCopy
from collops.profile import benchmark, messages

__all__ = ["Move", "agree_on_values", "compare_copies", "region_copy"]

_LARGE = 16 << 20  # bytes on a device: from here on, copying what stays takes longer than the events of a side stream


def moved(local: LocalArray, source: Layout, target: Layout, comm: Communicator) -> LocalArray:
    """Return this rank's part in `target` of the array whose part in `source` is `local`, as a copy. Collective."""
    engine = engine_of(local)
    xp = engine.xp
    if comm.size == 1:
        return _moved(source, target, comm, xp, local)
    # The adjoint is the redistribution back: copies on several ranks are one value, and so is its cotangent.
    # The program of one rank does not show that.
    forward, backward = (partial(_moved, *layouts, comm, xp) for layouts in ((source, target), (target, source)))
    return engine.linear_map(forward, backward, local, target.local_shape(comm.rank))


def _moved(source: Layout, target: Layout, comm: Communicator, xp: ModuleType, local: LocalArray) -> LocalArray:
    return _plan(comm, source, target)(local, xp.empty(target.local_shape(comm.rank), local.dtype))


class Move:
    """A redistribution of local arrays from one layout to another, worked out once. Collective: all ranks make it.

    ``sends`` tells whether any rank needs something from another, and ``box`` is the part of its array that this rank
    then keeps, as slices; ``None`` where messages are sent.
    """

    __slots__ = ("_comm", "_counts", "_layouts", "_plan", "box", "sends")

    def __init__(self, source: Layout, target: Layout, comm: Communicator) -> None:
        self._comm = comm
        self._plan = _plan(comm, source, target)
        self.sends = self._plan.travels
        self.box = None if self.sends else _inside(source.block(comm.rank), target.block(comm.rank))
        # Parts that follow each other in memory are gathered by one collective, without packing.
        in_rows = source.split_axes == (0,) and len(source.sizes[0]) == comm.size and target.is_replicated
        self._counts = source.sizes[0] if self.sends and in_rows else None
        self._layouts = source, target

    def __call__(self, local: LocalArray, out: LocalArray) -> LocalArray:
        """Return this rank's part in the target layout, in `out` if the engine is mutable. Collective."""
        engine = engine_of(local)
        if engine.traced:
            return self._moved(local) if self._counts is None else self._comm.allgatherv(local, self._counts)
        if self._counts is not None:
            return self._gathered(local, out, self._counts)
        # What stays here is copied while the messages travel.
        aside = engine.memory == "device" and local.nbytes >= _LARGE
        return self._plan.start(local, out, on_side_stream=aside).finish()

    @benchmark(label="communication")
    def _gathered(self, local: LocalArray, out: LocalArray, counts: tuple[int, ...]) -> LocalArray:
        """Gather the rows of all ranks, by the transport itself: all that the communicator checks is known to hold."""
        if not local.flags.c_contiguous or not out.flags.c_contiguous or local.dtype != out.dtype:
            return self._comm.allgatherv(local, counts, out=out)
        if messages.active:
            messages.record("allgatherv", local.size, local.nbytes)
        width = out.size // sum(counts)
        self._comm.begin(out).run(Call("allgatherv", local, out, counts=[rows * width for rows in counts]))
        return out

    def view(self, local: LocalArray) -> LocalArray | None:
        """Return this rank's part in the target layout without moving anything, or ``None`` where that cannot be."""
        if self.box is None:
            return None
        return self._moved(local) if engine_of(local).traced else local[self.box]

    def _moved(self, local: LocalArray) -> LocalArray:
        """Return this rank's part in the target layout, as a copy."""
        return moved(local, *self._layouts, self._comm)


def on_root(layout: Layout, root: int) -> Layout:
    """Return the layout of the same array with all elements on one rank."""
    sizes = [layout.shape[0] if rank == root else 0 for rank in range(layout.ranks)]
    return Layout.split(layout.shape, layout.ranks, sizes=sizes)


def check_copies(x: GlobalArray) -> None:
    """Raise on every rank unless ranks that hold the same block of the same group hold equal values. Collective."""
    digests = x.comm.allgather_metadata(_digest(x.local_array))
    first: dict[Hashable, int] = {}
    wrong = []
    for rank in range(x.comm.size):
        group = None if x.layout.mask is None else x.layout.mask[rank]
        model = first.setdefault((group, x.layout.offset(rank), x.layout.local_shape(rank)), rank)
        if digests[rank] != digests[model]:
            wrong.append(f"rank {rank} from rank {model}")
    if wrong:
        with raised_together():
            raise LayoutError(
                f"copies that should be equal in {x.layout} differ: {', '.join(wrong)}; send the values of one rank to "
                "all with comm.bcast(values), or make random numbers with collops.random or with one seed"
            )


def compare_copies(x: GlobalArray, *, groups: bool = False) -> None:
    """Compare the copies of an array that a program has filled, where ``COLLOPS_CHECK`` is on. Collective there.

    Copies within the groups of a mask are compared only if all `groups` make this call. Tracers of JAX have no values.
    """
    if x.comm.calls is None:
        return
    for leaf in x.leaves:
        layout = leaf.layout
        if layout.has_copies and (groups or layout.mask is None) and not is_traced(leaf.local_array):
            check_copies(leaf)


def agree_on_values(comm: Communicator, what: str, values: LocalArray) -> None:
    """Raise on every rank unless `values`, a plain array, is equal on all, where ``COLLOPS_CHECK`` is on.

    Collective there.
    """
    if comm.calls is not None and not is_traced(values):
        comm.agree(what, _digest(values))


def _digest(array: LocalArray) -> list[object]:
    """Return what arrays of equal values have in common: NaN is equal to NaN, and 0.0 to -0.0."""
    values = engine_of(array).to_host(array)
    numbers = np.ascontiguousarray(values).reshape(-1)
    if numbers.dtype.kind not in "biu":
        numbers = numbers.view(real_of(numbers.dtype))
        numbers = np.where(np.isnan(numbers), np.array(np.nan, numbers.dtype), numbers + np.zeros((), numbers.dtype))
    digest = hashlib.blake2b(significant_bytes(numbers), digest_size=16).hexdigest()
    return [digest, str(values.dtype), list(values.shape)]


@recent_plans
def _plan(comm: Communicator, source: Layout, target: Layout) -> ExchangePlan:
    """Return the plan that moves an array from `source` to `target`."""
    _check_groups(source, target)

    def regions(rank: int) -> list[Region]:
        return [_region(target, rank)]

    moves = transfers(source, comm.rank, regions)
    sends, receives = ([(peer, box) for peer, _, box in side] for side in moves[:2])
    return ExchangePlan(comm, sends, receives, kind="alltoallv", travels=moves.travels)


def _region(layout: Layout, rank: int) -> Region:
    return tuple((axis.start, axis.stop) for axis in layout.block(rank).slices)


def _check_groups(source: Layout, target: Layout) -> None:
    """Raise LayoutError if groups of ranks have values of their own, which the target layout would mix or lose.

    It keeps them if each group of the same mask holds the same elements, and no rank receives any from another group.
    """
    mask = source.mask
    if mask is None or not source.has_group_values:
        return

    def elements(layout: Layout) -> Counter[int]:
        chosen = filter(layout.representative, range(layout.ranks))
        return sum((Counter({mask[rank]: layout.local_size(rank)}) for rank in chosen), Counter())

    ranks = range(source.ranks)
    inside = all(mask[peer] == mask[rank] for rank in ranks for peer in holders(source, rank, _region(target, rank)))
    if target.mask != mask or not inside or elements(source) != elements(target):
        raise LayoutError(
            f"each group of ranks has values of its own in the layout {source}, which the layout {target} would mix: "
            "choose a layout with this mask in which each group keeps its elements, or make arrays on the communicator "
            "of each group (comm.split)"
        )


def region_copy(
    comm: Communicator,
    layout: Layout,
    regions_of: Callable[[int], list[Region]],
    begins: Sequence[int],
    itemsize: int,
    *,
    writes: bool,
) -> PeerCopy:
    """Return the copy of an array to regions of it in the memory of all ranks, or from there. Collective.

    Each rank wants one region, which begins at element `begins` of its memory. Every element of the array must be on
    one rank only, and to be read back in one region only.
    """
    sends = transfers(layout, comm.rank, regions_of).sends
    boxes = []
    for rank in range(comm.size):
        receives = [box for peer, _, box in transfers(layout, rank, regions_of).receives if peer == comm.rank]
        local = [box for peer, _, box in sends if peer == rank]
        boxes += [(rank, *pair) for pair in zip(receives, local, strict=True)]
    shapes = [tuple(stop - start for start, stop in regions_of(rank)[0]) for rank in range(comm.size)]
    return PeerCopy(comm, shapes, begins, boxes, itemsize, writes=writes)


def _inside(have: Block, need: Block) -> Box | None:
    """Return the slices of one block that are another; ``None`` unless it contains it."""
    pairs = list(zip(have.slices, need.slices, strict=True))
    if any(n.start < h.start or n.stop > h.stop for h, n in pairs):
        return None
    return tuple(slice(n.start - h.start, n.stop - h.start) for h, n in pairs)
