"""Traces as a linear function of the wavelet, for its inversion."""

from __future__ import annotations

import numpy as np
from scipy import fft

from collops import DistributedArray, Layout, LinearOperator
from collops.extend.arrays import Array
from collops.extend.operators import filled
from collops.seismic.waves.modelling import Modelling, check_host


class WaveletModelling(LinearOperator):
    r"""The traces of all shots at one model as a function of the wavelet. Collective.

    Parameters
    ----------
    modelling : Modelling
        The modelling of a propagator, whose ``wavelet_operator`` makes this operator.
    responses : DistributedArray
        The traces of an impulse at the first sample.
    common : bool
        Whether all shots have the same wavelet, shape (samples,); otherwise each has its own, (shots, samples).

    Notes
    -----
    The scheme does not change with time, so that traces are convolutions of the wavelet with the traces of an impulse,
    which are modelled once and stored as spectra.

    Messages: none forward, one allreduce of a common wavelet in the adjoint.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.seismic.waves import Geometry, Grid, Layers, Propagator
    >>> grid = Grid((12, 10), (10.0, 10.0), order=2, layers=Layers(4))
    >>> geometry = Geometry([[30.0, 50.0]], [[40.0, 55.0]], np.hanning(30), 0.002)
    >>> F = Propagator(grid, geometry, dtype="float64", kernels="numpy")
    >>> model = collops.full(F.domain, 2000.0)
    >>> W = F.wavelet_operator(model)
    >>> wavelet = collops.from_global(np.hanning(30), layout=W.domain)
    >>> bool((W @ wavelet - F(model)).norm() < 1e-12 * F(model).norm())
    True
    """

    capturable = False

    def __init__(self, modelling: Modelling, responses: DistributedArray, common: bool) -> None:
        traces, layout, comm = responses.local_array, modelling.range, modelling.comm
        shots, _, samples = layout.shape
        self._common, self._length = common, fft.next_fast_len(2 * samples - 1, real=True)
        self._spectra = fft.rfft(traces, self._length)
        self._across = modelling.across
        groups = len(modelling.shares)
        alike = Layout.replicated((samples,), comm.size)
        grid, sizes = (groups, comm.size // groups), [layout.sizes[0], None]
        domain = alike if common else Layout((shots, samples), comm.size, grid, (0, None), sizes)
        super().__init__(domain, layout, modelling.dtype, comm)

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        check_host(x, "traces" if adjoint else "the wavelet")
        own = np.asarray(x.local_array, self.dtype)
        return filled(out, self._correlated(own) if adjoint else self._convolved(own))

    def _convolved(self, wavelet: np.ndarray) -> np.ndarray:
        spectrum = fft.rfft(wavelet, self._length)
        spectrum = spectrum if self._common else spectrum[:, np.newaxis]
        return fft.irfft(self._spectra * spectrum, self._length)[..., : wavelet.shape[-1]]

    def _correlated(self, traces: np.ndarray) -> np.ndarray:
        products = self._spectra.conj() * fft.rfft(traces, self._length)
        sums = fft.irfft(products.sum(axis=(0, 1) if self._common else 1), self._length)[..., : traces.shape[-1]]
        return self._across.allreduce(np.ascontiguousarray(sums)) if self._common else sums
