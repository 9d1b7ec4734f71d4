"""FFT2D: the discrete Fourier transform along two axes of a distributed array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import InputError
from collops.operators.dims import Dims
from collops.operators.fourier.fftnd import FFTND
from collops.operators.fourier.operator import RangeLayout

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["FFT2D"]


class FFT2D(FFTND):
    """Two-dimensional Fourier transform along any two axes, whether they are split or not.

    Of a model that is split along one of them, it sends one all-to-all-v each way; two where the data shall be split
    as the model is, or where the axis of a real transform is the one that is split, as that one goes first; none where
    both axes are whole. Collective.

    Parameters
    ----------
    dims : Layout, int or sequence of int
        The model: a layout on any process grid, or a shape that is split along axis 0.
    axes : sequence of two int
        Axes to transform.
    nffts, sampling, norm, real, ifftshift_before, fftshift_after, dtype, comm, range_layout
        As for :class:`FFTND`.

    Attributes
    ----------
    f1, f2 : numpy.ndarray
        The frequencies along the two axes.

    Raises
    ------
    InputError
        If `axes` are not two, or an option is none of those allowed.
    LayoutError
        If an axis does not exist, is named twice or is empty, or a layout does not fit.

    See Also
    --------
    FFTND : What is computed, and the other attributes.

    Examples
    --------
    >>> import collops
    >>> from collops.operators import FFT2D
    >>> FFT2D((5, 6), real=True).dimsd
    (5, 4)
    """

    def __init__(
        self,
        dims: Dims,
        axes: Any = (-2, -1),
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
        if np.size(axes) != 2:
            raise InputError(f"FFT2D transforms two axes, not {axes!r}")
        super().__init__(
            *(dims, axes, nffts, sampling, norm, real, ifftshift_before, fftshift_after),
            dtype=dtype,
            comm=comm,
            range_layout=range_layout,
        )
        self.f1, self.f2 = self.fs
