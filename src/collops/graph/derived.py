"""What star forests can be made into: methods of forests that give forests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collops.graph.forest import StarForest

__all__ = ["Derived"]


class Derived:
    """The part of :class:`collops.StarForest` that makes new forests; how is in :mod:`collops.graph.algebra`."""

    def inverse(self: Any) -> StarForest:
        """Return the forest with roots and leaves exchanged; its leaf arrays are this one's root arrays. Collective.

        Raises
        ------
        LayoutError
            On every rank, if a root has more than one leaf.
        """
        from collops.graph.algebra import inverse

        return inverse(self)

    def compose(self: Any, other: StarForest) -> StarForest:
        """Return the forest from this one's roots to `other`'s leaves; `other`'s roots are our leaf array. Collective.

        ``f.compose(g).bcast(x)`` is ``g.bcast(f.bcast(x))`` at those leaves of `other` whose root is a leaf of this.

        Raises
        ------
        LayoutError
            On every rank, if `other` has fewer roots than this forest's ``leaf_space``, or other ranks.
        """
        from collops.graph.algebra import compose

        return compose(self, other)

    def compose_inverse(self: Any, other: StarForest) -> StarForest:
        """Return the forest from this one's roots to `other`'s roots, along leaves that both have. Collective.

        Raises
        ------
        LayoutError
            On every rank, if a root of `other` has more than one leaf.
        """
        from collops.graph.algebra import compose_inverse

        return compose_inverse(self, other)

    def embed_roots(self: Any, selected: Sequence[int] | np.ndarray) -> StarForest:
        """Return the forest with the leaves of these of this rank's roots only; numbers stay. Collective."""
        from collops.graph.algebra import embed_roots

        return embed_roots(self, selected)

    def embed_leaves(self: Any, selected: Sequence[int] | np.ndarray) -> StarForest:
        """Return the forest with these of this rank's leaves only (points of the leaf array). Collective."""
        from collops.graph.algebra import embed_leaves

        return embed_leaves(self, selected)

    def strided(self: Any, block: int, *, root_stride: int | None = None, leaf_stride: int | None = None) -> StarForest:
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

    def distribute(self: Any, counts: Sequence[int] | np.ndarray) -> tuple[StarForest, np.ndarray]:
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
