"""PyLops-MPI's solver classes ISTA and FISTA."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops import solvers
from collops.compat.pylops_mpi._native import between, brought
from collops.compat.pylops_mpi._operator import checked_operator, native_of
from collops.compat.pylops_mpi._stacked_array import checked_array
from collops.compat.pylops_mpi.optimization._solver import NativeSolver, Show
from collops.compat.pylops_mpi.optimization.eigs import power_iteration
from collops.operators import LinearOperator
from collops.solvers.iterative_thresholding import prepare

__all__ = ["FISTA", "ISTA"]

_SHOW = (10, 10, 10)


class ISTA(NativeSolver):
    """Iterative shrinkage and thresholding; see :func:`collops.solvers.ista`.

    Parameters
    ----------
    Op : MPILinearOperator or MPIStackedLinearOperator
        Any operator.
    callbacks : pylops.optimization.callback.Callbacks, optional
        Called around ``setup``, ``step`` and ``run``.

    Examples
    --------
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.MPIBlockDiag([pylops.Identity(2)])
    >>> data = pylops_mpi.DistributedArray(global_shape=A.shape[0])
    >>> data[:] = 2.0
    >>> pylops_mpi.ISTA(A).solve(data, data.zeros_like(), niter=20, eps=1.0, alpha=1.0)[0].local_array
    array([1.5, 1.5])
    """

    _accelerated = False
    rtol = rtol1 = 0.0

    def setup(
        self,
        y: Any,
        x0: Any,
        niter: int | None = None,
        SOp: Any = None,
        eps: float = 0.1,
        alpha: float | None = None,
        eigsdict: dict[str, Any] | None = None,
        tol: float = 1e-10,
        threshkind: str = "soft",
        decay: Any = None,
        monitorres: bool = False,
        show: bool = False,
    ) -> Any:
        """Prepare for steps; return the first model. Collective."""
        native = native_of(self.Op, x0, y)
        options = self._options(native, x0, SOp, eps, alpha, eigsdict, tol, threshkind, decay, monitorres)
        method = prepare(
            native,
            brought(y.native, native.range),
            brought(x0.native, native.domain),
            _LONGEST if niter is None else niter,
            options.pop("SOp"),
            accelerated=self._accelerated,
            eigsdict=None,
            perc=None,
            **options,
        )
        return self._begin(method, y, x0, niter, show, self._facts(niter))

    def _options(
        self,
        native: LinearOperator,
        x0: Any,
        SOp: Any,
        eps: float,
        alpha: Any,
        eigsdict: Any,
        tol: float,
        kind: str,
        decay: Any,
        monitor: bool,
    ) -> dict[str, Any]:
        """Check what PyLops-MPI checks, and choose the step size with its random numbers."""
        if kind not in ("hard", "soft", "half"):
            raise NotImplementedError(f"threshkind must be 'hard', 'soft' or 'half', not {kind!r}")
        if alpha is None:
            options = {"dtype": self.Op.dtype, **(eigsdict or {})}
            alpha = 1.0 / abs(power_iteration(self.Op.H @ self.Op, checked_array(x0).empty_like(), **options)[0])
        self.alpha, self.eps, self.tol, self.threshkind, self.monitorres = alpha, eps, tol, kind, monitor
        self.thresh = eps * alpha * 0.5
        transform = None
        if SOp is not None:
            transform = native_of(checked_operator(SOp), x0, x0)
            transform = between(transform, transform.domain, native.domain)
        return {
            "SOp": transform,
            "eps": eps,
            "alpha": alpha,
            "tol": tol,
            "rtol": self.rtol,
            "rtol1": self.rtol1,
            "threshkind": kind,
            "decay": decay,
            "monitorres": monitor,
        }

    def _facts(self, niter: int | None) -> str:
        return (
            f"({self.threshkind} thresholding)\neps = {self.eps:e}\ttol = {self.tol:e}\tniter = {niter}\n"
            f"alpha = {self.alpha:e}\tthresh = {self.thresh:e}"
        )

    def step(self, x: Any, show: bool = False) -> tuple[Any, ...]:
        """Take one step; return the model and the norm of the update. Collective."""
        x, update = self._stepped(show)
        return x, update

    def _stepped(self, show: bool) -> tuple[Any, float]:
        x = self._advance(False)
        details = self._method.details(self._state, np.array(self._rows))
        self.cost = details["cost"]
        if show:
            self._print_rows([self.iiter])
        if self._method.verdict(self._rows[-1], self._rows[0]) is solvers.Status.RESIDUAL_INCREASED:
            raise ValueError(f"the norm of the residual increased in iteration {self.iiter}")
        return x, float(details["updates"][-1])

    def run(self, x: Any, niter: int | None = None, show: bool = False, itershow: Show = _SHOW) -> Any:
        """Take steps until the tolerance or `niter`; return the model. Collective."""
        niter = self.niter if niter is None else niter
        if niter is None:
            raise ValueError("give niter to setup or to run")
        while self.iiter < niter and not self._done():
            x = self._stepped_once(x, self._shown(show, itershow, niter))
            self.callback(x)
        return x

    def _stepped_once(self, x: Any, show: bool) -> Any:
        return self.step(x, show)[0]

    def solve(
        self,
        y: Any,
        x0: Any,
        niter: int | None = None,
        SOp: Any = None,
        eps: float = 0.1,
        alpha: float | None = None,
        eigsdict: dict[str, Any] | None = None,
        tol: float = 1e-10,
        threshkind: str = "soft",
        decay: Any = None,
        monitorres: bool = False,
        show: bool = False,
        itershow: Show = _SHOW,
    ) -> tuple[Any, int, np.ndarray]:
        """Solve; return model, number of iterations and cost of each. Collective.

        Raises
        ------
        NotImplementedError
            If there is no such `threshkind`.
        ValueError
            If `monitorres`, and the residual increases.
        """
        if self.callbacks:
            x = self.setup(y, x0, niter, SOp, eps, alpha, eigsdict, tol, threshkind, decay, monitorres, show)
            x = self.run(x, niter, show=show, itershow=itershow)
            self.finalize(show=show)
            return x, self.iiter, self.cost
        native = native_of(self.Op, x0, y)
        options = self._options(native, x0, SOp, eps, alpha, eigsdict, tol, threshkind, decay, monitorres)
        function = solvers.fista if self._accelerated else solvers.ista
        result, x = self._solved(function, y, x0, 10 if niter is None else niter, show, self._facts(niter), **options)
        if result.status is solvers.Status.RESIDUAL_INCREASED:
            raise ValueError(f"the norm of the residual increased in iteration {self.iiter}")
        self.cost = result.details["cost"]
        self._print_end(show, itershow)
        return x, self.iiter, self.cost


class FISTA(ISTA):
    """ISTA with momentum; see :func:`collops.solvers.fista`.

    Parameters
    ----------
    Op : MPILinearOperator or MPIStackedLinearOperator
        Any operator.
    callbacks : pylops.optimization.callback.Callbacks, optional
        Called around ``setup``, ``step`` and ``run``.

    Examples
    --------
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.MPIBlockDiag([pylops.Identity(2)])
    >>> data = pylops_mpi.DistributedArray(global_shape=A.shape[0])
    >>> data[:] = 2.0
    >>> pylops_mpi.FISTA(A).solve(data, data.zeros_like(), niter=20, eps=1.0, alpha=1.0)[0].local_array
    array([1.5, 1.5])
    """

    _accelerated = True

    def step(  # pyright: ignore[reportIncompatibleMethodOverride] - PyLops-MPI's argument
        self, x: Any, z: Any = None, show: bool = False
    ) -> tuple[Any, ...]:
        """Take one step; return the model, where the next gradient is taken, and the norm of the update. Collective.

        Both come from the solver's own state: `x` and `z` are what the last call returned.
        """
        x, update = self._stepped(show)
        ahead = self._seen(self._state.ahead)
        return x, ahead, update

    def _stepped_once(self, x: Any, show: bool) -> Any:
        return self.step(x, None, show)[0]


_LONGEST = 10_000
"""Steps that may be taken where nobody says how many."""
