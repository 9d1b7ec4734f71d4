"""Proximal operators, and the methods that minimise sums of functions with them.

Each line exports one name; adding a function or a method takes its file and a line here.

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

from types import ModuleType as _Module

from collops.solvers.proximal.admm import admm as admm
from collops.solvers.proximal.admm import admm_l2 as admm_l2
from collops.solvers.proximal.admm import linearized_admm as linearized_admm
from collops.solvers.proximal.functions import L0 as L0
from collops.solvers.proximal.functions import L1 as L1
from collops.solvers.proximal.functions import L21 as L21
from collops.solvers.proximal.functions import Box as Box
from collops.solvers.proximal.functions import Euclidean as Euclidean
from collops.solvers.proximal.functions import Nuclear as Nuclear
from collops.solvers.proximal.functions import lift_proximal as lift_proximal
from collops.solvers.proximal.l2 import L2 as L2
from collops.solvers.proximal.operator import ProxOperator as ProxOperator
from collops.solvers.proximal.primal_dual import primal_dual as primal_dual
from collops.solvers.proximal.proximal_gradient import proximal_gradient as proximal_gradient

_names = [name for name, value in globals().items() if name[0] != "_" and not isinstance(value, _Module)]
__all__ = list(_names)
