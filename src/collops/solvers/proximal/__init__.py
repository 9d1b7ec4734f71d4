"""Proximal operators, and the methods that minimise sums of functions with them.

References
----------
- Beck, A., Teboulle, M., "A fast iterative shrinkage-thresholding algorithm for linear inverse problems", SIAM Journal
  on Imaging Sciences 2, 183-202, 2009.
- Beck, A., "First-order methods in optimization", SIAM, 2017.
- Boyd, S., Parikh, N., Chu, E., Peleato, B., Eckstein, J., "Distributed optimization and statistical learning via the
  alternating direction method of multipliers", Foundations and Trends in Machine Learning 3, 1-122, 2011.
- Chambolle, A., Pock, T., "A first-order primal-dual algorithm for convex problems with applications to imaging",
  Journal of Mathematical Imaging and Vision 40, 120-145, 2011.
- Combettes, P. L., Pesquet, J.-C., "Proximal splitting methods in signal processing", in "Fixed-point algorithms for
  inverse problems in science and engineering", 185-212, Springer, 2011.
- Parikh, N., Boyd, S., "Proximal algorithms", Foundations and Trends in Optimization 1, 127-239, 2014.
"""

from __future__ import annotations

from collops.solvers.proximal.admm import admm, admm_l2, linearized_admm
from collops.solvers.proximal.functions import L0, L1, L21, Box, Euclidean, Nuclear, lift_proximal
from collops.solvers.proximal.l2 import L2
from collops.solvers.proximal.operator import ProxOperator
from collops.solvers.proximal.primal_dual import primal_dual
from collops.solvers.proximal.proximal_gradient import proximal_gradient

__all__ = [
    "L0",
    "L1",
    "L2",
    "L21",
    "Box",
    "Euclidean",
    "Nuclear",
    "ProxOperator",
    "admm",
    "admm_l2",
    "lift_proximal",
    "linearized_admm",
    "primal_dual",
    "proximal_gradient",
]
