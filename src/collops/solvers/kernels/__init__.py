"""CUDA sources of the solvers, and how they are launched. The only code of this room that knows an engine's kernels."""

from collops.solvers.kernels.dispatch import step_kernels_for
from collops.solvers.kernels.load import kernel

__all__ = ["kernel", "step_kernels_for"]
