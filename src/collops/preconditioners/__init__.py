"""Preconditioners: operators that approximate the inverse of another one, for the argument ``M`` of solvers.

References
----------
- Adams, M., Brezina, M., Hu, J., Tuminaro, R., "Parallel multigrid smoothing: polynomial versus Gauss-Seidel", Journal
  of Computational Physics 188, 593-610, 2003.
- Carson, E., Higham, N. J., "Accelerating the solution of linear systems by iterative refinement in three precisions",
  SIAM Journal on Scientific Computing 40, A817-A847, 2018.
- Li, X. S., "An overview of SuperLU: algorithms, implementation, and user interface", ACM Transactions on Mathematical
  Software 31, 302-325, 2005.
- Saad, Y., "Iterative methods for sparse linear systems", second edition, SIAM, 2003.
- Vaněk, P., Mandel, J., Brezina, M., "Algebraic multigrid by smoothed aggregation for second and fourth order elliptic
  problems", Computing 56, 179-196, 1996.
"""

from collops.preconditioners.chebyshev import chebyshev
from collops.preconditioners.inner import inner_solve
from collops.preconditioners.jacobi import block_jacobi, jacobi
from collops.preconditioners.two_level import two_level

__all__ = ["block_jacobi", "chebyshev", "inner_solve", "jacobi", "two_level"]
