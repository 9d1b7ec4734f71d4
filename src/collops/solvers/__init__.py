"""Iterative solvers: methods as pure functions over a state, and the driver that runs them.

Each line exports one name; adding a solver takes its file and a line here.

References
----------
- Beck, A., Teboulle, M., "A fast iterative shrinkage-thresholding algorithm for linear inverse problems", SIAM Journal
  on Imaging Sciences 2, 183-202, 2009.
- Bielich, D., Langou, J., Thomas, S., Świrydowicz, K., Yamazaki, I., Boman, E. G., "Low-synch Gram-Schmidt with delayed
  reorthogonalization for Krylov solvers", Parallel Computing 112, 102940, 2022.
- Björck, Å., "Numerical methods for least squares problems", SIAM, 1996.
- Chen, T., Carson, E. C., "Predict-and-recompute conjugate gradient variants", SIAM Journal on Scientific Computing 42,
  A3084-A3108, 2020.
- Chronopoulos, A. T., Gear, C. W., "s-step iterative methods for symmetric linear systems", Journal of Computational
  and Applied Mathematics 25, 153-168, 1989.
- Chung, J., Nagy, J. G., O'Leary, D. P., "A weighted-GCV method for Lanczos-hybrid regularization", Electronic
  Transactions on Numerical Analysis 28, 149-167, 2008.
- Daubechies, I., Defrise, M., De Mol, C., "An iterative thresholding algorithm for linear inverse problems with a
  sparsity constraint", Communications on Pure and Applied Mathematics 57, 1413-1457, 2004.
- Dubrulle, A. A., "Retooling the method of block conjugate gradients", Electronic Transactions on Numerical Analysis
  12, 216-233, 2001.
- Fong, D. C.-L., Saunders, M., "LSMR: an iterative algorithm for sparse least-squares problems", SIAM Journal on
  Scientific Computing 33, 2950-2971, 2011.
- Fukaya, T., Kannan, R., Nakatsukasa, Y., Yamamoto, Y., Yanagisawa, Y., "Shifted Cholesky QR for computing the QR
  factorization of ill-conditioned matrices", SIAM Journal on Scientific Computing 42, A477-A503, 2020.
- Greenbaum, A., "Estimating the attainable accuracy of recursively computed residual methods", SIAM Journal on Matrix
  Analysis and Applications 18, 535-551, 1997.
- Hestenes, M. R., Stiefel, E., "Methods of conjugate gradients for solving linear systems", Journal of Research of the
  National Bureau of Standards 49, 409-436, 1952.
- Higham, N. J., "Accuracy and stability of numerical algorithms", second edition, SIAM, 2002.
- Lukas, M. A., "Robust generalized cross-validation for choosing the regularization parameter", Inverse Problems 22,
  1883-1902, 2006.
- Morozov, V. A., "On the solution of functional equations by the method of regularization", Soviet Mathematics Doklady
  7, 414-417, 1966.
- O'Leary, D. P., "The block conjugate gradient algorithm and related methods", Linear Algebra and its Applications 29,
  293-322, 1980.
- Paige, C. C., Saunders, M. A., "Solution of sparse indefinite systems of linear equations", SIAM Journal on Numerical
  Analysis 12, 617-629, 1975.
- Paige, C. C., Saunders, M. A., "LSQR: an algorithm for sparse linear equations and sparse least squares", ACM
  Transactions on Mathematical Software 8, 43-71, 1982.
- Saad, Y., "A flexible inner-outer preconditioned GMRES algorithm", SIAM Journal on Scientific Computing 14, 461-469,
  1993.
- Saad, Y., Schultz, M. H., "GMRES: a generalized minimal residual algorithm for solving nonsymmetric linear systems",
  SIAM Journal on Scientific and Statistical Computing 7, 856-869, 1986.
- Saad, Y., "Iterative methods for sparse linear systems", second edition, SIAM, 2003.
- Simon, H. D., Zha, H., "Low-rank matrix approximation using the Lanczos bidiagonalization process with applications",
  SIAM Journal on Scientific Computing 21, 2257-2274, 2000.
- Stathopoulos, A., Wu, K., "A block orthogonalization procedure with constant synchronization requirements", SIAM
  Journal on Scientific Computing 23, 2165-2182, 2002.
- Stewart, G. W., "Research, development and LINPACK", in Rice, J. R. (ed.), "Mathematical Software III", Academic
  Press, 1977.
- Stone, M., "Cross-validatory choice and assessment of statistical predictions", Journal of the Royal Statistical
  Society B 36, 111-147, 1974.
- Van der Vorst, H. A., "Bi-CGSTAB: a fast and smoothly converging variant of Bi-CG for the solution of nonsymmetric
  linear systems", SIAM Journal on Scientific and Statistical Computing 13, 631-644, 1992.
"""

from types import ModuleType as _Module

from collops.solvers.bicgstab import bicgstab as bicgstab
from collops.solvers.block_cg import block_cg as block_cg
from collops.solvers.block_cgls import block_cgls as block_cgls
from collops.solvers.cg import CG as CG
from collops.solvers.cg import cg as cg
from collops.solvers.cgls import CGLS as CGLS
from collops.solvers.cgls import cgls as cgls
from collops.solvers.choice import cross_validate as cross_validate
from collops.solvers.choice import discrepancy as discrepancy
from collops.solvers.driver import Run as Run
from collops.solvers.driver import View as View
from collops.solvers.driver import solve as solve
from collops.solvers.gmres import GMRES as GMRES
from collops.solvers.gmres import gmres as gmres
from collops.solvers.hybrid import hybrid_lsqr as hybrid_lsqr
from collops.solvers.iterative_thresholding import fista as fista
from collops.solvers.iterative_thresholding import ista as ista
from collops.solvers.lsmr import lsmr as lsmr
from collops.solvers.lsqr import LSQR as LSQR
from collops.solvers.lsqr import lsqr as lsqr
from collops.solvers.method import Method as Method
from collops.solvers.minres import minres as minres
from collops.solvers.power import power_iteration as power_iteration
from collops.solvers.result import SolverResult as SolverResult
from collops.solvers.result import Status as Status

_names = [name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _Module)]
__all__ = list(_names)
