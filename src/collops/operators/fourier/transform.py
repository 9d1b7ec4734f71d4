"""The transform along one axis, with the shifts, lengths, scaling and adjoint of the operators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from collops.backend import Engine, LocalArray
from collops.operators.fourier.engines import Workspace, scaling
from collops.operators.fourier.real import Axis, RealTransform, real_plan

__all__ = ["AxisTransform", "matrix_is_faster"]

_ROOT = math.sqrt(2.0)
_MAX_JOINED = 3  # maximum number of axes of a cuFFT transform
_MAX_WORK = 1 << 18  # products of one transform
_MAX_MATRIX = 1 << 15  # maximum number of elements of a matrix that stays in the L2 cache


class AxisTransform:
    """A discrete Fourier transform along one axis of local arrays.

    The model has `samples` along `axis`, and is zero-padded or truncated to `length`. `norm`, `real`, `shift_before`
    and `shift_after` are as for :class:`FFTND`, for one axis. With `kept`, only this number of frequencies of a real
    transform, from `first` on, is computed. Both the transform and its adjoint are multiplied by `scale`.

    ``extent`` is the extent of the axis in the model, ``count`` the number of frequencies, ``extents`` has it by axis,
    and ``in_place`` tells whether model and data may be one array.
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
        first: int = 0,
        kept: int | None = None,
        scale: float = 1.0,
    ) -> None:
        self.axis = axis
        self.real = real
        self.extent = samples
        self.norm = norm
        self._length = length
        self._scale = scale
        self._shift_before = shift_before
        self._bins = length // 2 + 1 if real else length
        self.count = self._bins if kept is None else kept
        self._first = first
        leading = (slice(None),) * axis
        self._retained = (*leading, slice(first, first + self.count))
        self._omitted = [(*leading, part) for part in (slice(first), slice(first + self.count, None))]
        self._before = _Placement(axis, samples, length, samples // 2 if shift_before else 0)
        self._after = _Placement(axis, self.count, self.count, self.count - self.count // 2 if shift_after else 0)
        self.extents = {axis: self.count}
        self.in_place = not real and self._before.identity and self._after.identity
        self._weights: dict[tuple[bool, int, np.dtype, Engine], LocalArray] = {}
        self._matrices: dict[np.dtype, np.ndarray] = {}
        self._kernels: dict[np.dtype, RealTransform] = {}

    def part(self, first: int, kept: int) -> AxisTransform | None:
        """Return this transform restricted to some of its frequencies; ``None`` if that saves nothing."""
        if not self.real or not self._after.identity or kept == self.count:
            return None
        return AxisTransform(
            *(self.axis, self.extent, self._length),
            norm=self.norm,
            real=True,
            shift_before=self._shift_before,
            first=self._first + first,
            kept=kept,
            scale=self._scale,
        )

    def elements(self, shape: tuple[int, ...]) -> int:
        """Return the number of scratch elements (complex) for a model of `shape`."""
        lines = math.prod(shape[: self.axis]) * math.prod(shape[self.axis + 1 :])
        return lines * self._bins  # at least as many bytes as the padded real model

    def forward(self, source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        """Return the transform of `source`, in `target` unless it is ``None``."""
        if self._by_matrix(source, target, workspace):
            return self._multiplied(source, target, workspace)
        if (kernel := self._kernel(source, target, workspace)) is not None:
            return kernel(source, target, self.axis, back=False)
        engine, transforms = workspace.engine, workspace.transforms
        work = target
        if self.count < self._bins or not self._after.identity:
            work = workspace.take("work", _with(source, self.axis, self._bins))
        if self.real:
            if not self._before.identity:
                memory = workspace.take("signal", _with(source, self.axis, self._length), True)
                source = self._before.apply(source, memory, engine)
            work = transforms.rfft(source, work, self.axis, self.norm)
            chosen = self._chosen(work)
            work = self._weighted(False, chosen, target if self._after.identity else chosen, workspace)
        else:
            if not self._before.identity:
                source = work = self._before.apply(source, work, engine)
            work = transforms.fft(source, work, (self.axis,), self.norm, False, self._length)
        return work if self._after.identity else self._after.apply(work, target, engine)

    def adjoint(self, source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        """Return the adjoint of `source`, in `target` unless it is ``None``."""
        if self._by_matrix(source, target, workspace):
            return self._multiplied_by_adjoint(source, target, workspace)
        if (kernel := self._kernel(source, target, workspace)) is not None:
            return kernel(source, target, self.axis, back=True)
        engine, transforms = workspace.engine, workspace.transforms
        result = target
        if not self._before.identity:
            slot = "signal" if self.real else "work"
            result = workspace.take(slot, _with(source, self.axis, self._length), self.real)
        if self.real:
            work = workspace.take("work", _with(source, self.axis, self._bins))
            chosen = self._chosen(work)
            if not self._after.identity:
                source = self._after.apply_adjoint(source, chosen, engine)
            product = self._weighted(True, source, chosen, workspace)
            if engine.mutable:
                for omitted in self._omitted:
                    work[omitted] = 0
            elif self._first:
                zeros = engine.xp.zeros(_with(source, self.axis, self._bins), product.dtype)
                work = engine.put(zeros, self._retained, product)
            else:
                work = product
            result = transforms.irfft(work, result, self.axis, self.norm, self._length)
        else:
            if not self._after.identity:
                source = result = self._after.apply_adjoint(source, result, engine)
            result = transforms.fft(source, result, (self.axis,), self.norm, True, self._length)
        return result if self._before.identity else self._before.apply_adjoint(result, target, engine)

    def _chosen(self, work: LocalArray) -> LocalArray:
        """Return the selected frequencies."""
        return work if work is None or self.count == self._bins else work[self._retained]

    def _weighted(self, back: bool, source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        """Return the first frequencies times their factors: frequencies between zero and Nyquist represent two."""
        engine = workspace.engine
        key = (back, source.ndim, workspace.complex, engine)
        factors = self._weights.get(key)
        if factors is None:
            factors = self._factors(1 / _ROOT if back else _ROOT)[self._first : self._first + self.count]
            factors = factors.reshape(-1, *[1] * (source.ndim - 1 - self.axis))
            factors = self._weights[key] = engine.from_host(factors.astype(workspace.complex))
        return engine.xp.multiply(source, factors, out=target) if engine.mutable else source * factors

    def _factors(self, double: float) -> np.ndarray:
        """Return the factors of all frequencies: `scale`, times `double` for frequencies that represent two."""
        number = np.arange(self._bins)
        return self._scale * np.where((number > 0) & (number < 1 + (self._length - 1) // 2), double, 1.0)

    # Real transforms along an axis other than the last one, on GPUs

    def takes_columns(self, count: int) -> bool:
        """Return whether devices transform so many columns of a larger array in place, if the axis is the first.

        The result is the same on all ranks.
        """
        return self.real and real_plan(self._length, 1, count) is not None

    def _kernel(self, source: LocalArray, target: LocalArray, workspace: Workspace) -> RealTransform | None:
        """Return the kernel that transforms such arrays in one pass; ``None`` if it does not support them."""
        if not (workspace.real_kernels and self.real):
            return None
        before, after = math.prod(source.shape[: self.axis]), math.prod(source.shape[self.axis + 1 :])
        plan = real_plan(self._length, before, after)
        if plan is None or any(array.data.ptr % array.itemsize for array in (source, target)):
            return None
        kernel = self._kernels.get(workspace.real)
        if kernel is None:
            axis = Axis(self.extent, self._before.shift, self._length, self._first, self.count, self._after.shift)
            factors = scaling(self._length, self.norm) * self._factors(_ROOT)
            kernel = RealTransform(axis, plan, factors.astype(workspace.real), workspace.engine)
            self._kernels[workspace.real] = kernel
        return kernel

    # Short real transforms on hosts, by a product with a matrix

    def _by_matrix(self, source: LocalArray, target: LocalArray, workspace: Workspace) -> bool:
        """Return whether a product with a matrix is faster, and `target` has the required order."""
        return (
            workspace.multiplies
            and self.real
            and self.axis == 0
            and matrix_is_faster(self.extent, self.count, math.prod(source.shape[1:]))
            and target.flags.c_contiguous
        )

    def _multiplied(self, source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        lines = source.reshape(self.extent, -1)
        parts = workspace.take("parts", (2 * self.count, lines.shape[1]), True)
        np.matmul(self._matrix(workspace), lines, out=parts)
        data = target.reshape(self.count, -1)
        data.real, data.imag = parts[: self.count], parts[self.count :]
        return target

    def _multiplied_by_adjoint(self, source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        data = source.reshape(self.count, -1)
        parts = workspace.take("parts", (2 * self.count, data.shape[1]), True)
        parts[: self.count], parts[self.count :] = data.real, data.imag
        np.matmul(self._matrix(workspace).T, parts, out=target.reshape(self.extent, -1))
        return target

    def _matrix(self, workspace: Workspace) -> np.ndarray:
        """Return the real and the imaginary parts of the transforms of unit vectors, as rows of a matrix."""
        matrix = self._matrices.get(workspace.real)
        if matrix is None:
            double = Workspace(workspace.engine, np.dtype(np.complex128), self.elements((self.extent, self.extent)), 1)
            double.multiplies = False
            columns = self.forward(np.eye(self.extent), np.empty((self.count, self.extent), complex), double)
            matrix = np.concatenate([columns.real, columns.imag]).astype(workspace.real)
            self._matrices[workspace.real] = matrix
        return matrix


class JointTransform:
    """In-place transforms along several axes, combined into one.

    ``samples`` is the number of samples by which devices scale: the product of the lengths, unless another transform
    of the same operator includes the scaling of this one.
    """

    real, in_place = False, True
    extents: Mapping[int, int] = MappingProxyType({})

    def __init__(self, transforms: Sequence[AxisTransform]) -> None:
        self.axes = tuple(transform.axis for transform in transforms)
        self.samples = math.prod(transform.extent for transform in transforms)
        self._norm = transforms[0].norm

    def elements(self, shape: tuple[int, ...]) -> int:
        """Return the number of scratch elements: none."""
        return 0

    def forward(self, source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        """Return the transform of `source`, in `target` unless it is ``None``."""
        return workspace.transforms.fft(source, target, self.axes, self._norm, False, self.samples)

    def adjoint(self, source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        """Return the adjoint of `source`, in `target` unless it is ``None``."""
        return workspace.transforms.fft(source, target, self.axes, self._norm, True, self.samples)


def scale_once(transforms: Sequence[JointTransform], last: int) -> None:
    """Move the scaling of all transforms of an operator to one beyond the axis `last`, where scaling is free."""
    chosen = max(transforms, key=lambda transform: transform.axes != (last,), default=None)
    samples = math.prod(transform.samples for transform in transforms)
    for transform in transforms:
        transform.samples = samples if transform is chosen else 1


def joined(transforms: Sequence[AxisTransform]) -> Iterator[AxisTransform | JointTransform]:
    """Yield the transforms in their order, with consecutive ones along neighbouring axes joined.

    Only in-place transforms are joined, whose order does not matter. A library transforms planes and cubes with fewer
    passes over the memory than one axis after another.
    """
    alone = [transform for transform in transforms if not transform.in_place]
    yield from alone
    group: list[AxisTransform] = []
    for transform in sorted((t for t in transforms if t.in_place), key=lambda t: -t.axis):
        if group and (group[-1].axis != transform.axis + 1 or len(group) == _MAX_JOINED):
            yield JointTransform(group[::-1])
            group = []
        group.append(transform)
    if group:
        yield JointTransform(group[::-1])


def matrix_is_faster(samples: int, frequencies: int, lines: int) -> bool:
    """Return whether a matrix product on hosts is the faster transform of `lines` real lines to `frequencies`.

    For a few lines of some hundred samples, BLAS is faster than an FFT and its passes before and after, especially if
    the number of samples has a large prime factor.
    """
    elements = 2 * frequencies * samples
    return 0 < elements <= _MAX_MATRIX and elements * lines <= _MAX_WORK


_Pair: TypeAlias = tuple[slice, slice | None]
"""Elements along an axis, and the elements that fill them; ``None`` for zeros."""


class _Placement:
    """A map between axes: rotate so that element `shift` is first, then truncate or zero-pad at the end.

    ``identity`` is true if it moves nothing, and ``shift`` is between zero and the extent.
    """

    def __init__(self, axis: int, before: int, after: int, shift: int) -> None:
        shift = shift % max(1, before)
        common = min(before, after)
        self._axis = axis
        self._extents = (before, after)
        self.shift = shift
        self.identity = before == after and shift == 0
        pairs = _rotated(before, shift, 0, common)
        self._forward_pairs: list[_Pair] = [*pairs, (slice(common, after), None)]
        cut = [(from_, None) for _, from_ in _rotated(before, shift, common, before)]
        self._adjoint_pairs: list[_Pair] = [*((from_, to) for to, from_ in pairs), *cut]

    def apply(self, source: LocalArray, target: LocalArray, engine: Engine) -> LocalArray:
        """Return an array whose axis has the extent `after`, in `target` unless that is ``None``."""
        return self._assembled(self._forward_pairs, self._extents[1], source, target, engine)

    def apply_adjoint(self, source: LocalArray, target: LocalArray, engine: Engine) -> LocalArray:
        """Return an array whose axis has the extent `before`, by the adjoint: truncated elements are zero."""
        return self._assembled(self._adjoint_pairs, self._extents[0], source, target, engine)

    def _assembled(
        self, pairs: list[_Pair], extent: int, source: LocalArray, target: LocalArray, engine: Engine
    ) -> LocalArray:
        if self.identity:
            return source if target is None else engine.put(target, ..., source)
        leading = (slice(None),) * self._axis
        if target is None:
            target = engine.xp.zeros(_with(source, self._axis, extent), source.dtype)
        for to, from_ in pairs:
            if to.start < to.stop:
                target = engine.put(target, (*leading, to), 0 if from_ is None else source[(*leading, from_)])
        return target


def _rotated(extent: int, shift: int, begin: int, end: int) -> list[tuple[slice, slice]]:
    """Return the slices that fill the indices from `begin` to `end`, after a rotation by `shift`."""
    turn = extent - shift
    pieces = [(begin, min(end, turn), shift), (max(begin, turn), end, -turn)]
    return [(slice(a, b), slice(a + by, b + by)) for a, b, by in pieces if a < b]


def _with(array: LocalArray, axis: int, extent: int) -> tuple[int, ...]:
    shape = array.shape
    return (*shape[:axis], extent, *shape[axis + 1 :])
