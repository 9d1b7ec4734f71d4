"""What star forests do, in plain loops over the edges of all ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

COMBINE = {
    "replace": lambda old, new: new,
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
}


def operations(dtype) -> tuple[str, ...]:
    kind = np.dtype(dtype).kind
    if kind == "c":
        return ("replace", "sum", "prod")
    return ("replace", "sum", "prod", "min", "max") + (("land", "lor", "lxor") if kind in "biu" else ())


@dataclass
class Graph:
    """The edges of all ranks: each one's number of roots, leaves, and the ranks and numbers of their roots."""

    nroots: list[int]
    leaves: list[np.ndarray]
    ranks: list[np.ndarray]
    indices: list[np.ndarray]

    @classmethod
    def drawn(cls, rng, size, most_roots=6, most_leaves=9) -> Graph:
        """Any graph, with isolated roots, ranks without roots or leaves, and runs, strides and repetitions at times."""
        nroots = [int(rng.integers(0, most_roots + 1)) for _ in range(size)]
        owners = [rank for rank in range(size) if nroots[rank]]
        leaves, ranks, indices = [], [], []
        for _ in range(size):
            count = int(rng.integers(0, most_leaves + 1)) if owners else 0
            space = count + int(rng.integers(0, 4))
            leaves.append(
                [np.arange(count), np.arange(space)[:count][::-1], rng.permutation(space)[:count]][rng.integers(3)]
            )
            style = rng.integers(3)
            if style == 0:
                chosen = rng.choice(owners, count) if count else np.empty(0, int)
            else:
                chosen = np.sort(rng.choice(owners, count)) if count else np.empty(0, int)
            ranks.append(chosen)
            if style == 1:  # a run at each owner, as long as there are roots
                numbers = np.array(
                    [np.count_nonzero(chosen[:at] == rank) % nroots[rank] for at, rank in enumerate(chosen)]
                )
            else:
                numbers = np.array([rng.integers(nroots[rank]) for rank in chosen])
            indices.append(numbers.astype(int))
        return cls(nroots, leaves, ranks, indices)

    @property
    def size(self) -> int:
        return len(self.nroots)

    def space(self, rank) -> int:
        return int(self.leaves[rank].max(initial=-1)) + 1

    def edges(self, owner=None):
        """Edges as (rank of the leaf, leaf, rank of the root, root), in the documented order at each owner."""
        owners = range(self.size) if owner is None else [owner]
        for root_rank in owners:
            for rank in [root_rank, *(r for r in range(self.size) if r != root_rank)]:
                for leaf, at, root in zip(self.leaves[rank], self.ranks[rank], self.indices[rank], strict=True):
                    if at == root_rank:
                        yield rank, int(leaf), root_rank, int(root)

    def bcast(self, roots, leaves, op):
        result = [part.copy() for part in leaves]
        for rank, leaf, owner, root in self.edges():
            result[rank][leaf] = COMBINE[op](result[rank][leaf], roots[owner][root])
        return result

    def reduce(self, leaves, roots, op):
        result = [part.copy() for part in roots]
        for rank, leaf, owner, root in self.edges():
            result[owner][root] = COMBINE[op](result[owner][root], leaves[rank][leaf])
        return result

    def fetch_and_op(self, roots, leaves, fetched, op):
        roots, fetched = [part.copy() for part in roots], [part.copy() for part in fetched]
        for rank, leaf, owner, root in self.edges():
            fetched[rank][leaf] = roots[owner][root]
            roots[owner][root] = COMBINE[op](roots[owner][root], leaves[rank][leaf])
        return roots, fetched

    def gather(self, leaves, owner):
        """What the owner's multi-roots get: by root, then by rank, then in the order of leaves' edges."""
        found = []
        for root in range(self.nroots[owner]):
            for rank in range(self.size):
                for leaf, at, number in zip(self.leaves[rank], self.ranks[rank], self.indices[rank], strict=True):
                    if at == owner and number == root:
                        found.append(leaves[rank][leaf])
        return np.array(found) if found else leaves[owner][:0]


def with_nan(rng, arrays):
    """Return the arrays with NaN of either sign at a third of the elements."""
    return [np.where(rng.random(a.shape) < 1 / 3, np.copysign(a.dtype.type(np.nan), a), a) for a in arrays]


def values(rng, points, block, dtype):
    """Random values for each rank; small whole numbers where products need to be exact (complex ones are not)."""
    dtype = np.dtype(dtype)
    arrays = []
    for count in points:
        shape = (count, *block)
        if dtype.kind in "biu":
            arrays.append(rng.integers(0, 3, shape).astype(dtype))
        elif dtype.kind == "c":
            arrays.append((rng.integers(-2, 3, shape) + 1j * rng.integers(-2, 3, shape)).astype(dtype))
        else:
            arrays.append(rng.standard_normal(shape).astype(dtype))
    return arrays
