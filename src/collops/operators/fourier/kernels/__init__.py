"""One-dimensional transforms of each engine. The only code of this folder that differs between engines.

Each module has a class ``Transforms(threads)`` with ``fft(work, axis, norm, inverse)``, which works in place,
``rfft(source, target, axis, norm)`` and ``irfft(source, target, axis, norm)``, all on local arrays in C order. `norm`
is that of the operators: adjoints are scaled as forwards are, not by the number of samples as inverses.
"""

from collops.operators.fourier.kernels.dispatch import transforms_for

__all__ = ["transforms_for"]
