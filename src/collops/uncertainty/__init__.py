"""Uncertainty quantification: posterior samples and variances, diagonals by probing, and low-rank factorisations.

References
----------
- Bardsley, J. M., Solonen, A., Haario, H., Laine, M., "Randomize-then-optimize: a method for sampling from posterior
  distributions in nonlinear inverse problems", SIAM Journal on Scientific Computing 36, A1895-A1910, 2014.
- Bekas, C., Kokiopoulou, E., Saad, Y., "An estimator for the diagonal of a matrix", Applied Numerical Mathematics 57,
  1214-1229, 2007.
- Halko, N., Martinsson, P. G., Tropp, J. A., "Finding structure with randomness: probabilistic algorithms for
  constructing approximate matrix decompositions", SIAM Review 53, 217-288, 2011.
- Tarantola, A., "Inverse problem theory and methods for model parameter estimation", SIAM, 2005.
"""

from collops.uncertainty.low_rank import randomized_eigh, randomized_svd
from collops.uncertainty.posterior import GaussianPosterior
from collops.uncertainty.probing import probe_diagonal

__all__ = ["GaussianPosterior", "probe_diagonal", "randomized_eigh", "randomized_svd"]
