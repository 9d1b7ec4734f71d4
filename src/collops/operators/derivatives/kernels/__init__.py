"""Products with bands on each engine: the only code of the derivatives that differs between engines.

A kernel is made from ``(shape, terms, several, dtype, engine, add)``, see :class:`array_kernels.ArrayKernel`. Its
method ``whole(sources, targets, landing)`` returns the products, in `targets` if they are mutable. If its attribute
``splits`` is true, the exchange of the faces overlaps with ``inner``, which needs no faces, and ``rest`` computes the
remainder.
"""
