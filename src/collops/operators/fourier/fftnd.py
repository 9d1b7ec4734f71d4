"""FFTND: the discrete Fourier transform along any axes of a distributed array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from collops.comm.given import communicator_or_world
from collops.operators.dims import Dims, as_layout
from collops.operators.fourier.arguments import axis_arguments, data_dtype
from collops.operators.fourier.operator import Fourier, RangeLayout
from collops.operators.fourier.transform import AxisTransform

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["FFTND"]


class FFTND(Fourier):
    r"""N-dimensional Fourier transform along any axes, whether they are split or not.

    Along axes that every rank has whole nothing is sent. Where axes are split, the array is brought to other layouts
    on the way, each by one all-to-all-v: for one split axis (slabs) that is one, for two (pencils) one or two,
    whichever moves less. The data stay where the last transform leaves them unless `range_layout` says otherwise;
    adjoint takes the same way back.

    Collective.

    Parameters
    ----------
    dims : Layout, int or sequence of int
        The model: a layout on any process grid, or a shape that is split along axis 0.
    axes : sequence of int
        Axes to transform.
    nffts : int or sequence of (int or None), optional
        Length of the transform along each: the model is padded with zeros at the end, or cut. By default its extent.
    sampling : float or sequence of float
        Distance of samples along each axis, for the frequencies.
    norm : {"ortho", "none", "1/n"}
        Scaling of both forward and adjoint by :math:`1/\sqrt{n}`, which makes the adjoint the inverse, not at all, or
        by :math:`1/n`, with :math:`n` the product of the lengths.
    real : bool
        Whether the model is real. Of the last of `axes` the data then have only the frequencies that are not negative,
        and those between zero and Nyquist are multiplied by :math:`\sqrt{2}`, so that inner products stay the same.
    ifftshift_before, fftshift_after : bool or sequence of bool
        Whether the model has its zero in the middle of an axis, and whether the data shall have theirs there.
    dtype : dtype
        Of the model. That of the data, and of the operator, is the complex type of the same precision. With a real type
        the model is real even where all frequencies are kept.
    comm : Communicator, optional
        The ranks; the world by default.
    range_layout : Layout or "domain", optional
        Layout of the data: any of their shape, or ``"domain"`` for one that is split as the model is. By default the
        layout that costs the fewest messages: that in which the last transform leaves them.

    Attributes
    ----------
    dims, dimsd : tuple of int
        Shapes of model and data.
    axes, nffts, sampling : tuple
        One entry for each axis, in the order given.
    fs : tuple of numpy.ndarray
        The frequencies along each of `axes`, in cycles per unit of `sampling`.
    norm : str
    real : bool
    rdtype, cdtype : numpy.dtype
        Of model and data.
    clinear : bool
        Whether the model is complex. Otherwise the operator is linear over the real numbers: the imaginary part of a
        complex input is no part of the model, and the result of the adjoint is real.

    Raises
    ------
    LayoutError
        If an axis does not exist, is named twice or is empty, or a layout does not fit.
    InputError
        If an option is none of those above.
    UnsupportedTypeError
        If `dtype` is no real or complex type.

    Notes
    -----
    .. math::
        D(k_1, …, k_N) = \sum_{j_1, …, j_N} d(j_1, …, j_N) \prod_{i} e^{-2 \pi \mathrm{i} j_i k_i / n_i}

    before scaling. Forward and adjoint equal those of ``pylops.signalprocessing.FFTND``.

    Examples
    --------
    >>> import collops
    >>> from collops.operators import FFTND
    >>> op = FFTND((4, 6, 8), real=True, dtype="float64")
    >>> op.dimsd
    (4, 6, 5)
    >>> op.adjoint(op.forward(collops.ones((4, 6, 8)))).gather()[0, 0, :2].round(6)
    array([1., 1.])
    """

    def __init__(
        self,
        dims: Dims,
        axes: Any = (-3, -2, -1),
        nffts: Any = None,
        sampling: Any = 1.0,
        norm: str = "ortho",
        real: bool = False,
        ifftshift_before: Any = False,
        fftshift_after: Any = False,
        *,
        dtype: Any = "complex128",
        comm: Communicator | None = None,
        range_layout: RangeLayout = None,
    ) -> None:
        comm = communicator_or_world(comm)
        domain = as_layout(dims, comm)
        asked = axis_arguments(domain, axes, nffts, sampling, norm, ifftshift_before, fftshift_after)
        rdtype, cdtype = data_dtype(dtype)
        clinear = not real and np.dtype(dtype).kind == "c"
        transforms = [
            AxisTransform(
                each.axis,
                domain.shape[each.axis],
                each.length,
                norm=norm,
                real=real and each is asked[-1],
                shift_before=each.shift_before,
                shift_after=each.shift_after,
            )
            for each in asked
        ]
        super().__init__(domain, transforms, cdtype, comm, clinear=clinear, range_layout=range_layout)
        self.axes = tuple(each.axis for each in asked)
        self.nffts = tuple(each.length for each in asked)
        self.sampling = tuple(each.sampling for each in asked)
        self.fs = tuple(_frequencies(each, real and each is asked[-1]) for each in asked)
        self.norm = norm
        self.real = bool(real)
        self.rdtype = cdtype if clinear else rdtype
        self.cdtype = cdtype


def _frequencies(asked: Any, real: bool) -> np.ndarray:
    frequencies = (np.fft.rfftfreq if real else np.fft.fftfreq)(asked.length, asked.sampling)
    return np.fft.fftshift(frequencies) if asked.shift_after else frequencies
