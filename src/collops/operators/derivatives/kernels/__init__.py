"""Products with bands on each engine: the only code of the derivatives that differs between engines.

Each module has ``make_kernel(problem)`` for a :class:`collops.operators.derivatives.bands.Problem`. A kernel's method
``run(part, sources, targets, landing)`` returns the products, in `targets` if they are mutable; `landing` is the
receive buffer of the faces. If its attribute ``splits`` is true, the exchange of the faces overlaps with the part
``inner``, which needs no faces, and the part ``rest`` computes the remainder; otherwise the part is ``whole``.
"""
