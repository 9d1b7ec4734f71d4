r"""Misfits of full-waveform inversion: attributes of traces, and their derivatives.

A misfit is half the squared distance of the attributes of modelled and observed traces,
:math:`\frac12 \|\phi(u) - \phi(d)\|^2`, so that every solver for nonlinear least squares applies. A function here
returns an attribute with its exact derivative. Traces are along the last axis; all arrays have the same shape.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

_FLOOR = 1e-3  # of an envelope, relative to the largest amplitude of the observed trace
_SHARPNESS = 3.0  # of the exponent of `transport` at the largest amplitude of the observed trace


class Attribute(NamedTuple):
    """An attribute of traces, and its derivative at them.

    Attributes
    ----------
    values : array
        The attribute, of the shape of the traces.
    forward, adjoint : callable
        The derivative applied to a change of the traces, and its transpose applied to a change of the attribute.
    """

    values: Any
    forward: Callable[[Any], Any]
    adjoint: Callable[[Any], Any]


def waveform(traces: Any, observed: Any, xp: ModuleType) -> Attribute:
    """Return the traces themselves: the misfit is the squared difference of waveforms.

    Parameters
    ----------
    traces : array
        Modelled or observed traces, float32 or float64, samples along the last axis.
    observed : array
        The observed traces, which determine scales.
    xp : module
        NumPy, or the module of the same interface for the arrays.
    """
    return Attribute(traces, lambda change: change, lambda change: change)


def envelope(traces: Any, observed: Any, xp: ModuleType) -> Attribute:
    r"""Return the envelopes :math:`\sqrt{u^2 + (H u)^2 + \epsilon^2}` with the Hilbert transform H [1]_.

    They lack the phase of the waves, and have low frequencies that the waves lack. :math:`\epsilon` is a thousandth of
    the largest amplitude of the observed trace. Parameters as for :func:`waveform`.

    References
    ----------
    .. [1] Bozdag, E., Trampert, J., and Tromp, J., "Misfit functions for full waveform inversion based on instantaneous
       phase and envelope measurements", Geophysical Journal International 185, 845-870, 2011.
    """
    quadrature = _hilbert(traces, xp)
    floor = _FLOOR * _positive(xp.abs(observed).max(axis=-1, keepdims=True), xp)
    values = xp.sqrt(traces**2 + quadrature**2 + floor**2)
    cosine, sine = traces / values, quadrature / values
    return Attribute(
        values,
        lambda change: cosine * change + sine * _hilbert(change, xp),
        lambda change: cosine * change - _hilbert(sine * change, xp),
    )


def correlation(traces: Any, observed: Any, xp: ModuleType) -> Attribute:
    r"""Return the traces over their norms.

    The misfit is 1 minus the normalised correlation :math:`\langle u, d \rangle / (\|u\| \|d\|)` of each trace, which
    does not depend on amplitudes [1]_. Traces of zeros stay zeros. Parameters as for :func:`waveform`.

    References
    ----------
    .. [1] Choi, Y., and Alkhalifah, T., "Application of multi-source waveform inversion to marine streamer data using
       the global correlation norm", Geophysical Prospecting 60, 748-758, 2012.
    """
    norm = xp.sqrt((traces**2).sum(axis=-1, keepdims=True))
    inverse = xp.where(norm > 0, 1 / _positive(norm, xp), 0)
    values = traces * inverse

    def tangent(change: Any) -> Any:  # its own transpose
        return inverse * (change - values * (values * change).sum(axis=-1, keepdims=True))

    return Attribute(values, tangent, tangent)


def transport(traces: Any, observed: Any, xp: ModuleType) -> Attribute:
    r"""Return the times at which traces, as densities, reach equal steps of their integral.

    The misfit of a trace is half its squared 2-Wasserstein distance from the observed trace: in one dimension this is
    the squared distance of the quantile functions [1]_. It grows with time shifts, also beyond half a period, where
    differences of waveforms decrease [2]_. The density of a trace is :math:`\log(1 + e^{b u})` over its sum, with b
    three over the largest amplitude of the observed trace, and constant between samples. It is positive everywhere, so
    that the misfit is not convex with respect to shifts. Times are in samples, at the levels :math:`(j + 1/2) / n`. The
    derivative is exact; it jumps where a quantile passes a sample. Parameters as for :func:`waveform`.

    References
    ----------
    .. [1] Peyre, G., and Cuturi, M., "Computational optimal transport", Foundations and Trends in Machine Learning
       11(5-6), 355-607, 2019, remark 2.30.
    .. [2] Yang, Y., Engquist, B., Sun, J., and Hamfeldt, B. F., "Application of optimal transport and the quadratic
       Wasserstein metric to full-waveform inversion", Geophysics 83(1), R43-R62, 2018.
    """
    samples, dtype = traces.shape[-1], traces.dtype
    sharpness = _SHARPNESS / _positive(xp.abs(observed).max(axis=-1, keepdims=True), xp).astype("float64")
    exponent = (sharpness * traces).reshape(-1, samples)
    density = xp.logaddexp(exponent, 0)
    slope = sharpness.reshape(-1, 1) * xp.exp(exponent - density)  # of the density
    below = xp.cumsum(density, axis=-1) - density  # the integral before each sample
    total = below[:, -1:] + density[:, -1:]
    levels = (xp.arange(samples) + 0.5) / samples
    # One search for all traces: their integrals are moved to consecutive unit intervals.
    row = xp.arange(len(density))[:, None]
    ends = ((below + density) / total + row).reshape(-1)
    cells = xp.searchsorted(ends, (levels + row).reshape(-1)).reshape(density.shape) - row * samples
    cells = xp.clip(cells, 0, samples - 1)
    there = xp.take_along_axis(density, cells, -1)
    fraction = (levels * total - xp.take_along_axis(below, cells, -1)) / there

    def forward(change: Any) -> Any:
        # Linearise: below + fraction * density = level * total, in the cell of each level.
        change = slope * change.reshape(density.shape)
        part = xp.cumsum(change, axis=-1)
        entire, before = part[:, -1:], xp.take_along_axis(part - change, cells, -1)
        times = (levels * entire - before - fraction * xp.take_along_axis(change, cells, -1)) / there
        return times.reshape(traces.shape).astype(dtype)

    def adjoint(change: Any) -> Any:
        weight = change.reshape(density.shape) / there
        places = (cells + row * samples).reshape(-1)

        def gathered(values: Any) -> Any:  # the sum over the levels in each cell
            return xp.bincount(places, weights=values.reshape(-1), minlength=density.size).reshape(density.shape)

        of_cell = gathered(weight)
        after = of_cell.sum(axis=-1, keepdims=True) - xp.cumsum(of_cell, axis=-1)  # of the levels in later cells
        result = (levels * weight).sum(axis=-1, keepdims=True) - after - gathered(fraction * weight)
        return (slope * result).reshape(traces.shape).astype(dtype)

    return Attribute((cells + fraction).reshape(traces.shape).astype(dtype), forward, adjoint)


MISFITS: dict[str, Callable[[Any, Any, ModuleType], Attribute]] = {
    "waveform": waveform,
    "envelope": envelope,
    "correlation": correlation,
    "transport": transport,
}
"""The misfits by the words of the option."""


def _hilbert(traces: Any, xp: ModuleType) -> Any:
    """Return the periodic Hilbert transform, whose transpose is its negative."""
    samples = traces.shape[-1]
    spectrum = xp.fft.rfft(traces, axis=-1)
    factor = xp.full(spectrum.shape[-1], -1j)
    factor[0] = 0
    if samples % 2 == 0:
        factor[-1] = 0
    return xp.fft.irfft(factor * spectrum, samples, axis=-1).astype(traces.dtype)


def _positive(scale: Any, xp: ModuleType) -> Any:
    """Return a scale, or 1 for traces of zeros."""
    return xp.where(scale > 0, scale, 1)
