"""The transform along one axis, as the operators define it: with shifts, lengths, scaling and its adjoint."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from collops.backend import Engine
from collops.operators.fourier.engines import Workspace
from collops.operators.memory import applied

__all__ = ["AxisTransform"]

_ROOT = math.sqrt(2.0)
_MOST_WORK = 1 << 18  # products of one transform
_LARGEST = 1 << 15  # elements of a matrix that stays in the second-level cache


class AxisTransform:
    """A discrete Fourier transform along one axis of local arrays.

    The model has `samples` along `axis`, and is padded with zeros, or cut, to `length`. `norm`, `real`, `shift_before`
    and `shift_after` are as for :class:`FFTND`, for one axis. Of the frequencies of a real transform only the first
    `kept` are computed, if that is given, and both the transform and its adjoint are multiplied by `scale`.

    ``given`` and ``taken`` are the extents of the axis in model and data, and ``in_place`` tells whether model and data
    may be one array.
    """

    def __init__(
        self,
        axis: int,
        samples: int,
        length: int,
        *,
        norm: str = "ortho",
        real: bool = False,
        shift_before: bool = False,
        shift_after: bool = False,
        kept: int | None = None,
        scale: float = 1.0,
    ) -> None:
        self.axis = axis
        self.real = real
        self.given = samples
        self._norm = norm
        self._length = length
        self._scale = scale
        self._bins = length // 2 + 1 if real else length
        self.taken = self._bins if kept is None else kept
        leading = (slice(None),) * axis
        self._kept, self._beyond = (*leading, slice(self.taken)), (*leading, slice(self.taken, None))
        self._before = _Placement(axis, samples, length, samples // 2 if shift_before else 0)
        self._after = _Placement(axis, self.taken, self.taken, self.taken - self.taken // 2 if shift_after else 0)
        self.in_place = not real and self._before.identity and self._after.identity
        self._weights: dict[Any, Any] = {}
        self._matrices: dict[np.dtype, np.ndarray] = {}

    def elements(self, shape: tuple[int, ...]) -> int:
        """Return how many complex numbers are needed besides a model of `shape` and its data."""
        lines = math.prod(shape[: self.axis]) * math.prod(shape[self.axis + 1 :])
        return lines * self._bins  # no fewer than the real numbers that the model is padded to

    def forward(self, source: Any, target: Any, workspace: Workspace) -> Any:
        """Return the transform of `source`, in `target` if that is given."""
        if self._by_matrix(source, target, workspace):
            return self._multiplied(source, target, workspace)
        engine, transforms = workspace.engine, workspace.transforms
        work = target
        if self.taken < self._bins or not self._after.identity:
            work = workspace.take("work", _with(source, self.axis, self._bins))
        if self.real:
            if not self._before.identity:
                memory = workspace.take("signal", _with(source, self.axis, self._length), True)
                source = self._before.place(source, memory, engine)
            work = transforms.rfft(source, work, self.axis, self._norm)
            work = self._weighted(False, work, target if self._after.identity else self._first(work), workspace)
        else:
            if work is not source:
                work = self._before.place(source, work, engine)
            work = transforms.fft(work, self.axis, self._norm, False)
        return work if self._after.identity else self._after.place(work, target, engine)

    def adjoint(self, source: Any, target: Any, workspace: Workspace) -> Any:
        """Return the adjoint of `source`, in `target` if that is given."""
        if self._by_matrix(source, target, workspace):
            return self._multiplied_by_adjoint(source, target, workspace)
        engine, transforms = workspace.engine, workspace.transforms
        result = target
        if not self._before.identity:
            slot = "signal" if self.real else "work"
            result = workspace.take(slot, _with(source, self.axis, self._length), self.real)
        if self.real:
            work = workspace.take("work", _with(source, self.axis, self._bins))
            first = self._first(work)
            if not self._after.identity:
                source = self._after.place_back(source, first, engine)
            product = self._weighted(True, source, first, workspace)
            if not engine.mutable:
                work = product
            elif self.taken < self._bins:
                work[self._beyond] = 0
            result = transforms.irfft(work, result, self.axis, self._norm, self._length)
        else:
            if result is not source:
                result = self._after.place_back(source, result, engine)
            result = transforms.fft(result, self.axis, self._norm, True)
        return result if self._before.identity else self._before.place_back(result, target, engine)

    def _first(self, work: Any) -> Any:
        """Return the frequencies that are kept."""
        return work if work is None or self.taken == self._bins else work[self._kept]

    def _weighted(self, back: bool, source: Any, target: Any, workspace: Workspace) -> Any:
        """Return the first frequencies times their factors: those between zero and Nyquist represent two."""
        engine = workspace.engine
        key = (back, source.ndim, workspace.complex, engine)
        factors = self._weights.get(key)
        if factors is None:
            number = np.arange(self.taken).reshape(-1, *[1] * (source.ndim - 1 - self.axis))
            double = (number > 0) & (number < 1 + (self._length - 1) // 2)
            factors = self._scale * np.where(double, 1 / _ROOT if back else _ROOT, 1.0)
            factors = self._weights[key] = engine.from_host(factors.astype(workspace.complex))
        return applied(engine.xp.multiply, self._first(source), factors, out=target if engine.mutable else None)

    # Short real transforms, by a product with a matrix

    def _by_matrix(self, source: Any, target: Any, workspace: Workspace) -> bool:
        """Return whether a product with a matrix is faster, and `target` has the order that it needs."""
        return (
            workspace.multiplies
            and self.real
            and self.axis == 0
            and pays(self.given, self.taken, math.prod(source.shape[1:]))
            and target.flags.c_contiguous
        )

    def _multiplied(self, source: Any, target: Any, workspace: Workspace) -> Any:
        lines = source.reshape(self.given, -1)
        parts = workspace.take("parts", (2 * self.taken, lines.shape[1]), True)
        np.matmul(self._matrix(workspace), lines, out=parts)
        data = target.reshape(self.taken, -1)
        data.real, data.imag = parts[: self.taken], parts[self.taken :]
        return target

    def _multiplied_by_adjoint(self, source: Any, target: Any, workspace: Workspace) -> Any:
        data = source.reshape(self.taken, -1)
        parts = workspace.take("parts", (2 * self.taken, data.shape[1]), True)
        parts[: self.taken], parts[self.taken :] = data.real, data.imag
        np.matmul(self._matrix(workspace).T, parts, out=target.reshape(self.given, -1))
        return target

    def _matrix(self, workspace: Workspace) -> np.ndarray:
        """Return the real and the imaginary parts of the transforms of unit vectors, as rows of a matrix."""
        matrix = self._matrices.get(workspace.real)
        if matrix is None:
            double = Workspace(workspace.engine, np.dtype(np.complex128), self.elements((self.given, self.given)), 1)
            double.multiplies = False
            columns = self.forward(np.eye(self.given), np.empty((self.taken, self.given), complex), double)
            matrix = np.concatenate([columns.real, columns.imag]).astype(workspace.real)
            self._matrices[workspace.real] = matrix
        return matrix


def pays(given: int, taken: int, lines: int) -> bool:
    """Return whether hosts transform `lines` of `given` real samples to `taken` frequencies faster by a matrix.

    BLAS multiplies a few lines of some hundred samples faster than a fast transform and the passes before and after it
    take, above all if the number of samples has a large prime factor.
    """
    elements = 2 * taken * given
    return 0 < elements <= _LARGEST and elements * lines <= _MOST_WORK


_Pair: TypeAlias = tuple[slice, slice | None]
"""Elements along an axis, and the elements that fill them; ``None`` for zeros."""


class _Placement:
    """A map of one axis to another: rotated so that element `shift` is first, then cut or padded with zeros at its end.

    ``identity`` is true if it moves nothing.
    """

    def __init__(self, axis: int, given: int, taken: int, shift: int) -> None:
        shift = shift % max(1, given)
        common = min(given, taken)
        self._axis = axis
        self._extents = (given, taken)
        self.identity = given == taken and shift == 0
        pairs = _rotated(given, shift, 0, common)
        self._there: list[_Pair] = [*pairs, (slice(common, taken), None)]
        cut = [(from_, None) for _, from_ in _rotated(given, shift, common, given)]
        self._back: list[_Pair] = [*((from_, to) for to, from_ in pairs), *cut]

    def place(self, source: Any, target: Any, engine: Engine) -> Any:
        """Return an array whose axis has the extent `taken`, in `target` if that is given."""
        return self._assembled(self._there, self._extents[1], source, target, engine)

    def place_back(self, source: Any, target: Any, engine: Engine) -> Any:
        """Return an array whose axis has the extent `given`, by the adjoint: cut elements are zero."""
        return self._assembled(self._back, self._extents[0], source, target, engine)

    def _assembled(self, pairs: list[_Pair], extent: int, source: Any, target: Any, engine: Engine) -> Any:
        if self.identity:
            return source if target is None else engine.put(target, ..., source)
        leading = (slice(None),) * self._axis
        if target is None:
            target = engine.xp.zeros(_with(source, self._axis, extent), source.dtype)
        for to, from_ in pairs:
            if to.start < to.stop:
                target = engine.put(target, (*leading, to), 0 if from_ is None else source[(*leading, from_)])
        return target


def _rotated(given: int, shift: int, begin: int, end: int) -> list[tuple[slice, slice]]:
    """Return the slices that fill the places from `begin` to `end`, after a rotation by `shift`."""
    turn = given - shift
    pieces = [(begin, min(end, turn), shift), (max(begin, turn), end, -turn)]
    return [(slice(a, b), slice(a + by, b + by)) for a, b, by in pieces if a < b]


def _with(array: Any, axis: int, extent: int) -> tuple[int, ...]:
    shape = array.shape
    return (*shape[:axis], extent, *shape[axis + 1 :])
