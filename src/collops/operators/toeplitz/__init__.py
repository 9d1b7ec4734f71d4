"""Products with block-Toeplitz matrices by Fourier transforms, with matrices in any precision down to half.

A module of :data:`forms_for` has ``batch(spectra)``, which returns the products of all matrices of a
:class:`~collops.operators.toeplitz.spectra.Spectra` with matrices of vectors: ``forward(x, out)`` and ``adjoint(y,
out)`` take arrays of shape (frequencies, columns or rows of a matrix, right-hand sides) in the accumulation's type, and
return the result, in `out` unless that is ``None``.
"""

from __future__ import annotations

from collops.backend import kernel_table

forms_for = kernel_table(__name__, "generic", cupy="device")
