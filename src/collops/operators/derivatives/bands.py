"""Finite-difference formulas along one axis as banded matrices, which can be transposed, cut and scaled.

A derivative has one formula for all rows except a few at either end. The transpose has the same structure, so that one
kernel computes forward and adjoint of every derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from collops.backend import Engine, LocalArray
from collops.errors import InputError, LayoutError

__all__ = ["MAX_SPECIAL", "REACH", "WIDTH", "Face", "Problem", "Several", "Term"]

REACH = 2
"""Maximum distance of a coefficient from the diagonal."""
WIDTH = 2 * REACH + 1
MAX_SPECIAL = 8
"""Maximum number of rows at one end that differ from the stencil: two in a formula, four in its transpose."""
_SAMPLE = MAX_SPECIAL + REACH + 2  # rows of a matrix with all distinct rows; the middle one is the stencil

KINDS = ("forward", "centered", "backward")

_Formula: TypeAlias = dict[int, float]
"""Coefficients by offset from the diagonal."""


class Band:
    """A square matrix with a band of ``WIDTH`` diagonals, whose rows are equal except for a few at either end.

    `rows` are the coefficients of a matrix of at most 12 rows, at offsets from ``-REACH`` to ``REACH`` from the
    diagonal; its middle row, the ``stencil``, is repeated to obtain `size` rows. The other rows are ``special``:
    ``head`` rows at the beginning and ``tail`` rows at the end.
    """

    def __init__(self, size: int, rows: np.ndarray) -> None:
        self.size = size
        self._rows = rows
        middle = len(rows) // 2
        self.stencil = rows[middle] if len(rows) else np.zeros(WIDTH)
        is_stencil = [bool(np.array_equal(row, self.stencil)) for row in rows]
        self.head = middle
        while self.head > 0 and is_stencil[self.head - 1]:
            self.head -= 1
        end = middle
        while end < len(rows) and is_stencil[end]:
            end += 1
        self.tail = len(rows) - end
        self.special = np.concatenate([rows[: self.head], rows[end:]])

    def scaled(self, factor: float) -> Band:
        """Return the matrix times a number."""
        return Band(self.size, self._rows * factor)

    @cached_property
    def transposed(self) -> Band:
        """The transposed matrix."""
        rows = np.zeros_like(self._rows)
        for row in range(len(rows)):
            for offset in range(-REACH, REACH + 1):
                if 0 <= row + offset < len(rows):
                    rows[row, REACH + offset] = self._rows[row + offset, REACH - offset]
        return Band(self.size, rows)

    def row(self, number: int) -> np.ndarray:
        """Return the coefficients of one row."""
        if number < self.head:
            return self.special[number]
        if number >= self.size - self.tail:
            return self.special[self.head + number - (self.size - self.tail)]
        return self.stencil

    def columns(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of columns that the rows from `start` to `stop` need, themselves included."""
        low, high = start, stop
        for number in (*range(start, min(stop, start + REACH)), *range(max(start, stop - REACH), stop)):
            offsets = np.flatnonzero(self.row(number)) - REACH
            if len(offsets):
                low, high = min(low, number + int(offsets[0])), max(high, number + int(offsets[-1]) + 1)
        return low, high


class LocalBand:
    """The rows of a band on one rank, counted from its first row.

    ``before`` and ``after`` are the numbers of remote columns that the rows need on either side. Rows from ``head_end``
    to ``tail_begin`` have the stencil; rows from ``inner_begin`` to ``inner_end`` also need local columns only.
    ``head_row`` and ``tail_row`` are the indices, among the special rows, of the first local row and of row
    ``tail_begin``.
    """

    def __init__(self, band: Band, start: int, extent: int) -> None:
        self._band, self._start = band, start
        self.extent = extent
        self.stencil = band.stencil
        self.special = band.special
        low, high = band.columns(start, start + extent) if extent else (start, start)
        self.before, self.after = start - low, high - start - extent
        first_tail = band.size - band.tail
        self.head_end = min(max(band.head - start, 0), extent)
        self.head_row = start
        self.tail_begin = max(self.head_end, min(max(first_tail - start, 0), extent))
        self.tail_row = band.head + max(start - first_tail, 0)
        offsets = np.flatnonzero(self.stencil) - REACH
        lower, upper = (-int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        self.inner_begin = min(max(self.head_end, lower), extent)
        self.inner_end = max(self.inner_begin, min(self.tail_begin, extent - max(upper, 0)))

    def row(self, number: int) -> np.ndarray:
        """Return the coefficients of one row."""
        return self._band.row(self._start + number)


class Face(NamedTuple):
    """The planes before or after a block: their shape, and their elements in the receive buffer."""

    shape: tuple[int, ...]
    begin: int
    end: int

    def view(self, landing: LocalArray) -> LocalArray:
        """Return the planes as a view of the receive buffer."""
        return landing[self.begin : self.end].reshape(self.shape)


class Term(NamedTuple):
    """A product with the rows of a band along one axis, and the planes on either side of the block that it needs."""

    axis: int
    band: LocalBand
    before: Face | None
    after: Face | None


class Several(Enum):
    """Which arrays are separate for each term; terms share the others."""

    NONE = 0
    SOURCES = 1
    TARGETS = 2


class Problem(NamedTuple):
    """The task of a kernel: the products of some terms with local arrays of one shape and dtype, on an engine.

    `several` says whether each term has a separate source or target; products with a common target are added up. With
    `add`, they are added to the values of the only target. With `squares`, the kernel also sums the squares of the
    results.
    """

    shape: tuple[int, ...]
    terms: Sequence[Term]
    several: Several
    dtype: np.dtype
    engine: Engine
    add: bool = False
    squares: bool = False


def first_derivative(size: int, sampling: float, kind: str, edge: bool, order: int = 3) -> Band:
    """Return the matrix of the first derivative along `size` points; parameters and errors of `FirstDerivative`."""
    scale = _scale(sampling, 1, kind)
    if order not in (3, 5):
        raise InputError(f"order={order!r}: a centered first derivative needs 3 or 5 points")
    if kind == "forward":
        return _band(size, scale, lambda row, n: {0: -1.0, 1: 1.0} if row < n - 1 else {})
    if kind == "backward":
        return _band(size, scale, lambda row, _: {-1: -1.0, 0: 1.0} if row > 0 else {})
    if edge and size == 1:
        raise LayoutError("a first derivative at the edges needs an axis of at least two points, not one")

    def centered(row: int, n: int) -> _Formula:
        from_end = min(row, n - 1 - row)
        if order == 5 and from_end > 1:
            return {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}
        if from_end > 0 and (order == 3 or edge):
            return {-1: -0.5, 1: 0.5}
        if not edge or from_end > 0:
            return {}
        return {0: -1.0, 1: 1.0} if row == 0 else {-1: -1.0, 0: 1.0}

    return _band(size, scale, centered)


def second_derivative(size: int, sampling: float, kind: str, edge: bool) -> Band:
    """Return the matrix of the second derivative along `size` points; parameters and errors of `SecondDerivative`."""
    scale = _scale(sampling, 2, kind)
    if kind == "centered" and edge and 0 < size < 3:
        raise LayoutError(f"a second derivative at the edges needs an axis of at least three points, not {size}")

    def formula(row: int, n: int) -> _Formula:
        center = {"forward": row + 1, "centered": row, "backward": row - 1}[kind]
        if kind == "centered" and edge:
            center = min(max(center, 1), n - 2)
        if not 0 < center < n - 1:
            return {}
        return {center - row + offset: value for offset, value in ((-1, 1.0), (0, -2.0), (1, 1.0))}

    return _band(size, scale, formula)


def _band(size: int, scale: float, formula: Callable[[int, int], _Formula]) -> Band:
    """Return the band whose rows `formula(row, size)` gives."""
    rows = np.zeros((min(size, _SAMPLE), WIDTH))
    for number, row in enumerate(rows):
        for offset, value in formula(number, len(rows)).items():
            row[REACH + offset] = value * scale
    return Band(size, rows)


def _scale(sampling: float, order: int, kind: str) -> float:
    """Return the factor of divided differences of this order, after checking the arguments of a derivative."""
    if kind not in KINDS:
        raise InputError(f"kind={kind!r}: choose forward, centered or backward")
    if not (np.isreal(sampling) and np.isfinite(sampling) and sampling != 0):
        raise InputError(f"sampling={sampling!r}: the distance of points must be a nonzero real number")
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        scale = float(1 / np.float64(np.real(sampling)) ** order)
    if scale == 0 or not np.isfinite(scale):
        raise InputError(f"sampling={sampling!r}: 1 / sampling**{order} is beyond the range of float64")
    return scale
