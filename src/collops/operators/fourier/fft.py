"""FFT: the discrete Fourier transform along one axis of a distributed array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collops.operators.dims import Dims
from collops.operators.fourier.fftnd import FFTND
from collops.operators.fourier.operator import RangeLayout

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["FFT"]


class FFT(FFTND):
    """Fourier transform along one axis, whether it is split or not.

    Along a whole axis nothing is sent. A split axis is made whole by one all-to-all-v, which splits another one
    instead; the data stay so, unless `range_layout` says otherwise. A vector has no other axis: all ranks then
    transform all of it, and keep their parts. Collective.

    Parameters
    ----------
    dims : Layout, int or sequence of int
        The model: a layout on any process grid, or a shape that is split along axis 0.
    axis : int
        Axis to transform.
    nfft : int, optional
        Length of the transform: the model is padded with zeros at the end, or cut. By default its extent.
    sampling : float
        Distance of samples, for the frequencies.
    norm, real, ifftshift_before, fftshift_after, dtype, comm, range_layout
        As for :class:`FFTND`.

    Attributes
    ----------
    axis, nfft : int
    f : numpy.ndarray
        The frequencies, in cycles per unit of `sampling`.

    Raises
    ------
    LayoutError
        If the axis does not exist or is empty, or a layout does not fit.
    InputError
        If an option is none of those allowed.

    See Also
    --------
    FFTND : What is computed, and the other attributes.

    Examples
    --------
    >>> import collops
    >>> from collops.operators import FFT
    >>> op = FFT((3, 8), sampling=0.004, real=True)
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
        dtype: Any = "complex128",
        comm: Communicator | None = None,
        range_layout: RangeLayout = None,
    ) -> None:
        super().__init__(
            *(dims, (axis,), nfft, sampling, norm, real, ifftshift_before, fftshift_after),
            dtype=dtype,
            comm=comm,
            range_layout=range_layout,
        )
        self.axis, self.nfft, self.f = self.axes[0], self.nffts[0], self.fs[0]
