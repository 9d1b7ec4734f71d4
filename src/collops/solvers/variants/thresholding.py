"""ISTA and FISTA with a transform, with a percentile instead of a size, and with variable thresholds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collops.array import Array
from collops.operators import LinearOperator
from collops.operators.memory import new_array
from collops.solvers.iterative_thresholding import IterativeThresholding, ThresholdingState
from collops.solvers.kernels import Rule
from collops.solvers.problem import real_dtype, working_dtype
from collops.solvers.schedule import Schedule
from collops.solvers.shrinkage import Percentile, shrink
from collops.solvers.state import CONSTANT, SCRATCH, Scalar, State, extended

__all__ = ["VaryingThresholding"]


@dataclass(slots=True)
class VaryingThresholdingState(ThresholdingState):
    """The additional state of thresholding with a transform, a percentile or variable thresholds."""

    coefficients: Array | None = field(metadata=SCRATCH)  # coefficients, or values before the threshold, or None
    thresholds: Schedule | None
    percentile: Percentile | None = field(metadata=CONSTANT)


class VaryingThresholding(IterativeThresholding):
    """Iterative thresholding with a transform, a percentile and variable thresholds; each is optional."""

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> State:
        dtype = of_coefficients = working_dtype(A, y, x0)
        if self.transform is not None and self.transform.dtype.kind == "c":
            of_coefficients = np.result_type(dtype, np.complex64)
            # A transform that takes real parts, such as the inverse of a real Fourier transform, yields real models.
            dtype = of_coefficients if self.transform.clinear else dtype
        begin = self._begin(A, y, x0, dtype)
        coefficients, percentile, thresholds = None, None, None
        if self.threshold.percentile is not None or self.transform is not None:
            layout = A.domain if self.transform is None else self.transform.domain
            coefficients = new_array(layout, y, of_coefficients)
        if self.threshold.percentile is not None:
            percentile = Percentile(coefficients, self.threshold.percentile)
        elif self.decay is not None:
            thresholds = Schedule.from_numbers(self.shrinkage * np.asarray(self.decay), y.engine, real_dtype(dtype))
        return extended(
            VaryingThresholdingState, begin, coefficients=coefficients, thresholds=thresholds, percentile=percentile
        )

    def _shrunk(self, state: State) -> dict[str, Any]:
        threshold: Scalar = self.shrinkage if state.thresholds is None else state.thresholds.take()
        if state.coefficients is None:
            return {**super()._shrunk(state), "threshold": threshold}
        rule, values = self.threshold.rule, state.coefficients
        start = state.x if state.ahead is None else state.ahead
        moved = {"a": 1.0, "y": state.gradient, "b": self.alpha}
        # x = S T(S^H (z + alpha A^H (y - A z)))
        if self.transform is None:
            values = state.coefficients = shrink(Rule.KEEP, 0.0, start, **moved, out=values)
        else:
            state.gradient = shrink(Rule.KEEP, 0.0, start, **moved, out=state.gradient)
            values = state.coefficients = self.transform._adjoint(state.gradient, values)
        if state.percentile is not None:
            threshold = self.threshold.parameter(state.percentile(values))
        if self.transform is None:
            return {"base": values, "rule": rule, "threshold": threshold}
        values = state.coefficients = shrink(rule, threshold, values, out=values)
        state.gradient = self.transform._forward(values, state.gradient)
        return {"base": state.gradient}
