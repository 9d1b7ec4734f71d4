"""Solvers: the interface of methods, the driver that runs them, and the checks of their arguments."""

from collops.preconditioners import local_spectra as local_spectra
from collops.solvers import CG as CG
from collops.solvers import CGLS as CGLS
from collops.solvers import Method as Method
from collops.solvers import cross_validate as cross_validate
from collops.solvers import discrepancy as discrepancy
from collops.solvers import proximal as proximal
from collops.solvers import solve as solve
from collops.solvers.iterative_thresholding import prepare as prepare
from collops.solvers.method import not_finite as not_finite
from collops.solvers.nonlinear import jax_problem as jax_problem
from collops.solvers.problem import check_number as check_number
from collops.solvers.problem import check_problem as check_problem
from collops.solvers.problem import consistent as consistent
from collops.solvers.problem import precision_of as precision_of
from collops.solvers.problem import starting_point as starting_point
from collops.solvers.problem import takes_part as takes_part
from collops.solvers.problem import working_dtype as working_dtype
from collops.solvers.shrinkage import find_threshold as find_threshold
from collops.solvers.state import CONSTANT as CONSTANT
from collops.solvers.state import SCRATCH as SCRATCH
from collops.solvers.state import scratch_array as scratch_array
from collops.solvers.variants.cg import PreconditionedCG as PreconditionedCG
from collops.solvers.variants.thresholding import VaryingThresholding as VaryingThresholding
from collops.uncertainty import GaussianPosterior as GaussianPosterior
from collops.uncertainty import probe_diagonal as probe_diagonal
