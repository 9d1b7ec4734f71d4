"""Products with bands on each engine. The only code of the derivatives that differs between engines.

Each module has ``make_kernel(shape, terms, several, dtype, engine, add)``, which returns an object with the methods
``inner``, ``rest`` and ``whole``, all of ``(sources, targets, landing)``: what needs no faces, the remainder, and both.
Its attribute ``splits`` says whether the exchange had better go beside ``inner`` than before ``whole``.
"""

from collops.operators.derivatives.kernels.dispatch import Several, Term, kernel_for

__all__ = ["Several", "Term", "kernel_for"]
