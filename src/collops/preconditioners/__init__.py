"""Preconditioners: operators that approximate the inverse of another operator, for the argument ``M`` of solvers.

References
----------
- Adams, M., Brezina, M., Hu, J., Tuminaro, R., "Parallel multigrid smoothing: polynomial versus Gauss-Seidel", Journal
  of Computational Physics 188, 593-610, 2003.
- Anzt, H., Chow, E., Dongarra, J., "Iterative sparse triangular solves for preconditioning", Euro-Par 2015, 650-661,
  2015.
- Baker, A. H., Falgout, R. D., Kolev, T. V., Yang, U. M., "Multigrid smoothers for ultraparallel computing", SIAM
  Journal on Scientific Computing 33, 2864-2887, 2011.
- Bell, N., Dalton, S., Olson, L. N., "Exposing fine-grained parallelism in algebraic multigrid methods", SIAM Journal
  on Scientific Computing 34, C123-C152, 2012.
- Carson, E., Higham, N. J., "Accelerating the solution of linear systems by iterative refinement in three precisions",
  SIAM Journal on Scientific Computing 40, A817-A847, 2018.
- Chow, E., Patel, A., "Fine-grained parallel incomplete LU factorization", SIAM Journal on Scientific Computing 37,
  C169-C193, 2015.
- Guitton, A., "Amplitude and kinematic corrections of migrated images for nonunitary imaging operators", Geophysics 69,
  1017-1024, 2004.
- Hu, J., Schuster, G. T., Valasek, P. A., "Poststack migration deconvolution", Geophysics 66, 939-952, 2001.
- Li, X. S., "An overview of SuperLU: algorithms, implementation, and user interface", ACM Transactions on Mathematical
  Software 31, 302-325, 2005.
- Saad, Y., "Iterative methods for sparse linear systems", second edition, SIAM, 2003.
- Vaněk, P., Mandel, J., Brezina, M., "Algebraic multigrid by smoothed aggregation for second and fourth order elliptic
  problems", Computing 56, 179-196, 1996.
"""

from collops.preconditioners.chebyshev import chebyshev
from collops.preconditioners.inner import inner_solve
from collops.preconditioners.jacobi import block_jacobi, jacobi
from collops.preconditioners.local_spectra import local_spectra
from collops.preconditioners.multigrid import Multigrid, multigrid
from collops.preconditioners.two_level import two_level

__all__ = [
    "Multigrid",
    "block_jacobi",
    "chebyshev",
    "inner_solve",
    "jacobi",
    "local_spectra",
    "multigrid",
    "two_level",
]
