"""Penalties on the image of a migration, their solvers, and preconditioners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import InputError

if TYPE_CHECKING:
    from collops import LinearOperator, SolverResult
    from collops.extend.applications import Gradient, Job, Solution
    from collops.extend.arrays import Array
    from collops.seismic.survey import Grid

METHODS = {None: "CGLS", "laplacian": "CGLS", "dip": "CGLS", "tv": "ADMM", "l1": "FISTA"}
"""The solver for each kind of regularisation."""

TRIED = (0.3, 0.1, 0.03, 0.01, 0.003)
"""The candidate weights if the data determine the weight."""

_INNER = 5  # CGLS iterations in one ADMM iteration
_JUMP = 0.1  # jump of the image, relative to its largest amplitude, that the first ADMM iteration preserves
_SMOOTH = 3.0  # points: standard deviation of the average over which dips are estimated
_PROBES, _MIN_DIAGONAL = 8, 1e-3  # number of probes; minimum of the diagonal relative to its maximum
_WAVELENGTHS = 4  # extent of the windows of local spectra
_FADE = 0.05  # standard deviation of the average over estimates of the diagonal, relative to the image's extent


@dataclass(frozen=True)
class Penalty:
    r"""A penalty on the image; `method` minimises the sum of the data misfit and the penalty.

    With the weight :math:`w`, the adjoint image :math:`x = A^T d` and the estimate of :math:`\|A\|` in `Gradient`:

    - ``"laplacian"``: :math:`\|d - A m\|^2 + (w \|A\|)^2 \|\nabla^2 m\|^2`
    - ``"dip"``: the same with the derivative along the reflectors of the adjoint image
    - ``"tv"``: :math:`\tfrac12 \|d - A m\|^2 + w \|x\|_\infty \sum |\nabla m|`
    - ``"l1"``: :math:`\tfrac12 \|d - A m\|^2 + w \|x\|_\infty \|m\|_1`

    Derivatives are differences of neighbouring points.
    """

    kind: str | None
    job: Job[Any]
    operator: Any
    gradient: Gradient

    def method(self, weight: float, damp: float, M: LinearOperator | None) -> Callable[..., SolverResult]:
        """Return a solver from operator, data, and the options of a run. `damp` and `M` are for CGLS."""
        from collops import cgls

        least_squares = {"damp": damp, "tol": 0.0, "M": M}
        if self.kind in ("tv", "l1"):
            solve = self._total_variation if self.kind == "tv" else self._sparse
            largest = weight * float(self.gradient.x.norm(np.inf))
            return lambda A, y, **run: solve(largest, A, y, **run)
        if self.kind is None or not weight:
            return lambda A, y, **run: cgls(A, y, **least_squares, **run)
        return lambda A, y, **run: cgls(*self._stacked(weight, A, y), **least_squares, **run)

    def normal_method(self, weight: float, damp: float, M: LinearOperator | None) -> Callable[..., SolverResult]:
        """Return the same for normal equations, with a quadratic penalty."""
        from collops.seismic.lsm.normal import minimise

        def solve(A: LinearOperator, y: Array, **run: Any) -> SolverResult:
            if self.kind is not None and weight:
                penalty = (weight * self.gradient.norm) * self._roughness
                A = A + penalty.H @ penalty
            return minimise(A, y, damp=damp, M=M, **run)

        return solve

    def residuals(self, solution: Solution) -> np.ndarray:
        """Return the norms of the residual; they include the penalty, except for ``"l1"``."""
        if self.kind != "tv":
            return solution.residuals
        return np.sqrt(2 * np.maximum(solution.details["objective"], 0))  # ADMM's residuals are of its splitting

    def _stacked(self, weight: float, A: LinearOperator, y: Any) -> tuple[LinearOperator, Array]:
        from collops import StackedArray, StackedVStack, zeros_like

        penalty = (weight * self.gradient.norm) * self._roughness
        return StackedVStack([A, penalty]), StackedArray([y, zeros_like(self.gradient.x)])

    def _sparse(self, weight: float, A: LinearOperator, y: Array, **run: Any) -> SolverResult:
        from collops import fista

        # The penalty of FISTA counts twice, as its misfit is not halved.
        return fista(A, y, eps=2 * weight, alpha=self._step, tol=0.0, **run)

    def _total_variation(self, weight: float, A: LinearOperator, y: Array, **run: Any) -> SolverResult:
        from collops import L21, admm_l2, zeros_like
        from collops import Gradient as Differences

        domain, start = self.operator.domain, zeros_like(self.gradient.x)
        differences = Differences(domain, kind="forward", comm=self.operator.comm, dtype=self.operator.dtype)
        largest = self.gradient.step * float(self.gradient.x.norm(np.inf))
        tau = _JUMP * largest / weight
        penalty = L21(len(domain.shape), weight)
        return admm_l2(penalty, A, y, differences, start, tau, inner=_INNER, objective=True, **run)

    @cached_property
    def _step(self) -> float:
        """A stable step length of gradient iterations."""
        from collops import power_iteration

        result = power_iteration(self.operator.H @ self.operator, self.gradient.x, niter=30, tol=1e-3)
        return 1 / (1.05 * float(result.details["eigenvalue"]))

    @cached_property
    def _roughness(self) -> LinearOperator:
        """The operator of a quadratic penalty; its domain and its range have the layout of the image."""
        from collops import Diagonal, FirstDerivative, Laplacian

        layout = self.operator.domain
        options: dict[str, Any] = {"comm": self.operator.comm, "dtype": self.operator.dtype}
        if self.kind == "laplacian":
            ones = (1,) * len(layout.shape)
            return Laplacian(layout, axes=range(len(ones)), weights=ones, sampling=ones, **options)
        if len(layout.shape) != 2:
            raise InputError("--regularise dip needs a 2-D image: use laplacian, tv or l1")
        from pylops.utils.signalprocessing import slope_estimate

        image = self.job.gather(self.gradient.x).astype(np.float64)
        # The direction across reflectors, relative to the depth axis: (-sin, cos) along (x, z).
        across, _ = slope_estimate(image.T, smooth=_SMOOTH, dips=True)
        along = [self.job.distribute(layout, part.T) for part in (np.cos(across), -np.sin(across))]
        lateral, deep = (FirstDerivative(layout, axis, order=5, **options) for axis in (0, 1))
        return Diagonal(along[0]) @ lateral + Diagonal(along[1]) @ deep


def probed_diagonal(job: Job[Any], normal: LinearOperator) -> np.ndarray:
    """Estimate the diagonal of a normal operator by probing, averaged over neighbouring points. Collective.

    The diagonal of an imaging operator is smooth.
    """
    from scipy.ndimage import gaussian_filter

    from collops.extend.solvers import probe_diagonal

    estimate = probe_diagonal(normal, _PROBES, dtype=job.options.dtype, engine=job.engine.name)
    diagonal = job.gather(estimate.value).astype(np.float64)
    return gaussian_filter(diagonal, [max(1.0, _FADE * extent) for extent in diagonal.shape])


def inverse_root(job: Job[Any], operator: LinearOperator, diagonal: np.ndarray) -> LinearOperator:
    """Return the preconditioner that divides by the root of a diagonal, limited to a thousandth of its maximum."""
    from collops import Diagonal

    floor = _MIN_DIAGONAL * float(diagonal.max())
    return Diagonal(job.distribute(operator.domain, 1 / np.sqrt(np.maximum(diagonal, floor or 1.0))))


def local_inverse_root(job: Job[Any], normal: LinearOperator, wavelength: float, grid: Grid) -> LinearOperator:
    """Return the preconditioner that divides by the root of the normal operator's local spectra. Collective."""
    from collops.extend.solvers import local_spectra

    steps = (grid.dy, grid.dx, grid.dz)[-len(grid.shape) :]
    windows = [
        max(4, min(extent, round(_WAVELENGTHS * wavelength / step)))
        for extent, step in zip(grid.shape, steps, strict=True)
    ]
    return local_spectra(normal, windows, engine=job.engine.name)
