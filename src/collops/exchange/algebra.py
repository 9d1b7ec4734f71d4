"""Methods of StarForest that derive forests from forests; ranks exchange edges along the edges of the forests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from collops.comm.agreement import collective_errors
from collops.errors import LayoutError, UnsupportedTypeError
from collops.exchange.indices import as_count, as_indices
from collops.exchange.pattern import edges_by_rank

if TYPE_CHECKING:
    from collops.exchange.forest import StarForest

_NOBODY = -1


def edges_of_roots(forest: StarForest) -> tuple[np.ndarray, np.ndarray]:
    """Return the root and the multi-root of each edge with a root on this rank, in the order of summation."""
    pattern, comm = forest.pattern, forest.comm
    away = np.repeat(np.arange(comm.size), pattern.sends.counts(comm.size))
    roots = np.concatenate([pattern.local_sources.points, pattern.sends.points.points])
    ranks = np.concatenate([np.full(pattern.local_sources.size, comm.rank), away])
    multi = np.empty(len(roots), np.int64)
    multi[np.lexsort((ranks, roots))] = np.arange(len(roots))
    return roots, multi


def multi_forest(forest: StarForest) -> StarForest:
    """Return the forest in which every leaf has a root of its own. Collective."""
    pattern, comm = forest.pattern, forest.comm
    _, multi = edges_of_roots(forest)
    indices = np.empty(forest.nleaves, np.int64)
    local, remote = edges_by_rank(forest.remote_ranks, comm.rank)
    indices[local] = multi[: len(local)]
    send_counts, recv_counts = (side.counts(comm.size) for side in (pattern.sends, pattern.receives))
    indices[remote] = comm.alltoallv(multi[len(local) :], send_counts, recv_counts)
    return _like(forest, len(multi), forest.leaves, forest.remote_ranks, indices)


def inverse(forest: StarForest) -> StarForest:
    """Return the forest with roots and leaves exchanged; its leaf arrays are this one's root arrays. Collective.

    Raises
    ------
    LayoutError
        On every rank, if a root has more than one leaf.
    """
    _check_single(forest, "the inverse of a forest")
    points = np.arange(forest.leaf_space)
    known = np.stack([np.full_like(points, forest.comm.rank), points], axis=1)
    return _through(forest, forest.leaf_space, forest, False, known)


def compose(forest: StarForest, other: StarForest) -> StarForest:
    """Return the forest from this one's roots to `other`'s leaves; `other`'s roots are our leaf array. Collective.

    ``f.compose(g).bcast(x)`` is ``g.bcast(f.bcast(x))`` at the leaves of `other` whose root is a leaf of this forest.

    Raises
    ------
    LayoutError
        On every rank, if `other` has fewer roots than this forest's ``leaf_space``, or another communicator.
    """
    _check_together(forest, other)
    with collective_errors(forest.comm):
        if other.nroots < forest.leaf_space:
            raise LayoutError(
                f"the second forest has {other.nroots} roots for a leaf array of {forest.leaf_space} points"
            )
    return _through(forest, forest.nroots, other, True, _roots_of_leaves(forest, other.nroots))


def compose_inverse(forest: StarForest, other: StarForest) -> StarForest:
    """Return the forest from this one's roots to `other`'s roots, along leaves that both have. Collective.

    Raises
    ------
    LayoutError
        On every rank, if a root of `other` has more than one leaf.
    """
    _check_together(forest, other)
    _check_single(other, "the second forest of compose_inverse")
    points = max(forest.leaf_space, other.leaf_space)
    return _through(forest, forest.nroots, other, False, _roots_of_leaves(forest, points))


def embed_roots(forest: StarForest, selected: Sequence[int] | np.ndarray) -> StarForest:
    """Return the forest with the leaves of the selected roots of this rank only; indices are unchanged. Collective."""
    chosen = _chosen(forest, selected, forest.nroots, "root")
    reached = np.zeros(forest.leaf_space, np.int8)
    forest.move_once(True, chosen, reached)
    return _part(forest, reached[forest.leaves] != 0)


def embed_leaves(forest: StarForest, selected: Sequence[int] | np.ndarray) -> StarForest:
    """Return the forest with the selected leaves of this rank only (points of the leaf array). Collective."""
    chosen = _chosen(forest, selected, forest.leaf_space, "leaf")
    return _part(forest, chosen[forest.leaves] != 0)


def strided(
    forest: StarForest, block: int, *, root_stride: int | None = None, leaf_stride: int | None = None
) -> StarForest:
    """Return the forest of `block` values for each point. Collective.

    Parameters
    ----------
    block : int
        Values of a point.
    root_stride, leaf_stride : int, optional
        Distance between the values of a point: value *j* of point *i* is ``i + j * stride``. By default they are
        adjacent: ``i * block + j``.

    Raises
    ------
    LayoutError
        On every rank, if a stride is shorter than the array of points.
    """
    comm = forest.comm
    with collective_errors(comm):
        as_count(block, "values of a point")
        for stride, points, what in ((root_stride, forest.nroots, "root"), (leaf_stride, forest.leaf_space, "leaf")):
            if stride is not None and as_count(stride, f"points in a {what} stride") < points:
                raise LayoutError(f"a {what} stride of {stride} is shorter than the array of {points} points")
            as_count(block * (points if stride is None else stride), f"{what} values")
    strides = comm.allgather(np.array(_NOBODY if root_stride is None else root_stride, np.int64))
    values = np.arange(block)

    def expanded(points: np.ndarray, stride: int | np.ndarray) -> np.ndarray:
        strides = np.broadcast_to(stride, points.shape)[:, None]
        adjacent, by_stride = points[:, None] * block + values, points[:, None] + values * strides
        return np.where(strides == _NOBODY, adjacent, by_stride).reshape(-1)

    nroots = forest.nroots * block
    if root_stride is not None and block:
        nroots = root_stride * (block - 1) + forest.nroots
    return _like(
        forest,
        nroots,
        expanded(forest.leaves, _NOBODY if leaf_stride is None else leaf_stride),
        np.repeat(forest.remote_ranks, block),
        expanded(forest.remote_indices, strides[forest.remote_ranks]),
    )


def concatenate(
    forests: Sequence[StarForest], *, shared_roots: bool = False, leaf_offsets: Sequence[int] | None = None
) -> StarForest:
    """Return several forests as one. Collective.

    Parameters
    ----------
    forests : sequence of StarForest
        Forests on the same communicator.
    shared_roots : bool
        Whether they have the same roots; otherwise the roots of each rank are concatenated.
    leaf_offsets : sequence of int, optional
        Offset of the leaf array of each forest; by default leaf arrays are concatenated.

    Raises
    ------
    LayoutError
        On every rank, if the forests are incompatible, or leaves coincide.
    """
    if not forests:
        raise LayoutError("concatenate needs at least one forest")
    for forest in forests:
        _check_together(forests[0], forest)
    comm = forests[0].comm
    counts = np.array([forest.nroots for forest in forests])
    with collective_errors(comm):
        if shared_roots and (counts != counts[0]).any():
            raise LayoutError(f"forests with shared roots must have the same number of roots, not {counts.tolist()}")
        offsets = np.cumsum([0, *(forest.leaf_space for forest in forests[:-1])])
        if leaf_offsets is not None:
            offsets = as_indices(leaf_offsets, "leaf_offsets")
        if len(offsets) != len(forests):
            raise LayoutError(f"{len(forests)} forests need as many leaf_offsets, not {len(offsets)}")
    # Offsets of the roots of each forest on each rank.
    starts = np.zeros_like(counts) if shared_roots else np.cumsum(counts) - counts
    begin = comm.allgather(starts)
    edges = [
        (forest.leaves + offset, forest.remote_ranks, forest.remote_indices + begin[forest.remote_ranks, number])
        for number, (forest, offset) in enumerate(zip(forests, offsets, strict=True))
    ]
    nroots = int(counts[0] if shared_roots else counts.sum())
    return _like(forests[0], nroots, *map(np.concatenate, zip(*edges, strict=True)))


def distribute(forest: StarForest, counts: Sequence[int] | np.ndarray) -> tuple[StarForest, np.ndarray]:
    """Return the forest of values of roots with a variable number of values each. Collective.

    Parameters
    ----------
    counts : sequence of int
        Number of values of each of this rank's roots. Values are stored consecutively.

    Returns
    -------
    forest : StarForest
        The forest of the values.
    counts : numpy.ndarray
        Number of values of each point of this rank's leaf array, 0 except at leaves; stored consecutively as well.

    Raises
    ------
    LayoutError
        On every rank, if there is not one non-negative count for each root.
    """
    with collective_errors(forest.comm):
        sizes = as_indices(counts, "counts")
        if len(sizes) != forest.nroots or sizes.min(initial=0) < 0:
            raise LayoutError(f"{forest.nroots} roots need as many non-negative counts, not {counts!r}")
    begin = np.cumsum(sizes) - sizes
    received = np.zeros((forest.leaf_space, 2), np.int64)
    forest.move_once(True, np.stack([sizes, begin], axis=1), received)
    leaf_counts = received[:, 0].copy()
    leaf_offsets = np.cumsum(leaf_counts) - leaf_counts
    lengths = leaf_counts[forest.leaves]
    # Value j of leaf i is value j of its root.
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    values = _like(
        forest,
        int(sizes.sum()),
        np.repeat(leaf_offsets[forest.leaves], lengths) + within,
        np.repeat(forest.remote_ranks, lengths),
        np.repeat(received[forest.leaves, 1], lengths) + within,
    )
    return values, leaf_counts


def _like(forest: StarForest, nroots: int, *edges: np.ndarray) -> StarForest:
    options = {"transport": forest.transport, "deterministic": forest.deterministic}
    return type(forest)(forest.comm, nroots, *edges, **options)


def _part(forest: StarForest, edge_mask: np.ndarray) -> StarForest:
    edges = (forest.leaves[edge_mask], forest.remote_ranks[edge_mask], forest.remote_indices[edge_mask])
    return _like(forest, forest.nroots, *edges)


def _through(forest: StarForest, nroots: int, other: StarForest, down: bool, known: np.ndarray) -> StarForest:
    """Return the forest from the roots `known` at one end of `other` to the points of its other end."""
    received = np.full((other.leaf_space if down else other.nroots, 2), _NOBODY, np.int64)
    other.move_once(down, known, received)
    leaves = np.flatnonzero(received[:, 0] != _NOBODY)
    return _like(forest, nroots, leaves, *received[leaves].T)


def _roots_of_leaves(forest: StarForest, points: int) -> np.ndarray:
    """Return the rank and index of the root of each point of a leaf array that is a leaf."""
    known = np.full((points, 2), _NOBODY, np.int64)
    known[forest.leaves, 0] = forest.remote_ranks
    known[forest.leaves, 1] = forest.remote_indices
    return known


def _chosen(forest: StarForest, selected: Sequence[int] | np.ndarray, points: int, what: str) -> np.ndarray:
    """Return ones at the selected points. Collective."""
    chosen = np.zeros(points, np.int8)
    with collective_errors(forest.comm):
        chosen[as_indices(selected, f"the selected {what} numbers", what, points)] = 1
    return chosen


def _check_single(forest: StarForest, what: str) -> None:
    degrees = forest.degrees()
    with collective_errors(forest.comm):
        if degrees.max(initial=0) > 1:
            root = int(np.argmax(degrees))
            raise LayoutError(f"{what} needs roots with at most one leaf, but root {root} has {degrees[root]}")


def _check_together(first: StarForest, second: StarForest) -> None:
    for forest in (first, second):
        if not hasattr(forest, "remote_ranks"):
            raise UnsupportedTypeError(f"expected a star forest, not {type(forest).__qualname__}")
    if first.comm is not second.comm:
        raise LayoutError("forests must have the same communicator")
