"""The transform along one axis, as the operators define it: with shifts, lengths, scaling and its adjoint."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from collops.operators.fourier.workspace import Workspace
from collops.operators.memory import Coefficients, applied, store

__all__ = ["AxisTransform", "pays"]

_ROOT = math.sqrt(2.0)
_MOST_WORK = 1 << 18  # products of one transform
_LARGEST = 1 << 15  # elements of a matrix that stays in the second-level cache


class AxisTransform:
    r"""A discrete Fourier transform along one axis of local arrays.

    Parameters
    ----------
    axis, samples : int
        The axis, and its extent in the model.
    length : int
        Length of the transform: the model is padded with zeros, or cut.
    norm : {"ortho", "none", "1/n"}
        Scaling of both forward and adjoint: by :math:`1/\sqrt{n}`, none, or by :math:`1/n`.
    real : bool
        Whether the model is real, and only frequencies that are not negative are kept; those between zero and Nyquist
        are multiplied by :math:`\sqrt{2}` to represent the others.
    shift_before, shift_after : bool
        Whether the zero of the model, and that of the data, is in the middle.
    kept : int, optional
        How many of the first frequencies are kept; all by default.
    scale : float
        A factor of a real transform and of its adjoint.

    Attributes
    ----------
    given, taken : int
        Extents of the axis in model and data.
    in_place : bool
        Whether model and data may be one array.
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
        self._bins = length // 2 + 1 if real else length
        self.taken = self._bins if kept is None else kept
        self._before = _Placement(axis, samples, length, samples // 2 if shift_before else 0)
        self._after = _Placement(axis, self._bins, self.taken, self._bins - self._bins // 2 if shift_after else 0)
        self._turned = shift_after
        self.in_place = not real and self._before.identity and self._after.identity
        self._weights = _Weights(axis, length, self.taken if not shift_after else self._bins, scale) if real else None
        self._dense: dict[np.dtype, _DenseTransform] = {}

    def elements(self, shape: tuple[int, ...]) -> int:
        """Return how many complex numbers are needed besides a model of `shape` and its data."""
        lines = math.prod(shape[: self.axis]) * math.prod(shape[self.axis + 1 :])
        return lines * self._bins  # no fewer than the real numbers that the model is padded to

    def forward(self, source: Any, target: Any, workspace: Workspace, owned: bool) -> Any:
        """Return the transform of `source`, which may be overwritten if it is `owned`; in `target` if that is given."""
        if self._weights is not None:
            if self._by_matrix(source, target, workspace):
                return self._matrix(workspace).forward(source, target)
            return self._forward_real(source, target, workspace, self._weights)
        shape, xp = _with(source, self.axis, self._length), workspace.engine.xp
        work = target if self._after.identity else workspace.take("work", shape, False)
        if work is not source:
            work = self._before.place(source, work, xp)
        work = workspace.transforms.fft(work, self.axis, self._norm, False)
        return work if self._after.identity else self._after.place(work, target, xp)

    def adjoint(self, source: Any, target: Any, workspace: Workspace, owned: bool) -> Any:
        """Return the adjoint of `source`, which may be overwritten if it is `owned`; in `target` if that is given."""
        if self._weights is not None:
            if self._by_matrix(target, source, workspace):
                return self._matrix(workspace).adjoint(source, target)
            return self._adjoint_real(source, target, workspace, self._weights, owned)
        shape, xp = _with(source, self.axis, self._length), workspace.engine.xp
        work = target if self._before.identity else workspace.take("work", shape, False)
        if work is not source:
            work = self._after.place_back(source, work, xp)
        work = workspace.transforms.fft(work, self.axis, self._norm, True)
        return work if self._before.identity else self._before.place_back(work, target, xp)

    def _by_matrix(self, model: Any, data: Any, workspace: Workspace) -> bool:
        """Return whether a product with a matrix is faster, and the arrays have the types and orders it needs."""
        return (
            workspace.transforms.multiplies
            and self.axis == 0
            and pays(self.given, self.taken, math.prod(model.shape[1:]))
            and model.dtype == workspace.real
            and data.dtype == workspace.complex
            and model.flags.c_contiguous
            and data.flags.c_contiguous
        )

    def _matrix(self, workspace: Workspace) -> _DenseTransform:
        """Return the transform as a matrix, whose columns are the transforms of unit vectors."""
        dense = self._dense.get(workspace.complex)
        if dense is None:
            assert self._weights is not None
            columns = np.zeros((self.taken, self.given), np.complex128)
            double = workspace.like(np.dtype(np.complex128), self.elements((self.given, self.given)))
            self._forward_real(np.eye(self.given), columns, double, self._weights)
            dense = self._dense[workspace.complex] = _DenseTransform(columns.astype(workspace.complex))
        return dense

    def _forward_real(self, source: Any, target: Any, workspace: Workspace, weights: _Weights) -> Any:
        xp = workspace.engine.xp
        given = source
        if not self._before.identity or source.dtype != workspace.real:
            memory = workspace.take("signal", _with(source, self.axis, self._length), True)
            given = self._before.place(source, memory, xp)
        bins = target
        if not self._after.identity:
            bins = workspace.take("work", _with(source, self.axis, self._bins), False)
        bins = workspace.transforms.rfft(given, bins, self.axis, self._norm)
        if self._turned:
            return self._after.place(weights.multiply(bins, bins, workspace), target, xp)
        return weights.multiply(bins, target, workspace)

    def _adjoint_real(self, source: Any, target: Any, workspace: Workspace, weights: _Weights, owned: bool) -> Any:
        xp = workspace.engine.xp
        bins = source
        if not (owned and self._after.identity):
            bins = workspace.take("work", _with(source, self.axis, self._bins), False)
        if self._turned:
            bins = self._after.place_back(source, bins, xp)
            bins = weights.divide(bins, bins, workspace)
        else:
            bins = weights.divide(source, bins, workspace)
        result = target
        if not self._before.identity:
            result = workspace.take("signal", _with(source, self.axis, self._length), True)
        result = workspace.transforms.irfft(bins, result, self.axis, self._norm, self._length)
        return result if self._before.identity else self._before.place_back(result, target, xp)


class ToComplex:
    """A real array as a complex one; the adjoint takes the real part."""

    in_place = False

    @staticmethod
    def elements(shape: tuple[int, ...]) -> int:
        """Return how many complex numbers are needed besides input and result."""
        return 0

    def forward(self, source: Any, target: Any, workspace: Workspace, owned: bool) -> Any:
        """Return `source` as a complex array, in `target` if that is given."""
        return source.astype(workspace.complex) if target is None else store(source, target)

    def adjoint(self, source: Any, target: Any, workspace: Workspace, owned: bool) -> Any:
        """Return the real part, in `target` if that is given."""
        return store(source.real, target)


class _Weights:
    """Factors of the frequencies of a real transform: those between zero and Nyquist represent two."""

    def __init__(self, axis: int, length: int, count: int, scale: float) -> None:
        leading = (slice(None),) * axis
        self._axis = axis
        self._kept, self._beyond = (*leading, slice(count)), (*leading, slice(count, None))
        double = (np.arange(count) > 0) & (np.arange(count) < 1 + (length - 1) // 2)
        self._twice = {back: scale * np.where(double, 1 / _ROOT if back else _ROOT, 1.0) for back in (False, True)}
        self._factors: dict[Any, Coefficients] = {}

    def multiply(self, source: Any, target: Any, workspace: Workspace) -> Any:
        """Return the first frequencies of `source`, weighted; in `target` if that is given."""
        return self._product(False, source, target, workspace)

    def divide(self, source: Any, target: Any, workspace: Workspace) -> Any:
        """Return the input of the inverse transform; in `target` if that is given, with zeros at the end."""
        result = self._product(True, source, target, workspace)
        if workspace.engine.mutable and target is not source:
            target[self._beyond] = 0
        return result

    def _product(self, back: bool, source: Any, target: Any, workspace: Workspace) -> Any:
        key = (back, source.ndim, workspace.complex)
        factors = self._factors.get(key)
        if factors is None:
            shape = [-1 if axis == self._axis else 1 for axis in range(source.ndim)]
            vector = self._twice[back].astype(workspace.complex).reshape(shape)
            factors = self._factors[key] = Coefficients(vector)
        xp, weights = workspace.engine.xp, factors.on(workspace.engine)
        if not workspace.engine.mutable:
            return source[self._kept] * weights
        applied(xp.multiply, source[self._kept], weights, out=target[self._kept])
        return target


class _Placement:
    """A map of one axis to another: rotated so that element `shift` is first, then cut or padded with zeros at its end.

    ``identity`` is true if it moves nothing.
    """

    def __init__(self, axis: int, given: int, taken: int, shift: int) -> None:
        shift = shift % given
        common = min(given, taken)
        self._axis = axis
        self.identity = given == taken and shift == 0
        pairs = _rotated(given, shift, 0, common) or [(slice(0, 0), slice(0, 0))]
        self._there: list[_Pair] = [*pairs, *([(slice(common, taken), None)] if common < taken else [])]
        cut = [(from_, None) for _, from_ in _rotated(given, shift, common, given)]
        self._back: list[_Pair] = sorted(
            [*((from_, to) for to, from_ in pairs), *cut], key=lambda pair: (pair[0].start, pair[0].stop)
        )

    def place(self, source: Any, target: Any, xp: Any) -> Any:
        """Return an array whose axis has the extent `taken`, in `target` if that is given."""
        return self._assembled(self._there, source, target, xp)

    def place_back(self, source: Any, target: Any, xp: Any) -> Any:
        """Return an array whose axis has the extent `given`, by the adjoint: cut elements are zero."""
        return self._assembled(self._back, source, target, xp)

    def _assembled(self, pairs: list[_Pair], source: Any, target: Any, xp: Any) -> Any:
        leading = (slice(None),) * self._axis
        if target is None:
            parts = [
                xp.zeros(_with(source, self._axis, to.stop - to.start), source.dtype)
                if from_ is None
                else source[(*leading, from_)]
                for to, from_ in pairs
            ]
            return xp.concatenate(parts, self._axis)
        for to, from_ in pairs:
            target[(*leading, to)] = 0 if from_ is None else source[(*leading, from_)]
        return target


_Pair: TypeAlias = tuple[slice, slice | None]
"""Elements along an axis, and the elements that fill them; ``None`` for zeros."""


def _rotated(given: int, shift: int, begin: int, end: int) -> list[tuple[slice, slice]]:
    """Return the slices that fill the places from `begin` to `end`, after a rotation by `shift`."""
    turn = given - shift
    pieces = [(begin, min(end, turn), shift), (max(begin, turn), end, -turn)]
    return [(slice(a, b), slice(a + by, b + by)) for a, b, by in pieces if a < b]


def _with(array: Any, axis: int, extent: int) -> tuple[int, ...]:
    shape = array.shape
    return (*shape[:axis], extent, *shape[axis + 1 :])


def pays(given: int, taken: int, lines: int) -> bool:
    """Return whether hosts transform `lines` of `given` real samples to `taken` frequencies faster by a matrix."""
    elements = 2 * taken * given
    return 0 < elements <= _LARGEST and elements * lines <= _MOST_WORK


class _DenseTransform:
    """A linear map from real to complex columns on the host, and its adjoint over the real numbers.

    BLAS multiplies a few lines of some hundred samples faster than a fast transform and the passes before and after it
    take, above all if the number of samples has a large prime factor. The complex matrix has the shape (taken, given).
    """

    def __init__(self, matrix: Any) -> None:
        self._matrix = np.concatenate([matrix.real, matrix.imag])
        self._adjoint = self._matrix.T
        self._taken = len(matrix)
        self._work: dict[int, np.ndarray] = {}

    def forward(self, source: Any, target: Any) -> Any:
        """Fill complex columns from real ones; both in C order, the columns along the first axis."""
        parts = self._parts(source.size // self._matrix.shape[1])
        np.matmul(self._matrix, source.reshape(self._matrix.shape[1], -1), out=parts)
        columns: Any = target.reshape(self._taken, -1)
        columns.real, columns.imag = parts[: self._taken], parts[self._taken :]
        return target

    def adjoint(self, source: Any, target: Any) -> Any:
        """Fill real columns from complex ones; both in C order, the columns along the first axis."""
        columns: Any = source.reshape(self._taken, -1)
        parts = self._parts(columns.shape[1])
        parts[: self._taken], parts[self._taken :] = columns.real, columns.imag
        np.matmul(self._adjoint, parts, out=target.reshape(self._matrix.shape[1], -1))
        return target

    def _parts(self, lines: int) -> Any:
        """Return scratch memory for real and imaginary parts."""
        parts = self._work.get(lines)
        if parts is None:
            parts = self._work[lines] = np.empty((2 * self._taken, lines), self._matrix.dtype)
        return parts
