"""Vector kernels of each engine. The only code of this room that differs between engines.

Each module has ``axpby(a, x, b, y, out)``, ``dot(x, y, conjugate)``, ``dots(slots, dtype, conjugate, out)``,
``divide(a, b, out)`` and ``norm_part(x, order)``, all on local arrays. Those of engines that write in place have
``go_and_turn(x, length, direction, ratio, gradient)``, too.
"""

from collops.array.kernels.dispatch import kernels_for

__all__ = ["kernels_for"]
