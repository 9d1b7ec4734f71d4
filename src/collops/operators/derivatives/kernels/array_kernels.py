"""Products with bands by ufuncs into given memory, in blocks that stay in the cache from one ufunc to the next.

All slices are made beforehand; a call only walks through a list of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from collops.backend import Engine
from collops.operators.derivatives.bands import REACH, Several, Term

__all__ = ["ArrayKernel"]

_BLOCK_BYTES = 256 << 10

Box: TypeAlias = tuple[slice, ...]


class _Operand(NamedTuple):
    """A view of the source, or of a face in the memory that messages land in."""

    box: Box
    face: slice | None
    shape: tuple[int, ...]


class _Pair(NamedTuple):
    """A coefficient times the sum or difference of two views, or times one."""

    factor: float
    first: _Operand
    second: _Operand | None
    minus: bool


class _Step(NamedTuple):
    """The products that are added up in one box of a target, which is overwritten if `fresh`."""

    term: int
    box: Box
    shape: tuple[int, ...]
    pairs: list[_Pair]
    fresh: bool


class ArrayKernel:
    """Bands on mutable arrays of any engine, by ufuncs that write into given memory.

    `several` says whether each term has a source or target of its own; otherwise products with one target are added up.
    With `add`, they are added to the values of the only target.
    """

    splits = True

    def __init__(
        self,
        shape: tuple[int, ...],
        terms: Sequence[Term],
        several: Several,
        dtype: np.dtype,
        engine: Engine,
        add: bool = False,
    ) -> None:
        self._xp = engine.xp
        self._shape = shape
        self._sources = range(len(terms)) if several is Several.SOURCES else [0] * len(terms)
        self._targets = range(len(terms)) if several is Several.TARGETS else [0] * len(terms)
        # The first term of a target overwrites it, in all rows at once if other terms follow.
        self._first = [not add and (several is Several.TARGETS or number == 0) for number in range(len(terms))]
        self._alone = several is Several.TARGETS or len(terms) == 1
        itemsize = dtype.itemsize
        blocks = list(_blocks(shape, _BLOCK_BYTES // itemsize if engine.memory == "host" else math.prod(shape)))
        if math.prod(shape) == 0:
            blocks = []
        self._inner = [step for block in blocks for step in self._inner_steps(terms, block)]
        self._rest = [step for number, term in enumerate(terms) for step in self._rest_steps(number, term)]
        if not blocks:
            self._rest = []
        self._all = self._inner + self._rest
        extra = [step.shape for step in self._all if len(step.pairs) > step.fresh]
        memory = self._xp.empty(max(map(math.prod, extra), default=0), dtype)
        self._scratch = {key: memory[: math.prod(key)].reshape(key) for key in set(extra)}

    def inner(self, sources: Sequence[Any], targets: Sequence[Any], landing: Any) -> None:
        """Compute the rows that need no face."""
        self._run(self._inner, sources, targets, landing)

    def rest(self, sources: Sequence[Any], targets: Sequence[Any], landing: Any) -> Sequence[Any]:
        """Compute the rows that :meth:`inner` left out."""
        self._run(self._rest, sources, targets, landing)
        return targets

    def whole(self, sources: Sequence[Any], targets: Sequence[Any], landing: Any) -> Sequence[Any]:
        """Compute everything."""
        self._run(self._all, sources, targets, landing)
        return targets

    def _run(self, steps: Sequence[_Step], sources: Sequence[Any], targets: Sequence[Any], landing: Any) -> None:
        add, subtract, multiply = self._xp.add, self._xp.subtract, self._xp.multiply
        for term, box, shape, pairs, fresh in steps:
            source, target = sources[self._sources[term]], targets[self._targets[term]][box]
            if not pairs:
                target[...] = 0
            for factor, first, second, minus in pairs:
                into = target if fresh else self._scratch[shape]
                view = source[first.box] if first.face is None else _view(first, landing)
                if second is None:
                    multiply(view, factor, out=into)
                else:
                    other = source[second.box] if second.face is None else _view(second, landing)
                    (subtract if minus else add)(view, other, out=into)
                    if factor != 1:
                        multiply(into, factor, out=into)
                if not fresh:
                    add(target, into, out=target)
                fresh = False

    def _inner_steps(self, terms: Sequence[Term], block: Box) -> Iterator[_Step]:
        """Yield the products of one block that need neither a face nor a special row."""
        for number, (axis, band, _, _) in enumerate(terms):
            bounds = block[axis]
            begin, end = max(bounds.start, band.inner_begin), min(bounds.stop, band.inner_end)
            if begin < end:
                box = _with(block, axis, begin, end)
                parts = [
                    (value, _Operand(_with(block, axis, begin + offset, end + offset), None, ()))
                    for offset, value in enumerate(band.stencil.tolist(), -REACH)
                    if value
                ]
                if parts or self._first[number]:
                    yield _Step(number, box, _extent(box), _paired(parts), self._first[number])
            if self._first[number] and not self._alone:
                for low, high in ((bounds.start, min(begin, bounds.stop)), (max(end, bounds.start), bounds.stop)):
                    if low < high and begin <= end:
                        box = _with(block, axis, low, high)
                        yield _Step(number, box, _extent(box), [], True)
                if begin > end:
                    yield _Step(number, block, _extent(block), [], True)

    def _rest_steps(self, number: int, term: Term) -> Iterator[_Step]:
        """Yield the products of the rows at the sides of the block, row by row."""
        axis, band, before, after = term
        whole: Box = tuple(slice(0, n) for n in self._shape)
        fresh = self._first[number] and self._alone
        for row in (*range(band.inner_begin), *range(band.inner_end, band.extent)):
            parts = []
            for offset, value in enumerate(band.row(row).tolist(), -REACH):
                if not value:
                    continue
                plane, face = row + offset, None
                if plane < 0:
                    face, plane = before, band.before + plane
                elif plane >= band.extent:
                    face, plane = after, plane - band.extent
                place = None if face is None else slice(face.begin, face.end)
                box = _with(whole, axis, plane, plane + 1)
                parts.append((value, _Operand(box, place, () if face is None else face.shape)))
            if parts or fresh:
                box = _with(whole, axis, row, row + 1)
                yield _Step(number, box, _extent(box), _paired(parts), fresh)


def _view(operand: _Operand, landing: Any) -> Any:
    return landing[operand.face].reshape(operand.shape)[operand.box]


def _paired(parts: Sequence[tuple[float, _Operand]]) -> list[_Pair]:
    """Combine pairs of products whose coefficients are equal or opposite."""
    left = list(parts)
    pairs = []
    while left:
        value, first = left.pop(0)
        partner = next((n for n, (other, _) in enumerate(left) if abs(other) == abs(value)), None)
        if partner is None:
            pairs.append(_Pair(value, first, None, False))
            continue
        other, second = left.pop(partner)
        if other == value:
            pairs.append(_Pair(value, first, second, False))
        else:
            pairs.append(_Pair(other, second, first, True))
    return pairs


def _blocks(shape: tuple[int, ...], elements: int) -> Iterator[Box]:
    """Yield the boxes that cut an array in C order into pieces of about `elements` elements."""
    size = 1
    steps = []
    for extent in reversed(shape):
        steps.append(max(1, min(extent, elements // size)))
        size *= steps[-1]
    return product(
        *(
            [slice(begin, min(begin + step, extent)) for begin in range(0, extent, step)]
            for extent, step in zip(shape, reversed(steps), strict=True)
        )
    )


def _with(box: Box, axis: int, begin: int, end: int) -> Box:
    """Return a box with other bounds along one axis."""
    return (*box[:axis], slice(begin, end), *box[axis + 1 :])


def _extent(box: Box) -> tuple[int, ...]:
    return tuple(bounds.stop - bounds.start for bounds in box)
