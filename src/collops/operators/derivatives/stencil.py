"""Products with bands along the axes of distributed arrays: the exchange of the sides, and the kernel of an engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from collops.array import Layout
from collops.array.regions import Region, transfers
from collops.exchange import ExchangePlan
from collops.operators.derivatives.bands import Band, Face, Several, Term
from collops.operators.derivatives.kernels.array_kernels import ArrayKernel
from collops.operators.derivatives.kernels.generic import GenericKernel
from collops.operators.memory import Scratch

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

_ALIGNED = 16  # elements: wherever a face begins, wide loads can begin


class _Piece(NamedTuple):
    """Where the part of a face that one rank sends lands, and its box in the face unless it is the whole face."""

    landing: slice
    shape: tuple[int, ...]
    face: int
    box: tuple[slice, ...] | None


class _Faces:
    """One exchange for the sides of a block along several axes. Collective: all ranks make it, in the same order.

    Parameters
    ----------
    layout : Layout
        Of the arrays.
    bands : sequence of (int, Band)
        Axis and matrix of each derivative.
    comm : Communicator
        The ranks.
    several : bool
        Whether each derivative has an array of its own, or all have the same one.

    Attributes
    ----------
    sides : list of (Face or None, Face or None)
        Before and after the block, for each derivative; ``None`` where it needs none.
    needed : bool
        Whether any rank needs anything, which then all exchange.
    """

    def __init__(self, layout: Layout, bands: Sequence[tuple[int, Band]], comm: Communicator, several: bool) -> None:
        self._bands = bands
        self._layout = layout
        wanted = {rank: self._wanted(rank) for rank in range(layout.ranks)}
        moves = transfers(layout, comm.rank, lambda rank: [region for _, region in wanted[rank]])
        self.needed = moves.travels
        self.sides: list[tuple[Face | None, Face | None]] = []
        self._pieces: list[_Piece] = []
        self._scratch = Scratch()
        self._size = 0
        slots = [slot for slot, _ in wanted[comm.rank]]
        shapes = [tuple(stop - start for start, stop in region) for _, region in wanted[comm.rank]]
        whole = [sum(number == face for _, number, _ in moves.receives) == 1 for face in range(len(shapes))]
        faces = [self._new_face(shape) for shape in shapes]
        for _, number, box in moves.receives:
            shape = tuple(axis.stop - axis.start for axis in box)
            place = faces[number] if whole[number] else self._new_face(shape)
            landing = slice(place.begin, place.end)
            self._pieces.append(_Piece(landing, shape, number, None if whole[number] else box))
        self._faces = faces
        by_slot = dict(zip(slots, faces, strict=True))
        self.sides = [(by_slot.get((term, 0)), by_slot.get((term, 1))) for term in range(len(bands))]
        self._plan: ExchangePlan | None = None
        if self.needed:
            regions = {rank: [slot[0] for slot, _ in entries] for rank, entries in wanted.items()}
            self._plan = ExchangePlan(
                comm,
                [(peer, box) for peer, _, box in moves.sends],
                [(peer, (piece.landing,)) for (peer, _, _), piece in zip(moves.receives, self._pieces, strict=True)],
                parts=[regions[peer][number] for peer, number, _ in moves.sends] if several else None,
            )

    def landing(self, engine: Engine, dtype: Any) -> Any:
        """Return the vector in which all faces lie: the same memory at every call, where it can be kept."""
        kept = self._scratch.get("landing", (self._size,), dtype, engine)
        return engine.xp.zeros(self._size, dtype) if kept is None else kept

    def start(self, source: Any, landing: Any, on_side_stream: bool) -> Any:
        """Return a started exchange that fills the landing from the local array, or arrays. Collective."""
        assert self._plan is not None
        return self._plan.start(source, landing, on_side_stream=on_side_stream)

    def finish(self, exchange: Any, engine: Engine) -> Any:
        """Wait for the exchange, and return the landing, in which faces of several pieces are put together."""
        landing = exchange.finish()
        for piece in self._pieces:
            if piece.box is not None:
                face = self._faces[piece.face]
                view = landing[face.begin : face.end].reshape(face.shape)
                values = engine.put(view, piece.box, landing[piece.landing].reshape(piece.shape))
                if values is not view:
                    landing = engine.put(landing, slice(face.begin, face.end), values.reshape(-1))
        return landing

    def _wanted(self, rank: int) -> list[tuple[tuple[int, int], Region]]:
        """Return the derivative, the side (0 before, 1 after) and the region of each face that a rank needs."""
        block = self._layout.block(rank)
        found = []
        if math.prod(block.shape) == 0:
            return found
        for term, (axis, band) in enumerate(self._bands):
            start, stop = block.offset[axis], block.offset[axis] + block.shape[axis]
            low, high = band.columns(start, stop)
            for side, bounds in enumerate(((low, start), (stop, high))):
                if bounds[0] < bounds[1]:
                    region = [(s.start, s.stop) for s in block.slices]
                    region[axis] = bounds
                    found.append(((term, side), tuple(region)))
        return found

    def _new_face(self, shape: tuple[int, ...]) -> Face:
        begin = self._size
        end = begin + math.prod(shape)
        self._size = -(-end // _ALIGNED) * _ALIGNED
        return Face(shape, begin, end)


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
        self._faces = _Faces(layout, bands, comm, several is Several.SOURCES)
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
        if not faces.needed:
            return kernel.whole(sources, targets, None)
        landing = faces.landing(engine, sources[0].dtype)
        given = sources if self._several is Several.SOURCES else sources[0]
        exchange = faces.start(given, landing, kernel.splits)
        if not kernel.splits:
            return kernel.whole(sources, targets, faces.finish(exchange, engine))
        kernel.inner(sources, targets, landing)
        return kernel.rest(sources, targets, faces.finish(exchange, engine))

    def _make(self, engine: Engine, dtype: Any, add: bool) -> Any:
        make_kernel: Any = ArrayKernel if engine.mutable else GenericKernel
        if engine.name == "cupy":
            from collops.operators.derivatives.kernels.cuda import make_kernel
        return make_kernel(self._shape, self._terms, self._several, dtype, engine, add)
