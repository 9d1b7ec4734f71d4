"""Nonlinear least squares: minimise half the squared norm of a smooth residual.

A problem is an object with two methods: ``residual(x)`` returns a distributed array, and ``jacobian(x)`` its derivative
at `x`, a :class:`collops.LinearOperator` from the layout of `x` to the layout of the residual. :func:`jax_problem`
creates a problem from a function of JAX. To regularise, return a stacked residual with an additional part.

References
----------
- Bertsekas, D. P., "Projected Newton methods for optimization problems with simple constraints", SIAM Journal on
  Control and Optimization 20, 221-246, 1982.
- Byrd, R. H., Nocedal, J., Schnabel, R. B., "Representations of quasi-Newton matrices and their use in limited memory
  methods", Mathematical Programming 63, 129-156, 1994.
- Nocedal, J., Wright, S. J., "Numerical optimization", 2nd edition, Springer, 2006.
"""

from __future__ import annotations

from collops.solvers.nonlinear.gauss_newton import gauss_newton
from collops.solvers.nonlinear.lbfgs import lbfgs
from collops.solvers.nonlinear.traced import jax_problem

__all__ = ["gauss_newton", "jax_problem", "lbfgs"]
