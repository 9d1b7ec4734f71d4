"""The Fourier transforms of distributed arrays along one, two and any axes, and their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from collops.array.dtypes import real_of
from collops.array.layout_arguments import normal_axis
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators.dims import Dims, check_count, placed
from collops.operators.fourier.operator import Fourier, RangeLayout
from collops.operators.fourier.transform import AxisTransform

if TYPE_CHECKING:
    from collops.backend import LocalArray
    from collops.comm import Communicator

_NORMS = ("ortho", "none", "1/n")


class FFTND(Fourier):
    r"""N-dimensional Fourier transform along any axes, split or not.

    Axes that are not split need no messages. For split axes the array is redistributed between transforms, each time
    by one all-to-all-v: once for one split axis (slabs), once or twice for two (pencils), whichever moves less data. On
    devices, large arrays are redistributed in pieces, which overlap with the transforms. The data stay in the layout of
    the last transform unless `range_layout` is set; adjoint takes the same steps in reverse.

    Collective.

    Parameters
    ----------
    dims : Layout, int or sequence of int
        The model: a layout on any process grid, or a shape that is split along axis 0.
    axes : sequence of int
        Axes to transform.
    nffts : int or sequence of (int or None), optional
        Length of the transform along each: the model is zero-padded at the end, or truncated. By default its extent.
    sampling : float or sequence of float
        Distance of samples along each axis, for the frequencies.
    norm : {"ortho", "none", "1/n"}
        Scaling of both forward and adjoint: by :math:`1/\sqrt{n}`, which makes the adjoint the inverse, none, or by
        :math:`1/n`, with :math:`n` the product of the lengths.
    real : bool
        Whether the model is real. Along the last of `axes` the data then have only the non-negative frequencies;
        frequencies between zero and Nyquist are multiplied by :math:`\sqrt{2}`, which preserves inner products.
    ifftshift_before, fftshift_after : bool or sequence of bool
        Whether the origin of the model, and the zero frequency of the data, is in the middle of the axis.
    dtype : dtype
        Type of the model. The data and the operator have the complex type of the same precision. With a real type the
        model is real even if all frequencies are kept.
    comm : Communicator, optional
        The ranks; the world by default.
    range_layout : Layout or "domain", optional
        Layout of the data: any layout of their shape, or ``"domain"`` to split them like the model. By default the
        layout of the last transform, which takes the fewest messages.

    Attributes
    ----------
    dims, dimsd : tuple of int
        Shapes of model and data.
    axes, nffts, sampling : tuple
        One entry for each axis, in the order of the argument.
    fs : tuple of numpy.ndarray
        The frequencies along each of `axes`, in cycles per unit of `sampling`.
    norm : str
    real : bool
    rdtype, cdtype : numpy.dtype
        Types of model and data.
    clinear : bool
        Whether the model is complex. Otherwise the operator is linear over the real numbers: the imaginary part of a
        complex input is ignored, and the result of the adjoint is real.

    Raises
    ------
    LayoutError
        If an axis does not exist, is named twice or is empty, or a layout does not fit.
    InputError
        If an option has an invalid value.
    UnsupportedTypeError
        If `dtype` is not a real or complex floating type.

    Notes
    -----
    .. math::
        D(k_1, …, k_N) = \sum_{j_1, …, j_N} d(j_1, …, j_N) \prod_{i} e^{-2 \pi \mathrm{i} j_i k_i / n_i}

    before scaling. Results equal the results of ``pylops.signalprocessing.FFTND``.

    Examples
    --------
    >>> import collops
    >>> op = collops.FFTND((4, 6, 8), real=True, dtype="float64")
    >>> op.dimsd
    (4, 6, 5)
    >>> op.adjoint(op.forward(collops.ones((4, 6, 8)))).gather()[0, 0, :2].round(6)
    array([1., 1.])
    """

    def __init__(
        self,
        dims: Dims,
        axes: Sequence[int] | int = (-3, -2, -1),
        nffts: Sequence[int | None] | int | None = None,
        sampling: Sequence[float] | float = 1.0,
        norm: str = "ortho",
        real: bool = False,
        ifftshift_before: Sequence[bool] | bool = False,
        fftshift_after: Sequence[bool] | bool = False,
        *,
        dtype: DTypeLike = "complex128",
        comm: Communicator | None = None,
        range_layout: RangeLayout = None,
    ) -> None:
        domain, comm = placed(dims, comm)
        kind = np.dtype(dtype)
        if norm not in _NORMS:
            raise InputError(f"norm must be 'ortho', 'none' or '1/n', not {norm!r}")
        if kind.kind not in "fc":
            raise UnsupportedTypeError(f"a Fourier transform needs a real or complex dtype, not {kind}")
        self.axes = tuple(normal_axis(axis, domain.ndim) for axis in np.atleast_1d(axes).tolist())
        count = len(self.axes)
        if not 0 < count == len(set(self.axes)):
            raise LayoutError(f"a Fourier transform needs distinct axes, not {axes!r}")
        if any(domain.shape[axis] == 0 for axis in self.axes):
            raise LayoutError(f"a Fourier transform needs nonempty axes, not {axes!r} of the shape {domain.shape}")
        lengths = _one_each("nffts", nffts, count)
        self.nffts = tuple(
            domain.shape[axis] if n is None else check_count("the length of a transform", n, smallest=1)
            for axis, n in zip(self.axes, lengths, strict=True)
        )
        self.sampling = tuple(_step(value) for value in _one_each("sampling", sampling, count))
        before = _one_each("ifftshift_before", ifftshift_before, count)
        after = _one_each("fftshift_after", fftshift_after, count)
        halved = [real and axis == self.axes[-1] for axis in self.axes]
        transforms = [
            AxisTransform(
                axis,
                domain.shape[axis],
                self.nffts[n],
                norm=norm,
                real=halved[n],
                shift_before=bool(before[n]),
                shift_after=bool(after[n]),
            )
            for n, axis in enumerate(self.axes)
        ]
        self.cdtype = np.result_type(kind, np.complex64)
        clinear = not real and kind.kind == "c"
        super().__init__(domain, transforms, self.cdtype, comm, clinear=clinear, range_layout=range_layout)
        frequencies = [
            (np.fft.rfftfreq if half else np.fft.fftfreq)(length, step)
            for half, length, step in zip(halved, self.nffts, self.sampling, strict=True)
        ]
        self.fs = tuple(np.fft.fftshift(f) if shift else f for f, shift in zip(frequencies, after, strict=True))
        self.norm = norm
        self.real = bool(real)
        self.rdtype = self.cdtype if clinear else real_of(kind)


class FFT(FFTND):
    """Fourier transform along one axis, split or not.

    An axis that is not split needs no message. A split axis is gathered by one all-to-all-v, which splits another axis
    instead; the data stay in that layout unless `range_layout` is set. A vector has no other axis: every rank
    transforms the entire vector and stores its part. Collective.

    Parameters
    ----------
    axis : int
        Axis to transform.
    nfft : int, optional
        Length of the transform: the model is zero-padded at the end, or truncated. By default its extent.
    dims, sampling, norm, real, ifftshift_before, fftshift_after, dtype, comm, range_layout
        As for :class:`FFTND`.

    Attributes
    ----------
    axis, nfft : int
    f : numpy.ndarray
        The frequencies, in cycles per unit of `sampling`.

    See Also
    --------
    FFTND : The definition, the other attributes, and the exceptions.

    Examples
    --------
    >>> import collops
    >>> op = collops.FFT((3, 8), sampling=0.004, real=True)
    >>> op.f
    array([  0.  ,  31.25,  62.5 ,  93.75, 125.  ])
    """

    def __init__(
        self,
        dims: Dims,
        axis: int = -1,
        nfft: int | None = None,
        sampling: float = 1.0,
        norm: str = "ortho",
        real: bool = False,
        ifftshift_before: bool = False,
        fftshift_after: bool = False,
        *,
        dtype: DTypeLike = "complex128",
        comm: Communicator | None = None,
        range_layout: RangeLayout = None,
    ) -> None:
        shifts = ifftshift_before, fftshift_after
        keywords: Any = {"dtype": dtype, "comm": comm, "range_layout": range_layout}
        super().__init__(dims, (axis,), nfft, sampling, norm, real, *shifts, **keywords)
        self.axis, self.nfft, self.f = self.axes[0], self.nffts[0], self.fs[0]


class FFT2D(FFTND):
    """Two-dimensional Fourier transform along any two axes, split or not.

    Each direction sends one all-to-all-v if the model is split along one of the axes; two if the data must be split
    like the model, or if the split axis has the real transform, which comes first; none if neither is split.

    Collective.

    Parameters
    ----------
    axes : sequence of two int
        Axes to transform.
    dims, nffts, sampling, norm, real, ifftshift_before, fftshift_after, dtype, comm, range_layout
        As for :class:`FFTND`.

    Attributes
    ----------
    f1, f2 : numpy.ndarray
        The frequencies along the two axes.

    Raises
    ------
    InputError
        If `axes` does not name two axes.

    See Also
    --------
    FFTND : The definition, the other attributes, and the exceptions.

    Examples
    --------
    >>> import collops
    >>> collops.FFT2D((5, 6), real=True).dimsd
    (5, 4)
    """

    def __init__(
        self,
        dims: Dims,
        axes: Sequence[int] | int = (-2, -1),
        nffts: Sequence[int | None] | int | None = None,
        sampling: Sequence[float] | float = 1.0,
        norm: str = "ortho",
        real: bool = False,
        ifftshift_before: Sequence[bool] | bool = False,
        fftshift_after: Sequence[bool] | bool = False,
        *,
        dtype: DTypeLike = "complex128",
        comm: Communicator | None = None,
        range_layout: RangeLayout = None,
    ) -> None:
        if np.size(axes) != 2:
            raise InputError(f"FFT2D needs two axes, not {axes!r}")
        shifts = ifftshift_before, fftshift_after
        keywords: Any = {"dtype": dtype, "comm": comm, "range_layout": range_layout}
        super().__init__(dims, axes, nffts, sampling, norm, real, *shifts, **keywords)
        self.f1, self.f2 = self.fs


def _one_each(name: str, value: Any, count: int) -> LocalArray:
    if value is None or np.ndim(value) == 0:
        return [value] * count
    values = list(value)
    if len(values) != count:
        raise InputError(f"{name} must be one value, or one for each of {count} axes, not {value!r}")
    return values


def _step(value: float) -> float:
    step = np.nan if np.iscomplexobj(value) else float(value)
    if step == 0 or not np.isfinite(step):
        raise InputError(f"a sampling must be a finite nonzero number, not {value!r}")
    return step
