"""Products with bands along the axes of distributed arrays: the kernel of an engine, and the exchange of the sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collops.array import Layout
from collops.operators.derivatives.bands import Band
from collops.operators.derivatives.faces import Faces
from collops.operators.derivatives.kernels import Several, Term, kernel_for

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["Stencil"]


class Stencil:
    """Bands along axes of an array, with all that they need from other ranks in one exchange.

    Collective: all ranks make it, in the same order.

    Parameters
    ----------
    layout : Layout
        Of all arrays.
    bands : sequence of (int, Band)
        Axis and matrix of each product.
    comm : Communicator
        The ranks.
    several : Several
        Whether each product has a source of its own, or a target of its own. Products with one target are added up.
    """

    def __init__(
        self,
        layout: Layout,
        bands: Sequence[tuple[int, Band]],
        comm: Communicator,
        several: Several = Several.NONE,
    ) -> None:
        block = layout.block(comm.rank)
        self._shape = block.shape
        self._several = several
        self._faces = Faces(layout, bands, comm, several is Several.SOURCES)
        self._terms = [
            Term(axis, band.local(block.offset[axis], block.shape[axis]), before, after)
            for (axis, band), (before, after) in zip(bands, self._faces.sides, strict=True)
        ]
        self._kernels: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, sources: Sequence[Any], targets: Sequence[Any], engine: Any, add: bool = False) -> None:
        """Fill `targets` from `sources`, contiguous local arrays of one dtype, or `add` to the only one. Collective."""
        key = (engine, sources[0].dtype, add)
        try:
            kernel, landing = self._kernels[key]
        except KeyError:
            kernel, landing = self._kernels[key] = self._make(*key)
        faces = self._faces
        if not engine.keeps:
            landing = faces.landing(engine, sources[0].dtype)
        if not faces.needed:
            kernel.whole(sources, targets, landing)
            return
        given = sources if self._several is Several.SOURCES else sources[0]
        exchange = faces.start(given, landing, kernel.splits)
        if kernel.splits:
            kernel.inner(sources, targets, landing)
            faces.finish(exchange, landing)
            kernel.rest(sources, targets, landing)
        else:
            faces.finish(exchange, landing)
            kernel.whole(sources, targets, landing)

    def _make(self, engine: Any, dtype: Any, add: bool) -> tuple[Any, Any]:
        landing = self._faces.landing(engine, dtype)
        return kernel_for(engine, self._shape, self._terms, self._several, dtype, add), landing
