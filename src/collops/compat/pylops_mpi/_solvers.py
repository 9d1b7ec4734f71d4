"""PyLops-MPI's solvers, as functions and as classes that also run step by step, implemented by the native methods.

Each solver is one class. Its ``_method`` takes the solver's options and returns the native method. The signatures of
``setup``, ``solve`` and the function of the same name are derived from it.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from inspect import Parameter
from typing import Any

import numpy as np
from pylops.optimization.basesolver import Solver

import collops
from collops import Status
from collops.compat.pylops_mpi._arrays import AnyArray, as_native, leaves, wrap_like
from collops.compat.pylops_mpi._linear_operator import native_of
from collops.compat.pylops_mpi._native import to_layout, with_layouts
from collops.errors import NotFiniteError
from collops.extend import solvers
from collops.extend.operators import reinterpret
from collops.extend.solvers import (
    VaryingThresholding,
    check_number,
    check_problem,
    not_finite,
    precision_of,
    prepare,
    working_dtype,
)

_SHOWN = (10, 10, 10)
_MAX_STEPS = 10_000  # iterations of a solver that runs step by step, if niter is None


def _with_keywords(name: str, function: Callable[..., Any], options: Sequence[Parameter], **defaults: Any) -> Any:
    """Return `function` under another name, with keywords `options` instead of its argument ``options``, a dictionary.

    `defaults` replace the defaults of its other arguments.
    """
    parameters: list[Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        changed = parameter.replace(default=defaults.get(parameter.name, parameter.default))
        parameters += options if parameter.name == "options" else [changed]
    signature = inspect.Signature(parameters)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        named = dict(bound.arguments)
        return function(options={option.name: named.pop(option.name) for option in options}, **named)

    call.__name__ = call.__qualname__ = name
    call.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
    return call


class _NativeSolver(Solver):
    """A solver class of PyLops-MPI, implemented by a native method.

    ``solve`` calls the native driver, which replays CUDA graphs and checks tolerances with a delay. ``setup``,
    ``step``, ``run`` and ``finalize`` take the same steps one by one; so does ``solve`` with callback objects, or in a
    user's class, which may override methods.
    """

    _default_niter: int | None = 10
    _function_only: tuple[str, ...] = ()  # options that the function has and the class does not
    _heading = ""
    _method: Callable[..., Any]  # returns the native method for the solver's options
    _state: Any
    _running: Any
    cost: Sequence[float] | np.ndarray = ()

    def __init_subclass__(cls) -> None:
        """Give ``setup`` and ``solve`` the options of ``_method``."""
        cls._options = list(inspect.signature(cls._method).parameters.values())[1:]
        options = [option for option in cls._options if option.name not in cls._function_only]
        cls.setup = _with_keywords("setup", cls._setup, options)
        cls.solve = _with_keywords("solve", cls._solve, options, niter=cls._default_niter)

    def _conclude(self, x: AnyArray, norms: np.ndarray, details: dict[str, Any], status: Status | None) -> None:
        """Set the attributes of PyLops' solver from the residual norms and the method's details."""
        raise NotImplementedError

    def _result(self, x: AnyArray) -> tuple[Any, ...]:
        return x, self.iiter, self.cost

    def memory_usage(self, show: bool = False, unit: str = "B") -> None:
        """Do nothing: the memory of a distributed solver is not measured."""

    def _check(self, options: dict[str, Any]) -> None:
        """Raise for options that PyLops-MPI checks before it looks at the arrays."""

    def _start(self, y: AnyArray, x0: AnyArray, niter: int | None, options: dict[str, Any], show: bool) -> Any:
        """Set problem and method, and print the heading; return the native operator, data and initial model."""
        self._check(options)
        self.y, self.niter, self._like = y, niter, x0
        self._operator = op = native_of(self.Op, x0, y)
        self._problem = op, as_native(y, op.range), as_native(x0, op.domain)
        check_problem(*self._problem, _MAX_STEPS if niter is None else niter)
        self._running = self._method(**options).variant(self._problem[1])
        if show and self._prints():
            self._print_solver(nbar=65)
            print(f"{self._heading}\tniter = {niter}\n{'-' * 65}")
        return self._problem

    def _precision(self) -> float:
        """Return the size of rounding errors, at which CG and CGLS stop: later steps would amplify them."""
        return precision_of(working_dtype(*self._problem))

    # Step by step

    def _setup(
        self, y: AnyArray, x0: AnyArray, niter: int | None = None, options: Any = None, show: bool = False
    ) -> AnyArray:
        """Prepare to take steps; return the initial model. Collective."""
        problem = self._start(y, x0, niter, options, show)
        self.iiter, self._rows = 0, []
        return self._record(self._running.init(*problem))

    def _record(self, state: Any) -> AnyArray:
        """Record the state after an iteration; return the model."""
        self._state, method = state, self._running
        self._rows.append(method.numbers(*map(float, method.report(state))))
        x, history, status = wrap_like(state.x, self._like), method.numbers(*np.array(self._rows).T), self._status()
        if status is Status.NOT_FINITE:
            raise NotFiniteError(method.name, self.iiter, method.suspect(self._rows[-1], self.iiter), x)
        self._conclude(x, method.residual_norm(history), method.details(state, history), status)
        return x

    def _status(self) -> Status | None:
        return self._running.status(self._rows[-1], self._rows[0])

    def step(self, x: AnyArray, show: bool = False) -> AnyArray:
        """Take one step; return the model. Collective."""
        self.iiter += 1
        x = self._record(self._running.step(self._operator, self._state))
        if show:
            self._print_rows([self.iiter])
        return x

    def run(
        self, x: AnyArray, niter: int | None = None, show: bool = False, itershow: Sequence[int] = _SHOWN
    ) -> AnyArray:
        """Take steps until the tolerance is reached, at most `niter`; return the model. Collective."""
        niter = self.niter if niter is None else niter
        if niter is None:
            raise ValueError("niter must not be None: pass it to setup or to run")
        while self.iiter < niter and self._status() is None:
            stepped = self.step(x, show=show and self.iiter + 1 in _chosen(niter, itershow))
            x = stepped[0] if isinstance(stepped, tuple) else stepped
            self.callback(x)
        return x

    def finalize(self, show: bool = False, **kwargs: object) -> None:
        """Stop the timer, and print the elapsed time if `show`."""
        self.cost = np.asarray(self.cost)
        self.tend = time.time()
        self.telapsed = self.tend - self.tstart
        if show and self._prints():
            self._print_finalize(nbar=65)

    # As a whole

    def _solve(self, y, x0, niter=10, options: Any = None, show=False, itershow=_SHOWN) -> Any:
        """Solve; return the results of the function of the same name. Collective."""
        niter = 10 if niter is None else niter
        if self.callbacks or type(self).__module__ != __name__:
            x = self.setup(y=y, x0=x0, niter=niter, show=show, **options)
            x = self.run(x, niter, show=show, itershow=itershow)
        else:
            problem = self._start(y, x0, niter, options, show)
            replaced = getattr(self.callback, "__func__", None) is not Solver.callback  # PyLops' own does nothing
            result = solvers.solve(
                self._running,
                *problem,
                parts=(getattr(self._running, "transform", None),),
                niter=niter,
                callback=native_callback(self.callback if replaced else None, x0),
                progress=None if show else False,
                verify=False,  # PyLops-MPI's tolerances apply to residuals by recurrence
            )
            self.iiter, x = result.iterations, wrap_like(result.x, x0)
            self._conclude(x, result.residual_norms, result.details, result.status)
            if show:
                self._print_rows(_chosen(self.iiter, itershow))
        self.finalize(show=show)
        return self._result(x)

    # Printing, on rank 0

    def _print_rows(self, iterations: Sequence[int]) -> None:
        for number in iterations if self._prints() else ():
            print(f"{number:6d}  {self.cost[min(number, len(self.cost)) - 1]:.4e}")

    def _prints(self) -> bool:
        return leaves(self.y)[0].rank == 0


def _chosen(niter: int, itershow: Sequence[int]) -> list[int]:
    """Return the iterations to print: the first, the last, and some in between."""
    first, last, interval = itershow
    return [n for n in range(1, niter + 1) if n <= first or n > niter - last or n % interval == 0]


def native_callback(
    callback: Callable[..., object] | None, like: AnyArray, dual: AnyArray = None
) -> Callable[[int, Any], None] | None:
    """Return a callback for the native driver that passes the model to `callback` and ignores its result.

    If `dual` is given, it also passes the dual variable, as an array such as `dual`.
    """
    if callback is None:
        return None

    def call(_: int, view: Any) -> None:
        callback(wrap_like(view.x, like), *(() if dual is None else [wrap_like(view.state.y, dual)]))

    return call


# The classes


class CG(_NativeSolver):
    """Conjugate gradients for a Hermitian positive definite operator, see :func:`collops.cg`."""

    def _method(self, tol=1e-4):
        self.tol, self._heading = tol, f"tol = {tol:e}"
        return solvers.CG(tol=check_number("tol", tol), precision=self._precision())

    def _conclude(self, x: AnyArray, norms: np.ndarray, details: dict[str, Any], status: Status | None) -> None:
        self.cost, self.kold = norms, float(norms[-1] ** 2)


class CGLS(_NativeSolver):
    """Conjugate gradients for least squares, see :func:`collops.cgls`."""

    def _method(self, damp=0.0, tol=1e-4):
        self.damp, self.tol, self._heading = damp * damp, tol, f"damp = {damp:e}\ttol = {tol:e}"
        return solvers.CGLS(damp=check_number("damp", damp), tol=check_number("tol", tol), precision=self._precision())

    def _conclude(self, x: AnyArray, norms: np.ndarray, details: dict[str, Any], status: Status | None) -> None:
        self.cost, self.kold = norms, details["gradient_norm"] ** 2
        self.istop = 1 if self.kold < self.tol else 2
        self.r1norm, last = self.kold, np.float64(norms[-1])
        self.r2norm = np.hypot(last, self.damp**0.5 * x.norm()) if self.damp else last

    def _result(self, x: AnyArray) -> tuple[Any, ...]:
        return x, self.istop, self.iiter, self.r1norm, self.r2norm, self.cost


class _EndsAsPyLops(VaryingThresholding):
    """ISTA and FISTA that end as in PyLops if the step is too long.

    A cost that becomes infinite or NaN stops the solver. If `monitorres`, such a residual counts as an increase.
    """

    stops = (
        (lambda self, now, first: (now is first) & not_finite(now.residual, now.absolute), Status.NOT_FINITE),
        (
            lambda self, now, first: (
                (now is not first) & ((now.residual > now.before) | not_finite(now.residual, now.absolute))
            ),
            Status.RESIDUAL_INCREASED,
            "monitorres",
        ),
        (lambda self, now, first: (now is not first) & not_finite(self._cost(now)), Status.STOPPED),
        *(s for s in VaryingThresholding.stops if s[1] not in (Status.NOT_FINITE, Status.RESIDUAL_INCREASED)),
    )


class ISTA(_NativeSolver):
    """Iterative shrinkage and thresholding, see :func:`collops.solvers.ista`."""

    _accelerated = False
    _default_niter = None
    _function_only = ("rtol", "rtol1")

    def _check(self, options: dict[str, Any]) -> None:
        if options["threshkind"] not in ("hard", "soft", "half"):
            raise ValueError(f"threshkind must be hard, soft, half, got {options['threshkind']}")

    def _method(
        self,
        SOp=None,
        eps=0.1,
        alpha=None,
        eigsdict=None,
        tol=1e-10,
        rtol=0.0,
        rtol1=0.0,
        threshkind="soft",
        decay=None,
        monitorres=False,
    ):
        if alpha is None:  # uses the same random numbers as PyLops-MPI
            start = self._like.empty_like()
            largest = power_iteration(self.Op.H @ self.Op, start, **{"dtype": self.Op.dtype, **(eigsdict or {})})[0]
            alpha = 1.0 / abs(largest)
        self.alpha, self.eps, self.tol, self.threshkind, self.monitorres = alpha, eps, tol, threshkind, monitorres
        self.thresh = eps * alpha * 0.5
        self._heading = (
            f"({threshkind} thresholding)\neps = {eps:e}\ttol = {tol:e}\talpha = {alpha:e}\tthresh = {self.thresh:e}"
        )
        transform = None if SOp is None else native_of(SOp, self._like, self._like)
        if transform is not None:
            transform = with_layouts(transform, transform.domain, self._operator.domain)
        niter = _MAX_STEPS if self.niter is None else self.niter
        options = {"eps": eps, "alpha": alpha, "eigsdict": None, "threshkind": threshkind, "perc": None, "decay": decay}
        options["xtol"] = 0.0
        options |= {"tol": tol, "rtol": rtol, "rtol1": rtol1, "monitorres": monitorres}
        native = prepare(*self._problem, niter, transform, accelerated=self._accelerated, **options)
        return _EndsAsPyLops(**{field.name: getattr(native, field.name) for field in fields(native)})

    def _conclude(self, x: AnyArray, norms: np.ndarray, details: dict[str, Any], status: Status | None) -> None:
        if status is Status.RESIDUAL_INCREASED:
            raise ValueError(
                f"{type(self).__name__} stopped at iteration {self.iiter} due to residual increasing: "
                "decrease alpha, or change eps"
            )
        self.cost, self._updates = details["cost"], details["updates"]

    def step(self, x: AnyArray, show: bool = False) -> tuple[AnyArray, ...]:
        """Take one step; return the model and the norm of the update. Collective."""
        return super().step(x, show), float(self._updates[-1])


class FISTA(ISTA):
    """ISTA with momentum, see :func:`collops.solvers.fista`."""

    _accelerated = True

    def step(  # pyright: ignore[reportIncompatibleMethodOverride] - PyLops-MPI's argument
        self, x: AnyArray, z: AnyArray = None, show: bool = False
    ) -> tuple[AnyArray, ...]:
        """Take one step; return the model, the point of the next gradient, and the norm of the update. Collective.

        `x` and `z` are ignored: the solver keeps both vectors from the last step.
        """
        x, update = super().step(x, show)
        return x, wrap_like(self._state.ahead, self._like), update


# The functions


def _function(kind: type[_NativeSolver], results: str) -> Callable[..., tuple[Any, ...]]:
    """Return the function that solves by the class `kind`, with the same options."""

    def solve(Op, y, x0, niter=10, options=None, show=False, itershow=_SHOWN, callback=None):
        solver = kind(Op)
        if callback is not None:
            solver.callback = callback
        return solver._solve(y, x0, niter, options, show, itershow)

    solve.__doc__ = f"{kind.__doc__} Collective.\n\nReturns {results}."
    return _with_keywords(kind.__name__.lower(), solve, kind._options)


cg = _function(CG, "the solution, the number of iterations, and the norms of the residual")
cgls = _function(
    CGLS,
    "the model; 1 if the squared norm of the gradient is below `tol`, else 2; the number of iterations; the squared\n"
    "norm of the gradient; the norm of the residual, including damping; and the norms of the residual",
)
ista, fista = (
    _function(kind, "the model, the number of iterations, and the cost after each") for kind in (ISTA, FISTA)
)


def power_iteration(Op, b_k, niter=10, tol=1e-5, dtype="float64", backend="numpy") -> tuple[complex, AnyArray, int]:
    """Find the eigenvalue of largest modulus, see :func:`collops.solvers.power_iteration`. Collective.

    Returns the eigenvalue, the eigenvector of norm 1, and the number of iterations. `b_k` is overwritten: first with
    random numbers from NumPy's or CuPy's global generator, complex if `dtype` is complex, then with the eigenvector.
    `backend` has no effect: the engine of `b_k` determines the generator.
    """
    operator = native_of(Op, b_k, b_k)
    for leaf in leaves(b_k):
        rand = leaf.native.engine.xp.random.rand
        real, imaginary = rand(*leaf.local_shape), rand(*leaf.local_shape)  # PyLops-MPI always draws both
        leaf[:] = real + 1j * imaginary if np.dtype(dtype).kind == "c" else real
    result = collops.power_iteration(operator, as_native(b_k, operator.domain), niter=niter, tol=tol)
    for leaf, part in zip(leaves(b_k), to_layout(result.x, b_k.native.layout).leaves, strict=True):
        leaf.native = reinterpret(part, leaf.native.layout)
    return result.details["eigenvalue"], b_k, result.iterations
