"""The transform along one axis as the operators define it: with shifts, lengths, scaling and its adjoint."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from collops.operators.fourier.dense import DenseTransform, pays
from collops.operators.fourier.placement import Placement
from collops.operators.fourier.workspace import Workspace

__all__ = ["AxisTransform", "ToComplex"]

_ROOT = math.sqrt(2.0)


class AxisTransform:
    r"""A discrete Fourier transform along one axis of local arrays.

    Parameters
    ----------
    axis : int
        The axis.
    samples : int
        Its extent in the model.
    length : int
        Of the transform: the model is padded with zeros, or cut.
    norm : {"ortho", "none", "1/n"}
        Scaling of forward and adjoint alike: by :math:`1/\sqrt{n}`, none, or by :math:`1/n`.
    real : bool
        Whether the model is real, and only frequencies that are not negative are kept, those between zero and Nyquist
        times :math:`\sqrt{2}` to make up for the others.
    shift_before, shift_after : bool
        Whether the model has its zero, or the data shall have it, in the middle.
    kept : int, optional
        How many of the first frequencies are kept; all by default.
    scale : float
        A factor of a real transform and of its adjoint.

    Attributes
    ----------
    axis : int
    given, taken : int
        Extents of the axis in model and data.
    real : bool
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
        self._before = Placement(axis, samples, length, samples // 2 if shift_before else 0)
        self._after = Placement(axis, self._bins, self.taken, self._bins - self._bins // 2 if shift_after else 0)
        self._turned = shift_after
        self.in_place = not real and self._before.identity and self._after.identity
        self._weights = _Weights(axis, length, self.taken if not shift_after else self._bins, scale) if real else None
        self._dense: dict[np.dtype, DenseTransform] = {}

    def elements(self, shape: tuple[int, ...]) -> int:
        """Return how many complex numbers are needed beside a model of `shape` and its data."""
        lines = math.prod(shape[: self.axis]) * math.prod(shape[self.axis + 1 :])
        return lines * self._bins  # no fewer than the real numbers that the model is padded to

    def forward(self, source: Any, target: Any, workspace: Workspace, owned: bool) -> None:
        """Fill `target` from `source`, which may be overwritten if it is `owned`."""
        if self._weights is not None:
            if self._by_matrix(source, target, workspace):
                self._matrix(workspace).forward(source, target)
            else:
                self._forward_real(source, target, workspace, self._weights)
            return
        work = target if self._after.identity else workspace.take("work", _with(target, self.axis, self._length), False)
        if work is not source:
            self._before.place(source, work)
        workspace.transforms.fft(work, self.axis, self._norm, False)
        if work is not target:
            self._after.place(work, target)

    def adjoint(self, source: Any, target: Any, workspace: Workspace, owned: bool) -> None:
        """Fill `target` from `source`, which may be overwritten if it is `owned`."""
        if self._weights is not None:
            if self._by_matrix(target, source, workspace):
                self._matrix(workspace).adjoint(source, target)
            else:
                self._adjoint_real(source, target, workspace, self._weights, owned)
            return
        work = (
            target if self._before.identity else workspace.take("work", _with(target, self.axis, self._length), False)
        )
        if work is not source:
            self._after.place_back(source, work)
        workspace.transforms.fft(work, self.axis, self._norm, True)
        if work is not target:
            self._before.place_back(work, target)

    def _by_matrix(self, model: Any, data: Any, workspace: Workspace) -> bool:
        """Whether a product with a matrix is the faster way, and the arrays are as it needs them."""
        return (
            workspace.transforms.multiplies
            and self.axis == 0
            and pays(self.given, self.taken, math.prod(model.shape[1:]))
            and model.dtype == workspace.real
            and data.dtype == workspace.complex
            and model.flags.c_contiguous
            and data.flags.c_contiguous
        )

    def _matrix(self, workspace: Workspace) -> DenseTransform:
        """Return the transform as a matrix: what it makes of unit vectors."""
        dense = self._dense.get(workspace.complex)
        if dense is None:
            assert self._weights is not None
            columns = np.zeros((self.taken, self.given), np.complex128)
            double = workspace.like(np.dtype(np.complex128), self.elements((self.given, self.given)))
            self._forward_real(np.eye(self.given), columns, double, self._weights)
            dense = self._dense[workspace.complex] = DenseTransform(columns.astype(workspace.complex))
        return dense

    def _forward_real(self, source: Any, target: Any, workspace: Workspace, weights: _Weights) -> None:
        given = source
        if not self._before.identity or source.dtype != workspace.real:
            given = workspace.take("signal", _with(target, self.axis, self._length), True)
            self._before.place(source, given)
        bins = target
        if not self._after.identity:
            bins = workspace.take("work", _with(target, self.axis, self._bins), False)
        workspace.transforms.rfft(given, bins, self.axis, self._norm)
        if self._turned:
            weights.multiply(bins, bins, workspace.xp)
            self._after.place(bins, target)
        else:
            weights.multiply(bins, target, workspace.xp)

    def _adjoint_real(self, source: Any, target: Any, workspace: Workspace, weights: _Weights, owned: bool) -> None:
        bins = source
        if not (owned and self._after.identity):
            bins = workspace.take("work", _with(target, self.axis, self._bins), False)
        if self._turned:
            self._after.place_back(source, bins)
            weights.divide(bins, bins, workspace.xp)
        else:
            weights.divide(source, bins, workspace.xp)
        result = target
        if not self._before.identity:
            result = workspace.take("signal", _with(target, self.axis, self._length), True)
        workspace.transforms.irfft(bins, result, self.axis, self._norm)
        if result is not target:
            self._before.place_back(result, target)


class ToComplex:
    """A real array as a complex one; the adjoint takes the real part."""

    in_place = False

    @staticmethod
    def elements(shape: tuple[int, ...]) -> int:
        """Return how many complex numbers are needed beside input and result."""
        return 0

    def forward(self, source: Any, target: Any, workspace: Workspace, owned: bool) -> None:
        """Fill `target` from `source`."""
        target[...] = source

    def adjoint(self, source: Any, target: Any, workspace: Workspace, owned: bool) -> None:
        """Fill `target` from `source`."""
        target[...] = source.real


class _Weights:
    """Factors of the frequencies of a real transform: those between zero and Nyquist stand for two."""

    __slots__ = ("_backward", "_beyond", "_forward", "_pieces")

    def __init__(self, axis: int, length: int, count: int, scale: float) -> None:
        leading = (slice(None),) * axis
        twice = 1 + (length - 1) // 2
        ends = [(0, 1), (1, twice), (twice, length // 2 + 1)]
        pieces = [(begin, min(end, count)) for begin, end in ends]
        numbers = [n for n, (begin, end) in enumerate(pieces) if begin < end]
        self._pieces = [(*leading, slice(*pieces[n])) for n in numbers]
        self._forward = [scale * _ROOT if n == 1 else scale for n in numbers]
        self._backward = [scale / _ROOT if n == 1 else scale for n in numbers]
        self._beyond = (*leading, slice(count, None))

    def multiply(self, source: Any, target: Any, xp: Any) -> None:
        """Fill `target` with the first frequencies of `source`, weighted."""
        self._apply(self._forward, source, target, xp)

    def divide(self, source: Any, target: Any, xp: Any) -> None:
        """Fill `target` with those of `source` as the inverse transform needs them, and zeros beyond."""
        self._apply(self._backward, source, target, xp)
        if target is not source:
            target[self._beyond] = 0

    def _apply(self, factors: list[float], source: Any, target: Any, xp: Any) -> None:
        for piece, factor in zip(self._pieces, factors, strict=True):
            if factor != 1.0:
                xp.multiply(source[piece], factor, out=target[piece])
            elif target is not source:
                target[piece] = source[piece]


def _with(array: Any, axis: int, extent: int) -> tuple[int, ...]:
    shape = array.shape
    return (*shape[:axis], extent, *shape[axis + 1 :])
