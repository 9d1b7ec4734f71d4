"""PyLops-MPI's solvers, as functions and as classes that also run step by step, on the native methods.

A class is one entry: its ``_method`` has the options of the solver and returns the native method. The signatures of
``setup``, ``solve`` and of the function of the same name are made from it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any, NamedTuple

import numpy as np
from pylops.optimization.basesolver import Solver

from collops import solvers
from collops.compat.pylops_mpi._arrays import checked_array, leaves, wrapped
from collops.compat.pylops_mpi._linear_operator import native_of
from collops.compat.pylops_mpi._native import between, brought, relabelled
from collops.operators import LinearOperator
from collops.solvers.iterative_thresholding import prepare
from collops.solvers.problem import check_number, check_problem

__all__ = [
    "CG",
    "CGLS",
    "FISTA",
    "ISTA",
    "cg",
    "cgls",
    "fista",
    "ista",
    "native_callback",
    "power_iteration",
    "seen_as",
]

_SHOWN = (10, 10, 10)
_LONGEST = 10_000  # iterations of a solver that runs step by step, if nobody says how many


class _Problem(NamedTuple):
    """A problem in the layouts of its native operator."""

    operator: LinearOperator
    data: Any
    start: Any
    x0: Any  # as the user gave it
    niter: int | None


def _spread(name: str, function: Callable[..., Any], options: Sequence[Parameter], **defaults: Any) -> Any:
    """Return `function` with arguments instead of its dictionary ``options``, with another name and other defaults."""
    parameters: list[Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        other = parameter.replace(default=defaults.get(parameter.name, parameter.default))
        parameters += options if parameter.name == "options" else [other]
    signature = inspect.Signature(parameters)

    @functools.wraps(function)
    def spread(*arguments: Any, **named: Any) -> Any:
        given = signature.bind(*arguments, **named)
        given.apply_defaults()
        named = dict(given.arguments)
        return function(options={option.name: named.pop(option.name) for option in options}, **named)

    spread.__name__ = spread.__qualname__ = name
    spread.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
    return spread


class _NativeSolver(Solver):
    """A solver class of PyLops-MPI on a native method.

    ``solve`` leaves the whole solution to the native driver, which replays CUDA graphs and checks tolerances with a
    delay; ``setup``, ``step``, ``run`` and ``finalize`` take the same steps one by one, as ``solve`` does with PyLops'
    callback objects.
    """

    _default_niter: int | None = 10
    _of_function: tuple[str, ...] = ()  # options that the function has, and the class does not
    _facts = ""
    _state: Any
    _running: Any
    cost: Any = ()

    def __init_subclass__(cls) -> None:
        """Give ``setup`` and ``solve`` the options of ``_method``."""
        cls._options = list(inspect.signature(cls._method).parameters.values())[2:]
        options = [option for option in cls._options if option.name not in cls._of_function]
        cls.setup = _spread("setup", cls._setup, options)
        cls.solve = _spread("solve", cls._solve, options, niter=cls._default_niter)

    def __init__(self, Op: Any, callbacks: Any = None) -> None:
        super().__init__(Op, callbacks)

    def _method(self, problem: _Problem, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    def _conclude(self, x: Any, norms: np.ndarray, details: dict[str, Any], status: Any) -> None:
        """Set the numbers that PyLops reports, from the norms of the residual and the method's own numbers."""
        raise NotImplementedError

    def _result(self, x: Any) -> tuple[Any, ...]:
        return x, self.iiter, self.cost

    def memory_usage(self, show: bool = False, unit: str = "B") -> Any:
        """Return nothing: the memory of a distributed solver is not counted."""

    def _problem(self, y: Any, x0: Any, niter: int | None) -> _Problem:
        self.y, self.niter, self._like = y, niter, x0
        operator = native_of(self.Op, x0, y)
        problem = _Problem(operator, brought(y.native, operator.range), brought(x0.native, operator.domain), x0, niter)
        check_problem(operator, problem.data, problem.start, _LONGEST if niter is None else niter)
        return problem

    # Step by step

    def _setup(self, y: Any, x0: Any, niter: int | None = None, options: Any = None, show: bool = False) -> Any:
        """Prepare for steps; return the first model. Collective."""
        problem = self._problem(y, x0, niter)
        self._running, self._operator = self._method(problem, **options), problem.operator
        self.iiter, self._rows = 0, []
        self._print_start(show)
        return self._take_in(self._running.init(problem.operator, problem.data, problem.start))

    def _take_in(self, state: Any) -> Any:
        """Note the state after an iteration; return the model."""
        self._state, method = state, self._running
        self._rows.append(method.numbers(*map(float, method.report(state))))
        x, history = seen_as(state.x, self._like), method.numbers(*np.array(self._rows).T)
        self._conclude(x, method.residual_norm(history), method.details(state, history), self._status())
        return x

    def _status(self) -> Any:
        return self._running.status(self._rows[-1], self._rows[0])

    def step(self, x: Any, show: bool = False) -> Any:
        """Take one step; return the model. Collective."""
        self.iiter += 1
        x = self._take_in(self._running.step(self._operator, self._state))
        if show:
            self._print_rows([self.iiter])
        return x

    def run(self, x: Any, niter: int | None = None, show: bool = False, itershow: Sequence[int] = _SHOWN) -> Any:
        """Take steps until the tolerance or `niter`; return the model. Collective."""
        niter = self.niter if niter is None else niter
        if niter is None:
            raise ValueError("give niter to setup or to run")
        while self.iiter < niter and self._status() is None:
            stepped = self.step(x, show=show and self.iiter + 1 in _chosen(niter, itershow))
            x = stepped[0] if isinstance(stepped, tuple) else stepped
            self.callback(x)
        return x

    def finalize(self, show: bool = False, **kwargs: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """End the timing, and print it if `show`."""
        self.cost = np.asarray(self.cost)
        self.tend = time.time()
        self.telapsed = self.tend - self.tstart
        if show and self._prints():
            self._print_finalize(nbar=65)

    # As a whole

    def _solve(self, y, x0, niter=10, options: Any = None, show=False, itershow=_SHOWN) -> Any:
        """Solve; return what the function of the same name does. Collective."""
        niter = 10 if niter is None else niter
        if self.callbacks:
            x = self.setup(y=y, x0=x0, niter=niter, show=show, **options)
            x = self.run(x, niter, show=show, itershow=itershow)
        else:
            problem = self._problem(y, x0, niter)
            method = self._method(problem, **options)
            self._print_start(show)
            own = getattr(self.callback, "__func__", None) is not Solver.callback  # the base class' one does nothing
            result = solvers.solve(
                method,
                problem.operator,
                problem.data,
                problem.start,
                parts=(getattr(method, "transform", None),),
                niter=niter,
                callback=native_callback(self.callback if own else None, x0),
                progress=None if show else False,
            )
            self.iiter, x = result.iterations, seen_as(result.x, x0)
            self._conclude(x, result.residual_norms, result.details, result.status)
            if show:
                self._print_rows(_chosen(self.iiter, itershow))
        self.finalize(show=show)
        return self._result(x)

    # Tables, on rank 0

    def _print_start(self, show: bool) -> None:
        if show and self._prints():
            self._print_solver(nbar=65)
            sys.stdout.write(f"{self._facts}\tniter = {self.niter}\n{'-' * 65}\n")

    def _print_rows(self, iterations: Sequence[int]) -> None:
        for number in iterations if self._prints() else ():
            sys.stdout.write(f"{number:6d}  {self.cost[min(number, len(self.cost)) - 1]:.4e}\n")

    def _prints(self) -> bool:
        return leaves(self.y)[0].rank == 0


def _chosen(niter: int, itershow: Sequence[int]) -> list[int]:
    """Return the iterations to show: the first, the last, and some of those between."""
    first, last, every = itershow
    return [n for n in range(1, niter + 1) if n <= first or n > niter - last or n % every == 0]


def seen_as(array: Any, like: Any) -> Any:
    """Return a native array of a solver as one of PyLops-MPI's in the layout and partition of `like`."""
    return wrapped(brought(array, like.native.layout), like, leaves(like)[0].partition)


def native_callback(callback: Callable[[Any], Any] | None, like: Any) -> Callable[[int, Any], None] | None:
    """Return a callback for the native driver that passes the model to PyLops-MPI's, whose result has no effect."""
    if callback is None:
        return None

    def call(_: int, view: Any) -> None:
        callback(seen_as(view.x, like))

    return call


# The classes


class CG(_NativeSolver):
    """Conjugate gradients for a Hermitian positive definite operator, see :func:`collops.cg`.

    `callbacks` are PyLops' callback objects, which are called around ``setup``, ``step`` and ``run``.

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

    def _method(self, problem, tol=1e-4):
        self.tol, self._facts = tol, f"tol = {tol:e}"
        # PyLops-MPI's iterations go on where only rounding is left.
        return solvers.CG(tol=check_number("tol", tol), precision=0.0)

    def _conclude(self, x: Any, norms: np.ndarray, details: dict[str, Any], status: Any) -> None:
        self.cost, self.kold = norms, float(norms[-1] ** 2)


class CGLS(_NativeSolver):
    """Conjugate gradients for least squares, see :func:`collops.cgls` and :class:`CG`.

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

    def _method(self, problem, damp=0.0, tol=1e-4):
        self.damp, self.tol, self._facts = damp * damp, tol, f"damp = {damp:e}\ttol = {tol:e}"
        return solvers.CGLS(damp=check_number("damp", damp), tol=check_number("tol", tol), precision=0.0)

    def _conclude(self, x: Any, norms: np.ndarray, details: dict[str, Any], status: Any) -> None:
        self.cost, self.kold = norms, details["gradient_norm"] ** 2
        self.istop = 1 if self.kold < self.tol else 2
        self.r1norm, last = self.kold, float(norms[-1])
        self.r2norm = float(np.hypot(last, self.damp**0.5 * x.norm())) if self.damp else last

    def _result(self, x: Any) -> tuple[Any, ...]:
        return x, self.istop, self.iiter, self.r1norm, self.r2norm, self.cost


class ISTA(_NativeSolver):
    """Iterative shrinkage and thresholding, see :func:`collops.solvers.ista` and :class:`CG`.

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
    _default_niter = None
    _of_function = ("rtol", "rtol1")

    def _method(
        self,
        problem,
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
        if threshkind not in ("hard", "soft", "half"):
            raise NotImplementedError(f"threshkind must be 'hard', 'soft' or 'half', not {threshkind!r}")
        if alpha is None:  # with the same random numbers as PyLops-MPI
            start = checked_array(problem.x0).empty_like()
            largest = power_iteration(self.Op.H @ self.Op, start, **{"dtype": self.Op.dtype, **(eigsdict or {})})[0]
            alpha = 1.0 / abs(largest)
        self.alpha, self.eps, self.tol, self.threshkind, self.monitorres = alpha, eps, tol, threshkind, monitorres
        self.thresh = eps * alpha * 0.5
        self._facts = (
            f"({threshkind} thresholding)\neps = {eps:e}\ttol = {tol:e}\talpha = {alpha:e}\tthresh = {self.thresh:e}"
        )
        transform = None if SOp is None else native_of(SOp, problem.x0, problem.x0)
        if transform is not None:
            transform = between(transform, transform.domain, problem.operator.domain)
        return prepare(
            problem.operator,
            problem.data,
            problem.start,
            _LONGEST if problem.niter is None else problem.niter,
            transform,
            accelerated=self._accelerated,
            eps=eps,
            alpha=alpha,
            eigsdict=None,
            tol=tol,
            rtol=rtol,
            rtol1=rtol1,
            threshkind=threshkind,
            perc=None,
            decay=decay,
            monitorres=monitorres,
        )

    def _conclude(self, x: Any, norms: np.ndarray, details: dict[str, Any], status: Any) -> None:
        if status is solvers.Status.RESIDUAL_INCREASED:
            raise ValueError(f"the norm of the residual increased in iteration {self.iiter}")
        self.cost, self._updates = details["cost"], details["updates"]

    def step(self, x: Any, show: bool = False) -> Any:
        """Take one step; return the model and the norm of the update. Collective."""
        return super().step(x, show), float(self._updates[-1])


class FISTA(ISTA):
    """ISTA with momentum, see :func:`collops.solvers.fista` and :class:`CG`.

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
    ) -> Any:
        """Take one step; return the model, the point of the next gradient, and the norm of the update. Collective.

        The solver keeps both vectors: `x` and `z` are those that the last call returned.
        """
        x, update = super().step(x, show)
        return x, seen_as(self._state.ahead, self._like), update


# The functions


def _function(name: str, kind: Any, doc: str) -> Callable[..., tuple[Any, ...]]:
    """Return the function that solves by the class `kind`, with the options of its method, and its example."""

    def solve(Op, y, x0, niter=10, options=None, show=False, itershow=_SHOWN, callback=None):
        solver = kind(Op)
        if callback is not None:
            solver.callback = callback
        return solver._solve(y, x0, niter, options, show, itershow)

    _, heading, example = (inspect.getdoc(kind) or "").partition("\n\nExamples\n")
    solve.__doc__ = inspect.cleandoc(doc) + heading + example.replace(f"{kind.__name__}(A).solve(", f"{name}(A, ")
    return _spread(name, solve, kind._options)


cg = _function(
    "cg",
    CG,
    """Solve by conjugate gradients, see :func:`collops.cg`. Collective.

    Returns
    -------
    x : DistributedArray or StackedDistributedArray
        The solution.
    iit : int
        Number of iterations.
    cost : numpy.ndarray
        Norms of the residual.
    """,
)
cgls = _function(
    "cgls",
    CGLS,
    """Minimise by conjugate gradients for least squares, see :func:`collops.cgls`. Collective.

    Returns
    -------
    x : DistributedArray or StackedDistributedArray
        The model.
    istop : int
        1 if the gradient is small enough, else 2.
    iit : int
        Number of iterations.
    r1norm, r2norm : float
        As in PyLops, the squared norm of the gradient; and the norm of the residual, damping included.
    cost : numpy.ndarray
        Norms of the residual.
    """,
)
ista = _function(
    "ista",
    ISTA,
    """Find a sparse model by ISTA, see :func:`collops.solvers.ista` for the options. Collective.

    Returns
    -------
    x : DistributedArray or StackedDistributedArray
        The model.
    niter : int
        Number of iterations.
    cost : numpy.ndarray
        Cost of each.

    """,
)
fista = _function(
    "fista", FISTA, "Find a sparse model by FISTA; arguments and results as for :func:`ista`. Collective."
)


def power_iteration(Op, b_k, niter=10, tol=1e-5, dtype="float64", backend="numpy") -> tuple[Any, Any, int]:
    """Find the eigenvalue of largest modulus, see :func:`collops.solvers.power_iteration`. Collective.

    `b_k` first gets random numbers of NumPy's (or CuPy's) global generator, complex ones if `dtype` is, and the
    eigenvector in the end. `backend` has no effect: the generator is that of the array's engine.

    Returns
    -------
    maxeig : float or complex
        The eigenvalue.
    b_k : DistributedArray or StackedDistributedArray
        The eigenvector, of norm 1.
    iiter : int
        Number of iterations.
    """
    operator = native_of(Op, b_k, b_k)
    for leaf in leaves(b_k):
        rand = leaf.native.engine.xp.random.rand
        real, imaginary = rand(*leaf.local_shape), rand(*leaf.local_shape)  # PyLops-MPI always draws both
        leaf[:] = real + 1j * imaginary if np.dtype(dtype).kind == "c" else real
    result = solvers.power_iteration(operator, brought(b_k.native, operator.domain), niter=niter, tol=tol)
    for leaf, found in zip(leaves(b_k), brought(result.x, b_k.native.layout).leaves, strict=True):
        leaf.native = relabelled(found, leaf.native.layout)
    return result.details["eigenvalue"], b_k, result.iterations
