"""Products with bands along the axes of distributed arrays: the exchange of the sides, and the kernel of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collops.array import Layout
from collops.operators.derivatives.bands import Band
from collops.operators.derivatives.faces import Faces, Several, Term

if TYPE_CHECKING:
    from collops.backend import Engine
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
        self._kernels: dict[Any, Any] = {}

    def __call__(self, sources: Sequence[Any], targets: Sequence[Any], engine: Engine, add: bool = False) -> Any:
        """Return the products of `sources`, local arrays of one dtype, as a sequence like `targets`. Collective.

        The products are written into `targets`, or, with `add`, added to the only one, where the engine is mutable.
        """
        key = (engine, sources[0].dtype, add)
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = self._make(*key)
        faces = self._faces
        landing = faces.landing(engine, sources[0].dtype)
        if not faces.needed:
            return kernel.whole(sources, targets, landing)
        given = sources if self._several is Several.SOURCES else sources[0]
        exchange = faces.start(given, landing, kernel.splits)
        if not kernel.splits:
            return kernel.whole(sources, targets, faces.finish(exchange, engine))
        kernel.inner(sources, targets, landing)
        return kernel.rest(sources, targets, faces.finish(exchange, engine))

    def _make(self, engine: Engine, dtype: Any, add: bool) -> Any:
        if engine.name == "cupy":
            from collops.operators.derivatives.kernels.cupy_kernels import make_kernel
        elif engine.mutable:
            from collops.operators.derivatives.kernels.array_kernels import ArrayKernel as make_kernel
        else:
            from collops.operators.derivatives.kernels.generic import GenericKernel as make_kernel
        return make_kernel(self._shape, self._terms, self._several, dtype, engine, add)
