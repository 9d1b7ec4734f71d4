"""The operator of isotropic elastic media, on a staggered grid: the reference of other forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from collops.extend.arrays import LocalArray
from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.steps.staggered import Layer, Recursion, StaggeredSteps


class Zone(NamedTuple):
    """The points of a memory variable in a layer: the first one in the tile, their shape, and the recursion."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    recursion: Recursion


class Term(NamedTuple):
    """A derivative of an array, by the axis of the velocity that it belongs to and the axis along which to derive.

    `origin` is the index of the tile's first point. The array is `between` grid points along the axis, or at them.
    """

    x: LocalArray
    origin: tuple[int, ...]
    key: tuple[int, int]
    between: bool

    def start(self, begin: Sequence[int]) -> list[int]:
        """Return the index in the array of the point after a result at an index of the tile."""
        axis = self.key[1]
        return [
            o + b + (d == axis and not self.between) for d, (o, b) in enumerate(zip(self.origin, begin, strict=True))
        ]


class Memory(NamedTuple):
    """Memory variables of the layers, by the axis of the velocity and the axis of the derivative."""

    zones: dict[tuple[int, int], list[Zone]]
    values: dict[tuple[int, int], list[LocalArray]]


class ElasticSteps(StaggeredSteps):
    r"""One step of the leapfrog scheme of stress in elastic media on a tile, and its transpose.

    The scheme is the one of velocity and stress [1]_ [2]_ without the velocity: :math:`u^{n+1} = 2 u^n - u^{n-1} + C L
    u^n` with :math:`L = G \beta G^T`. The fields u are the shear stresses, the differences of normal stresses, and the
    mean stress last; see :func:`normal_stresses`. :math:`G^T` is the divergence of stress, at the points of the
    components of velocity, and :math:`\beta` the buoyancy there. The component along an axis a is half a spacing after
    the grid points along a, and the shear stress of axes a and c along both of them.

    In a layer each derivative D has a memory variable, which advances by :math:`\psi \gets b \psi + a D x` and is added
    to it. The transposed scheme is propagated multiplied by C. It takes the same derivatives of :math:`x + t`, where
    :math:`t \gets b t + a x`.

    At a free surface, the vertical stress and vertical shear stresses are odd functions of the depth, and velocities
    are even ones: vertical derivatives of :math:`G^T` and of G then are transposes of each other, and the scheme
    conserves energy. The cells of grid points at the surface have half of the volume of others, so that L is halved
    there.

    Parameters
    ----------
    tile : Tile
        The tile, with a halo of the order of the grid where other tiles are.
    slabs : sequence of Slab
        Its layers.
    dtype : numpy.dtype
        float32 or float64.
    threads : int
        Ignored: NumPy computes on one thread.
    buoyancy : dict
        Of :class:`Elastic`.

    References
    ----------
    .. [1] Virieux, J., "P-SV wave propagation in heterogeneous media: velocity-stress finite-difference method",
       Geophysics 51(4), 889-901, 1986.
    .. [2] Levander, A. R., "Fourth-order finite-difference P-SV seismograms", Geophysics 53(11), 1425-1436, 1988.
    """

    def __init__(
        self,
        tile: Tile,
        slabs: Sequence[Slab],
        dtype: np.dtype,
        threads: int | None,
        buoyancy: dict[int, np.ndarray],
    ) -> None:
        super().__init__(tile, slabs, dtype)
        half, axes = self._half, tile.axes
        self._pairs = stress_components(axes)
        self.fields = (len(self._pairs),)
        diagonal = range(len(self._pairs))
        self.matrix = tuple(tuple(row if row == column else -1 for column in diagonal) for row in diagonal)
        self._matrix = normal_stresses(len(axes)).astype(dtype)
        # The index of the tile's first point in arrays of a component of velocity, and the box where it is not 0.
        self._origins = {a: tuple((half - (d != a)) * (d in axes) for d in range(3)) for a in axes}
        self._boxes = {a: self._box_of(a) for a in axes}
        self._buoyancy = {}
        for a, (begin, shape) in self._boxes.items():
            first = [b + half * (d in axes) for d, b in enumerate(begin)]
            own = tuple(slice(f, f + n) for f, n in zip(first, shape, strict=True))
            self._buoyancy[a] = np.ascontiguousarray(buoyancy[a][own], dtype)
        # In the scheme layers act on derivatives, and in the transposed one on their arguments: of stress, of velocity.
        self._after = self._zones(True, True), self._zones(False, False)
        self._before = self._zones(False, True), self._zones(True, False)

    def laplacian(self, u: np.ndarray, memory: np.ndarray, out: np.ndarray) -> None:
        """Fill `out`, on the tile, with the operator applied to fields with halo; see :meth:`forward`."""
        psi, zeta = (_views(zones, row) for zones, row in zip(self._after, memory, strict=True))
        for own, field in zip(out, self._gradient(self._divergence(u, None, psi), None, zeta), strict=True):
            own[...] = field

    def transposed(self, u: np.ndarray, memory: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the transpose of the operator, applied to fields with halo."""
        t, r = (_views(zones, row) for zones, row in zip(self._before, memory, strict=True))
        for own, field in zip(out, self._gradient(self._divergence(u, t, None), r, None), strict=True):
            own[...] = field

    def correlate(self, u: np.ndarray, w: np.ndarray, image: np.ndarray, factor: float = 1.0) -> None:
        """Add the products of the fields to an image: of all fields, or where the velocity of P waves changes them."""
        if image.ndim == w.ndim:
            return super().correlate(u, w, image, factor)
        image += (factor * u[-1]) * w[-1]
        if self._tile.surface:
            image[..., 0] += (factor * u[-2, ..., 0]) * w[-2, ..., 0]

    def column(self, c: LocalArray) -> LocalArray:
        """Return the coefficients by which the last field, where sources and receivers are, changes all fields."""
        column = np.zeros_like(c)
        column[-1] = c[-1]
        return column

    def _divergence(self, u: LocalArray, t: Memory | None, psi: Memory | None) -> dict[int, LocalArray]:
        """Return the divergence of stress times the buoyancy, with zeros outside the grid, by axes."""
        halo, velocity = self._tile.halo, {}
        stress = dict(zip(self._pairs, self._stresses(u), strict=True))
        for a, (begin, shape) in self._boxes.items():
            terms = []
            for axis in self._tile.axes:
                x = self._driven(stress[min(a, axis), max(a, axis)], halo, (a, axis), t)
                terms.append(Term(self._odd(x, a) if axis == 2 else x, halo, (a, axis), a != axis))
            velocity[a] = self._weighted(self._total(terms, begin, shape, psi), a)
        return velocity

    def _gradient(self, velocity: dict[int, LocalArray], r: Memory | None, zeta: Memory | None) -> list[LocalArray]:
        """Return the symmetric gradient of a velocity as the rates that go with the fields."""
        strains = []
        for pair in self._pairs:
            terms = []
            for a, axis in dict.fromkeys((pair, pair[::-1])):
                x = self._driven(velocity[a], self._origins[a], (a, axis), r)
                terms.append(Term(self._even(x, a) if axis == 2 else x, self._origins[a], (a, axis), a == axis))
            strains.append(self._total(terms, (0, 0, 0), self._tile.inner, zeta))
        n = len(self._tile.axes)
        fields = [*strains[:-n], *(_combination(column, strains[-n:]) for column in self._matrix.T)]
        # Half of the volume: of fields at grid points along the depth.
        return [
            self._replaced(x, (..., 0), x[..., 0] * x.dtype.type(0.5)) if self._tile.surface and not vertical else x
            for x, vertical in zip(fields, (a != c == 2 for a, c in self._pairs), strict=True)
        ]

    def _stresses(self, u: LocalArray) -> list[LocalArray]:
        """Return the components of stress with halos."""
        n = len(self._tile.axes)
        return [*u[:-n], *(_combination(row, u[-n:]) for row in self._matrix)]

    def _odd(self, x: LocalArray, a: int) -> LocalArray:
        """Return vertical stress in the direction of axis a with its mirror image above a free surface."""
        if not self._tile.surface:
            return x
        half, first = self._half, self._tile.halo[2]
        if a != 2:  # between grid points
            return self._replaced(x, (..., slice(first - half, first)), -_reversed(x, first, half))
        x = self._replaced(x, (..., first), 0)
        return self._replaced(x, (..., slice(first - half, first)), -_reversed(x, first + 1, half))

    def _even(self, x: LocalArray, a: int) -> LocalArray:
        """Return a component of velocity with its mirror image above a free surface."""
        if not self._tile.surface:
            return x
        first = self._origins[a][2]
        return self._replaced(x, (..., slice(first)), _reversed(x, first + (a != 2), first))

    def _driven(self, x: LocalArray, origin: Sequence[int], key: tuple[int, int], memory: Memory | None) -> LocalArray:
        """Return an array plus memory variables that it drives."""
        if memory is None or not memory.zones[key]:
            return x
        x, values = x.copy(), memory.values[key]
        for number, zone in enumerate(memory.zones[key]):
            start = _moved(zone.start, origin)
            values[number], x = self._decayed(values[number], zone.recursion._replace(start=start), x, start, x)
        return x

    def _total(
        self, terms: Sequence[Term], begin: Sequence[int], shape: Sequence[int], memory: Memory | None
    ) -> LocalArray:
        """Return the sum of derivatives in a box of the tile, plus memory variables that the derivatives drive."""
        total = self._sum(terms, begin, shape)
        if memory is None:
            return total
        for term in terms:
            values = memory.values[term.key]
            for number, zone in enumerate(memory.zones[term.key]):
                change = self._difference(term.x, term.start(zone.start), zone.shape, term.key[1])
                recursion = zone.recursion._replace(start=_moved(zone.start, begin, -1))
                values[number], total = self._decayed(values[number], recursion, change, (0, 0, 0), total)
        return total

    def _sum(self, terms: Sequence[Term], begin: Sequence[int], shape: Sequence[int]) -> LocalArray:
        """Return the sum of derivatives in a box of the tile."""
        total = None
        for term in terms:
            change = self._difference(term.x, term.start(begin), shape, term.key[1])
            total = change if total is None else total + change
        return total

    def _weighted(self, total: LocalArray, a: int) -> LocalArray:
        """Return a component of velocity: its acceleration times the buoyancy, with zeros outside the grid."""
        return self._padded(self._buoyancy[a] * total, self._margins(a))

    def _margins(self, a: int) -> list[tuple[int, int]]:
        """Return the numbers of points before and after the box of a component of velocity in its array."""
        begin, shape = self._boxes[a]
        margins = []
        for d, (n, first, origin) in enumerate(zip(self._tile.inner, begin, self._origins[a], strict=True)):
            extent = n + (self._tile.grid.order - 1) * (d in self._tile.axes)
            margins.append((origin + first, extent - origin - first - shape[d]))
        return margins

    def _box_of(self, a: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the first index and the shape of the points of a component of velocity that the tile needs."""
        tile, half = self._tile, self._half
        begin, end = [0, 0, 0], list(tile.inner)
        for d in tile.axes:
            before, after = tile.beside[d]
            if before:
                begin[d] = 1 - half - (d == a)
            elif d == a and not (tile.surface and d == 2):
                begin[d] = -1
            if after:
                end[d] += half - (d == a)
        return tuple(begin), tuple(last - first for first, last in zip(begin, end, strict=True))

    def _zones(self, of_velocity: bool, extended: bool) -> dict[tuple[int, int], list[Zone]]:
        """Return where memory variables are: at points of velocity or of stress, extended beyond the tile or not."""
        zones, inner = {}, ((0, 0, 0), self._tile.inner)
        for a, box in self._boxes.items():
            along, across = (box if flag else inner for flag in (of_velocity, extended))
            for c in self._tile.axes:
                layers = [layer for layer in self._layers if layer.axis == c]
                zones[a, c] = [self._zone(layer, of_velocity == (a == c), along[0][c], across) for layer in layers]
        return zones

    def _zone(self, layer: Layer, between: bool, begin: int, across: tuple[tuple[int, ...], tuple[int, ...]]) -> Zone:
        """Return the points of a memory variable in a layer, from an index on across it."""
        axis, recursion = layer.axis, layer.half if between else layer.full
        first = recursion.start[axis] - self._half * between
        skip = max(0, begin - first)
        own = tuple(slice(skip, None) if d == axis else slice(None) for d in range(3))
        a, b = recursion.a[own], recursion.b[own]
        start, shape = (
            tuple(n if d == axis else x[d] for d in range(3))
            for n, x in ((first + skip, across[0]), (a.shape[axis], across[1]))
        )
        return Zone(start, shape, recursion._replace(a=a, b=b))


def stress_components(axes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the axes of the components of stress: shear stresses first, then normal ones."""
    return [*combinations(axes, 2), *((a, a) for a in axes)]


def normal_stresses(ndim: int) -> np.ndarray:
    r"""Return the matrix of the normal stresses as functions of the last fields, one row for each axis.

    In two dimensions the fields are :math:`(\sigma_x - \sigma_z) / 2` and the mean stress. In three dimensions they are
    :math:`(\sigma_x - \sigma_y) / 2`, :math:`(\sigma_x + \sigma_y - 2 \sigma_z) / \sqrt{12}` and the mean stress. The
    coefficients C of all fields are then the shear modulus, but for the mean stress, with the bulk modulus.
    """
    if ndim == 2:
        return np.array([[1.0, 1.0], [-1.0, 1.0]])
    third = 1 / math.sqrt(3)
    return np.array([[1.0, third, 1.0], [-1.0, third, 1.0], [0.0, -2 * third, 1.0]])


def layer_elements(tile: Tile, slabs: Sequence[Slab]) -> int:
    """Return the elements that the memory variables of a derivative take at most, for all layers and components.

    They are a multiple of 4: on devices they are loaded as vectors.
    """
    width, order, total = tile.grid.layers.width, tile.grid.order, 0
    for slab in slabs:
        extents = (n + order * (d in tile.axes) for d, n in enumerate(tile.inner) if d != slab.axis)
        total += len(tile.axes) * (width + 1) * math.prod(extents)
    return -(-total // 4) * 4


def _combination(weights: np.ndarray, fields: Sequence[LocalArray]) -> LocalArray:
    """Return a linear combination of fields, of which some have the weight 0."""
    total = None
    for weight, x in zip(weights, fields, strict=True):
        if weight:
            term = x if weight == 1 else weight * x
            total = term if total is None else total + term
    return total


def _views(zones: dict[tuple[int, int], list[Zone]], memory: np.ndarray) -> Memory:
    """Return memory variables as views."""
    values, offset = {}, 0
    for key, own in zones.items():
        values[key] = []
        for zone in own:
            size = math.prod(zone.shape)
            values[key].append(memory[offset : offset + size].reshape(zone.shape))
            offset += size
    return Memory(zones, values)


def _reversed(x: LocalArray, first: int, count: int) -> LocalArray:
    """Return points along the last axis in reverse order."""
    return x[..., first : first + count][..., ::-1]


def _moved(start: Sequence[int], by: Sequence[int], sign: int = 1) -> tuple[int, ...]:
    return tuple(first + sign * more for first, more in zip(start, by, strict=True))
