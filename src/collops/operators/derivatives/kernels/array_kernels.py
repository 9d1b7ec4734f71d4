"""Products with bands by ufuncs with ``out=``, in blocks that stay in the cache from one ufunc to the next.

All slices are computed beforehand; a call only iterates over them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from threading import get_ident
from typing import NamedTuple, TypeAlias

from collops.array.fused import LocalPairs
from collops.backend import LocalArray
from collops.operators.derivatives.bands import REACH, Face, Problem, Several, Term

__all__ = ["ArrayKernel", "make_kernel"]

_BLOCK_BYTES = 256 << 10

Box: TypeAlias = tuple[slice, ...]


class _Operand(NamedTuple):
    """A view of the source, or of a face."""

    box: Box
    face: Face | None


class _Pair(NamedTuple):
    """A coefficient times one view, or times the sum or difference of two."""

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
    """Bands on mutable arrays of any engine, by ufuncs that write to the target."""

    splits = True

    def __init__(self, problem: Problem) -> None:
        shape, terms, several, dtype, engine, add, _ = problem
        self._xp = engine.xp
        self._sources = range(len(terms)) if several is Several.SOURCES else [0] * len(terms)
        self._targets = range(len(terms)) if several is Several.TARGETS else [0] * len(terms)
        # The first term of a target overwrites it, in all rows at once if other terms follow.
        self._first = [not add and (several is Several.TARGETS or number == 0) for number in range(len(terms))]
        self._alone = several is Several.TARGETS or len(terms) == 1
        inner: list[_Step] = []
        rest_steps: list[_Step] = []
        if math.prod(shape):
            elements = _BLOCK_BYTES // dtype.itemsize if engine.memory == "host" else math.prod(shape)
            inner = [step for block in _blocks(shape, elements) for step in self._inner_steps(terms, block)]
            rest_steps = [step for number, term in enumerate(terms) for step in self._rest_steps(number, term, shape)]
        self._steps = {"inner": inner, "rest": rest_steps, "whole": inner + rest_steps}
        self._dtype = dtype
        self._extra = {step.shape for step in inner + rest_steps if len(step.pairs) > step.fresh}
        self._scratch: dict[int, dict[tuple[int, ...], LocalArray]] = {}  # by thread

    def run(
        self,
        part: str,
        sources: Sequence[LocalArray],
        targets: Sequence[LocalArray],
        landing: LocalArray,
        squares: LocalPairs | None = None,
    ) -> Sequence[LocalArray]:
        """Compute one part of the rows: ``inner``, which need no face, the ``rest``, or the ``whole``.

        Pairs whose products add up to the square of all targets are appended to the list `squares`, if any.
        """
        if squares is not None and part != "rest":
            squares += [(target, target) for target in targets]
        scratch = self._scratch.get(get_ident())
        if scratch is None:
            scratch = self._new_scratch()
        add, subtract, multiply = self._xp.add, self._xp.subtract, self._xp.multiply
        for term, box, shape, pairs, fresh in self._steps[part]:
            source, target = sources[self._sources[term]], targets[self._targets[term]][box]
            if not pairs:
                target[...] = 0
            for factor, first, second, minus in pairs:
                into = target if fresh else scratch[shape]
                view = (source if first.face is None else first.face.view(landing))[first.box]
                if second is None:
                    multiply(view, factor, out=into)
                else:
                    other = (source if second.face is None else second.face.view(landing))[second.box]
                    (subtract if minus else add)(view, other, out=into)
                    if factor != 1:
                        multiply(into, factor, out=into)
                if not fresh:
                    add(target, into, out=target)
                fresh = False
        return targets

    def _new_scratch(self) -> dict[tuple[int, ...], LocalArray]:
        """Return new memory for products of this thread, by their shape."""
        memory = self._xp.empty(max(map(math.prod, self._extra), default=0), self._dtype)
        scratch = {shape: memory[: math.prod(shape)].reshape(shape) for shape in self._extra}
        return self._scratch.setdefault(get_ident(), scratch)

    def _inner_steps(self, terms: Sequence[Term], block: Box) -> Iterator[_Step]:
        """Yield the products of one block outside faces and special rows."""
        for number, (axis, band, _, _) in enumerate(terms):
            fresh, bounds = self._first[number], block[axis]
            begin, end = max(bounds.start, band.inner_begin), min(bounds.stop, band.inner_end)
            if begin >= end:
                begin = end = bounds.stop
            stencil = [(offset, value) for offset, value in enumerate(band.stencil.tolist(), -REACH) if value]
            ranges = [(begin, end, stencil)]
            if fresh and not self._alone:  # other rows are zero before terms are added
                ranges += [(bounds.start, begin, []), (end, bounds.stop, [])]
            for low, high, coefficients in ranges:
                if low < high and (coefficients or fresh):
                    parts = [
                        (value, _Operand(_with(block, axis, low + offset, high + offset), None))
                        for offset, value in coefficients
                    ]
                    yield _step(number, _with(block, axis, low, high), parts, fresh)

    def _rest_steps(self, number: int, term: Term, shape: tuple[int, ...]) -> Iterator[_Step]:
        """Yield the products of the rows at the sides of the block, row by row."""
        axis, band, before, after = term
        box: Box = tuple(slice(0, n) for n in shape)
        fresh = self._first[number] and self._alone
        for row in (*range(band.inner_begin), *range(band.inner_end, band.extent)):
            parts = []
            for plane, value in enumerate(band.row(row).tolist(), row - REACH):
                if not value:
                    continue
                face = None
                if plane < 0:
                    face, plane = before, band.before + plane
                elif plane >= band.extent:
                    face, plane = after, plane - band.extent
                parts.append((value, _Operand(_with(box, axis, plane, plane + 1), face)))
            if parts or fresh:
                yield _step(number, _with(box, axis, row, row + 1), parts, fresh)


make_kernel = ArrayKernel


def _step(term: int, box: Box, parts: Sequence[tuple[float, _Operand]], fresh: bool) -> _Step:
    return _Step(term, box, tuple(bounds.stop - bounds.start for bounds in box), _paired(parts), fresh)


def _paired(parts: Sequence[tuple[float, _Operand]]) -> list[_Pair]:
    """Combine pairs of products whose coefficients are equal or opposite."""
    remaining = list(parts)
    pairs = []
    while remaining:
        value, first = remaining.pop(0)
        partner = next((n for n, (other, _) in enumerate(remaining) if abs(other) == abs(value)), None)
        if partner is None:
            pairs.append(_Pair(value, first, None, False))
            continue
        other, second = remaining.pop(partner)
        pairs.append(_Pair(value, first, second, False) if other == value else _Pair(other, second, first, True))
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
