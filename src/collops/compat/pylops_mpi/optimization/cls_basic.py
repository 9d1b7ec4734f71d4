"""PyLops-MPI's solver classes CG and CGLS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collops import solvers
from collops.compat.pylops_mpi.optimization._solver import NativeSolver, Show
from collops.solvers.problem import check_number, check_problem

__all__ = ["CG", "CGLS"]

_SHOW = (10, 10, 10)


class CG(NativeSolver):
    """Conjugate gradients; see :func:`collops.cg`.

    Parameters
    ----------
    Op : MPILinearOperator or MPIStackedLinearOperator
        Hermitian positive definite.
    callbacks : pylops.optimization.callback.Callbacks, optional
        Called around ``setup``, ``step`` and ``run``.

    Examples
    --------
    >>> import numpy as np
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.MPIBlockDiag([pylops.Diagonal(np.array([1.0, 2.0]))])
    >>> data = pylops_mpi.DistributedArray(global_shape=A.shape[0])
    >>> data[:] = 2.0
    >>> pylops_mpi.CG(A).solve(data, data.zeros_like(), niter=5)[0].local_array
    array([2., 1.])
    """

    def setup(self, y: Any, x0: Any, niter: int | None = None, tol: float = 1e-4, show: bool = False) -> Any:
        """Prepare for steps; return the first model. Collective."""
        self.tol = tol
        x = self._begin(_method(solvers.CG, tol=tol), y, x0, niter, show, f"tol = {tol:e}\tniter = {niter}")
        self._note()
        return x

    def step(self, x: Any, show: bool = False) -> Any:
        """Take one step; return the model. Collective."""
        x = self._advance(False)
        self._note()
        if show:
            self._print_rows([self.iiter])
        return x

    def _note(self) -> None:
        self.kold = self._rows[-1][0]
        self.cost = np.sqrt([row[0] for row in self._rows])

    def run(self, x: Any, niter: int | None = None, show: bool = False, itershow: Show = _SHOW) -> Any:
        """Take steps until the tolerance or `niter`; return the model. Collective."""
        niter = _count(self.niter if niter is None else niter)
        while self.iiter < niter and not self._done():
            x = self.step(x, self._shown(show, itershow, niter))
            self.callback(x)
        return x

    def solve(
        self, y: Any, x0: Any, niter: int = 10, tol: float = 1e-4, show: bool = False, itershow: Show = _SHOW
    ) -> tuple[Any, int, np.ndarray]:
        """Solve; return model, number of iterations and norms of the residual. Collective."""
        if self.callbacks:
            x = self.setup(y=y, x0=x0, niter=niter, tol=tol, show=show)
            x = self.run(x, niter, show=show, itershow=itershow)
            self.finalize(show=show)
            return x, self.iiter, self.cost
        facts = f"tol = {tol:e}\tniter = {niter}"
        result, x = self._solved(_solver(_method(solvers.CG, tol=tol)), y, x0, niter, show, facts)
        self.cost, self.kold = result.residual_norms, float(result.residual_norms[-1] ** 2)
        self._print_end(show, itershow)
        return x, self.iiter, self.cost


class CGLS(NativeSolver):
    """Conjugate gradients for least squares; see :func:`collops.cgls`.

    Parameters
    ----------
    Op : MPILinearOperator or MPIStackedLinearOperator
        Any operator.
    callbacks : pylops.optimization.callback.Callbacks, optional
        Called around ``setup``, ``step`` and ``run``.

    Examples
    --------
    >>> import numpy as np
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.MPIBlockDiag([pylops.Diagonal(np.array([1.0, 2.0]))])
    >>> data = pylops_mpi.DistributedArray(global_shape=A.shape[0])
    >>> data[:] = 2.0
    >>> pylops_mpi.CGLS(A).solve(data, data.zeros_like(), niter=5)[0].local_array.round(6)
    array([2., 1.])
    """

    def setup(
        self,
        y: Any,
        x0: Any,
        niter: int | None = None,
        damp: float = 0.0,
        tol: float = 1e-4,
        show: bool = False,
    ) -> Any:
        """Prepare for steps; return the first model. Collective."""
        self.tol, self.damp = tol, damp * damp
        facts = f"damp = {damp:e}\ttol = {tol:e}\tniter = {niter}"
        x = self._begin(_method(solvers.CGLS, damp=damp, tol=tol), y, x0, niter, show, facts)
        self._note(x)
        return x

    def step(self, x: Any, show: bool = False) -> Any:
        """Take one step; return the model. Collective."""
        x = self._advance(False)
        self._note(x)
        if show:
            self._print_rows([self.iiter])
        return x

    def _note(self, x: Any) -> None:
        self.kold = self._rows[-1][0]
        self.cost = np.sqrt([row[1] for row in self._rows])
        self._conclude(x)

    def _conclude(self, x: Any) -> None:
        """Set the numbers that PyLops reports."""
        self.istop = 1 if self.kold < self.tol else 2
        self.r1norm = self.kold
        last = float(self.cost[-1])
        self.r2norm = float(np.hypot(last, self.damp**0.5 * x.norm())) if self.damp else last

    def run(self, x: Any, niter: int | None = None, show: bool = False, itershow: Show = _SHOW) -> Any:
        """Take steps until the tolerance or `niter`; return the model. Collective."""
        niter = _count(self.niter if niter is None else niter)
        while self.iiter < niter and not self._done():
            x = self.step(x, self._shown(show, itershow, niter))
            self.callback(x)
        return x

    def solve(
        self,
        y: Any,
        x0: Any,
        niter: int = 10,
        damp: float = 0.0,
        tol: float = 1e-4,
        show: bool = False,
        itershow: Show = _SHOW,
    ) -> tuple[Any, int, int, float, float, np.ndarray]:
        """Solve; return what :func:`collops.compat.pylops_mpi.cgls` does. Collective.

        Notes
        -----
        As in PyLops, ``r1norm`` is the squared norm of the gradient.
        """
        if self.callbacks:
            x = self.setup(y=y, x0=x0, niter=niter, damp=damp, tol=tol, show=show)
            x = self.run(x, niter, show=show, itershow=itershow)
            self.finalize(show=show)
        else:
            self.tol, self.damp = tol, damp * damp
            facts = f"damp = {damp:e}\ttol = {tol:e}\tniter = {niter}"
            solver = _solver(_method(solvers.CGLS, damp=damp, tol=tol))
            result, x = self._solved(solver, y, x0, niter, show, facts)
            self.cost, self.kold = result.residual_norms, result.details["gradient_norm"] ** 2
            self._conclude(x)
            self._print_end(show, itershow)
        return x, self.istop, self.iiter, self.r1norm, self.r2norm, self.cost


def _count(niter: int | None) -> int:
    if niter is None:
        raise ValueError("give niter to setup or to run")
    return niter


def _method(kind: type[Any], **numbers: float) -> solvers.Method:
    """Return a method that goes on where only rounding is left, as PyLops-MPI's do."""
    return kind(**{name: check_number(name, value) for name, value in numbers.items()}, precision=0.0)


def _solver(method: solvers.Method) -> Callable[..., solvers.SolverResult]:
    """Return what runs a method, as the function of its name does."""

    def solve(A: Any, y: Any, x0: Any, niter: int, **run: Any) -> solvers.SolverResult:
        check_problem(A, y, x0, niter)
        return solvers.solve(method, A, y, x0, niter=niter, **run)

    return solve
