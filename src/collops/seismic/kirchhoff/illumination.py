"""The diagonal of the normal operator of Kirchhoff modelling (illumination)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from collops.seismic.kirchhoff.fixed_point import FixedTables
from collops.seismic.kirchhoff.geometry import checked_wavelet

__all__ = ["normal_diagonal"]


def normal_diagonal(
    tables: FixedTables, wavelet: ArrayLike, wavelet_center: int, weights: ArrayLike | None = None
) -> np.ndarray:
    r"""Return the diagonal of :math:`A^H W^2 A` for this rank's part of a Kirchhoff operator :math:`A`. Not collective.

    Parameters
    ----------
    tables, wavelet, wavelet_center
        As for :class:`LocalKirchhoff`.
    weights : array, optional
        The diagonal of :math:`W`, of shape (sources, receivers, samples); ones by default.

    Returns
    -------
    ndarray
        float64, one number per image point. The sum over all ranks is the diagonal for all shots.

    Notes
    -----
    An image point adds to a trace the wavelet at the sample :math:`i` before the arrival, times :math:`1 - f`, and at
    the next sample, times :math:`f`. The squared norm of this column is
    :math:`(1 - f)^2 e_i + 2 f (1 - f) c_i + f^2 e_{i+1}`, where :math:`e_i` is the energy of the wavelet at sample
    :math:`i`, within the record and with the weights, and :math:`c_i` its autocorrelation at lag 1.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.seismic.kirchhoff.fixed_point import FixedTables
    >>> from collops.seismic.kirchhoff.illumination import normal_diagonal
    >>> times = np.array([[0.004, 0.006, 9.0]])  # the last one is after the record
    >>> normal_diagonal(FixedTables.from_seconds(times, 0 * times, 0.004, 10, "float64"), np.ones(1), 0)
    array([1. , 0.5, 0. ])
    """
    from scipy.signal import oaconvolve

    taps, center = checked_wavelet(wavelet, wavelet_center)
    samples, bits = tables.scale.samples, tables.scale.fraction_bits
    shape = len(tables.sources), len(tables.receivers), samples
    square = np.ones((1, 1, samples)) if weights is None else np.asarray(weights, np.float64).reshape(shape) ** 2

    def correlated(kernel: np.ndarray) -> np.ndarray:
        first = taps.size - 1 - center
        return oaconvolve(square, kernel[None, None, ::-1], axes=-1)[..., first : first + samples]

    energy, product = (
        np.broadcast_to(correlated(kernel), shape)
        for kernel in (taps**2, np.concatenate([[0.0], taps[1:] * taps[:-1]]))
    )
    total = np.zeros(tables.nodes.points)
    mask = (1 << bits) - 1
    unsigned = np.dtype(tables.scale.fixed_type.str.replace("i", "u"))
    outside = unsigned.type(samples - 1)  # for arrivals before the first sample, at the last or after it
    back = [tables.station_times(row) for row in tables.receivers]
    for source, row in enumerate(tables.sources):
        outward = tables.station_times(row)
        for receiver in range(len(back)):
            e, c = energy[source, receiver], product[source, receiver, :-1]
            # The same as a polynomial of f; coefficients are nonzero only for arrivals within the trace.
            constant, linear, quadratic = np.zeros((3, samples))
            constant[:-1], linear[:-1], quadratic[:-1] = e[:-1], 2 * (c - e[:-1]), e[:-1] - 2 * c + e[1:]
            time = outward + back[receiver]
            index = np.minimum((time >> bits).view(unsigned), outside)
            far = (time & mask) * 2.0**-bits
            total += (quadratic[index] * far + linear[index]) * far + constant[index]
    return np.maximum(total, 0)
