"""Solvers on JAX: the loop over all iterations as one compiled program, which can be differentiated.

The program is traced from the unchanged method: ``init``, then a ``while_loop`` of ``step`` whose condition evaluates
the method's tests on the device. The loop carries the arrays that pass from one iteration to the next, as a pytree.
Programs are cached per operator, or per preconditioner if there is one; arrays of both are arguments, not constants.
"""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import core, lax

from collops.array import Array, zeros
from collops.comm import Communicator
from collops.comm.agreement import raised_together
from collops.errors import CollopsError, InputError, UnsupportedTypeError
from collops.jax import jit
from collops.jax.primitive import linear_map
from collops.jax.versions import lowered, product_precision
from collops.operators import LinearOperator
from collops.solvers.method import MAX_RESTARTS, Method
from collops.solvers.problem import check_kept, working_dtype
from collops.solvers.result import ROUNDING, SolverResult, Status
from collops.solvers.scaling import (
    Problem,
    Units,
    is_ordinary_norm,
    out_of_range,
    refuse_false_zero,
    starts_from_norm,
    traced_problem,
)
from collops.solvers.state import Numbers, State, carried, with_carried

_STATUSES = list(Status)
_SUCCESSFUL = [status for status in Status if status.successful]
_CONTINUES, _AGAIN = -1, -2
_SCALE_NOTHING, _SCALE_DATA, _SCALE_ALL = range(3)

if TYPE_CHECKING:
    from collops.solvers.driver import Run

_Carried = tuple[dict[str, Any], jax.Array, jax.Array]
"""The loop's carried values by name, rows, and number of iterations."""

_programs: weakref.WeakKeyDictionary[LinearOperator, dict[Any, Callable[..., Any]]] = weakref.WeakKeyDictionary()


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class TracedResult:
    """The outcome of a solver in a program of JAX that is being traced. A pytree."""

    x: Array
    iterations: jax.Array  # number of iterations of x; 0-d
    residual_norms: jax.Array  # before the first iteration and after each one; NaN after the last
    code: jax.Array  # index of the status; 0-d

    @property
    def status(self) -> Status:
        """Why the solver stopped; available once the program has run."""
        return _STATUSES[int(self.code)]


def can_be_compiled(method: Method, data: Array) -> bool:
    """Return whether the loop of a method can be compiled; otherwise its steps run one by one.

    Raises UnsupportedTypeError if it cannot while a program is being traced, since the host then cannot read values.
    """
    if method.traceable:
        return True
    if any(isinstance(leaf, core.Tracer) for leaf in jax.tree.leaves(data)):
        raise UnsupportedTypeError(
            f"{method.name} cannot be traced by JAX: call it outside of jit and grad, or use one of cg, minres, "
            "bicgstab, cgls, lsqr, lsmr, ista and fista"
        )
    return False


def solve_compiled(
    method: Method, operator: Any, data: Array, x0: Array | None, run: Run
) -> SolverResult | TracedResult:
    """Run a method to its end in one program, with the arguments of :func:`collops.solvers.solve`. Collective.

    Returns a `TracedResult` while a program is being traced.
    """
    if run.differentiate not in ("implicit", "unroll"):
        raise InputError(f"differentiate must be 'implicit' or 'unroll', not {run.differentiate!r}")
    begin = time.perf_counter()
    # The rows of a loop are one array, and its counter has 32 bits.
    check_kept("niter", run.niter, data.engine, len(method.numbers._fields))
    if run.niter > np.iinfo(np.int32).max:
        raise InputError(f"niter must be at most {np.iinfo(np.int32).max} for a compiled loop, not {run.niter}")
    traced = any(isinstance(leaf, core.Tracer) for leaf in jax.tree.leaves((data, x0)))
    original = Problem(method, operator, data, x0)
    # The first numbers of a run show whether it needs units, unless the host cannot read them.
    scaled = _SCALE_ALL if traced else _SCALE_NOTHING if starts_from_norm(original) else _SCALE_DATA
    while True:
        options = _Options(run.niter, bool(run.verify), run.differentiate, scaled)
        outcome = _program(method, operator, data, x0, options)(data, x0)
        if any(isinstance(leaf, core.Tracer) for leaf in jax.tree.leaves(outcome)):
            x, iterations, rows, code, _, units = outcome
            problem = Problem(method, operator, data, x0, Units(*units))
            return TracedResult(x, iterations, problem.residual_norm(method.numbers(*rows.T)), code)
        on_host = _OnHost.from_outcome(outcome)
        needed = _needed_scaling(original, on_host, scaled)
        if needed == scaled:
            break
        scaled = needed
    x, variance, units = outcome[0], outcome[4], on_host.units
    problem = Problem(method, operator, data, x0, units)
    if not units.trivial:
        _check(original.within(units), x, on_host, scaled == _SCALE_ALL)
    numbers = method.numbers(*on_host.rows.T)
    seconds = time.perf_counter() - begin
    state = SimpleNamespace(x=units.divided(x, method.degree("x")), variance=variance)
    return SolverResult(
        x=x,
        status=on_host.status,
        iterations=on_host.iterations,
        residual_norms=problem.residual_norm(numbers),
        seconds=seconds,
        seconds_per_iteration=seconds / max(1, on_host.iterations),
        execution="compiled loop",
        details=problem.details(method.details(state, numbers)),
    )


class _Options(NamedTuple):
    """The options of a run that determine its program."""

    niter: int
    verify: bool
    differentiate: str
    scaled: int  # _SCALE_NOTHING, _SCALE_DATA, or _SCALE_ALL for data and operator


class _OnHost(NamedTuple):
    """The numbers of a finished loop, copied to the host together, since each copy synchronises with the device."""

    iterations: int
    rows: np.ndarray  # one for the start and one for each iteration, float64
    status: Status
    units: Units

    @classmethod
    def from_outcome(cls, outcome: Any) -> _OnHost:
        _, *numbers, _, units = outcome
        for array in (*numbers, *units):
            array.copy_to_host_async()
        iterations, rows, code = map(np.asarray, numbers)
        done = int(iterations)
        return cls(done, rows.astype(np.float64)[: done + 1], _STATUSES[int(code)], Units(*map(float, units)))


def _needed_scaling(problem: Problem, on_host: _OnHost, scaled: int) -> int:
    """Return what must be scaled, from the numbers of the first iterations of a run that scaled `scaled`."""
    method = problem.method
    if method.degrees is None or scaled == _SCALE_ALL:
        return scaled
    first, *others = (method.numbers(*row) for row in on_host.rows[:2].tolist())
    if scaled == _SCALE_NOTHING and not is_ordinary_norm(problem, float(method.residual_norm(first))):
        return _SCALE_DATA
    pairs: list[tuple[Numbers, Numbers | None]] = [(first, None), *((now, first) for now in others)]
    extreme = any(out_of_range(method.magnitudes(*pair, None), problem.dtype) for pair in pairs)
    return _SCALE_ALL if extreme else scaled


def _check(problem: Problem, x: Array, on_host: _OnHost, measured: bool) -> None:
    """Raise InputError for a false success, or a solution outside the range of its precision. Collective."""
    method, status = problem.method, on_host.status
    if measured and status.successful and not on_host.iterations:
        first = method.numbers(*on_host.rows[0].tolist())
        refuse_false_zero(problem, method.magnitudes(first, None, None))
    size = float(x.norm(np.inf))
    if status is not Status.NOT_FINITE and (not np.isfinite(size) or (size == 0 and on_host.iterations > 0)):
        with raised_together():
            raise InputError(
                f"{method.name}: {x.dtype} cannot hold the solution: multiply the operator or the data by a number, or "
                "use a higher precision"
            )


def _program(
    method: Method, operator: LinearOperator, data: Array, x0: Array | None, run: _Options
) -> Callable[[Array, Array | None], Any]:
    """Return the compiled program of a problem, cached."""
    M = getattr(method, "M", None)
    known = _programs.setdefault(operator if M is None else M, {})
    # The key keeps neither the operator nor a preconditioner derived from it alive.
    parts = (method,) if M is None else (dataclasses.replace(method, M=None), weakref.ref(operator))
    precision = product_precision()  # of the products in the program
    key: Any = (*parts, data.layout, data.dtype, None if x0 is None else x0.dtype, run, precision)
    try:
        if key in known:
            return known[key]
    except TypeError:
        key = None  # an option is being traced
    closed, shapes = jax.make_jaxpr(lambda data, x0: _run(method, operator, data, x0, run), return_shape=True)(data, x0)
    structure = jax.tree.structure(shapes)
    depends = any(isinstance(constant, core.Tracer) for constant in closed.consts)  # on values that are being traced
    if depends and run.scaled != _SCALE_ALL:  # the host cannot read the numbers of the first iterations
        return _program(method, operator, data, x0, run._replace(scaled=_SCALE_ALL))
    plain = closed if depends else lowered(closed)
    at_once = _compiled(plain, data.comm)
    derived = at_once if plain is closed else _compiled(closed, data.comm)

    def program(data: Array, x0: Array | None) -> Any:
        leaves = jax.tree.leaves((data, x0))
        chosen = derived if any(isinstance(leaf, core.Tracer) for leaf in leaves) else at_once
        return jax.tree.unflatten(structure, chosen(leaves))

    if key is not None and not depends:
        known[key] = program
    return program


def _compiled(program: Any, comm: Communicator) -> Callable[[list[jax.Array]], list[jax.Array]]:
    """Return a traced program as a function of its arguments; the arrays of the operator are not copied into it."""
    compiler = jax.jit if comm.size == 1 else jit  # preserves the order of the ranks' messages
    call = compiler(lambda constants, leaves: core.eval_jaxpr(program.jaxpr, constants, *leaves))
    return lambda leaves: call(program.consts, leaves)


def _run(method: Method, operator: LinearOperator, data: Array, x0: Array | None, run: _Options) -> Any:
    """Return solution, number of iterations, rows, status index, variances or ``None``, and the units of rows.

    To be traced.
    """
    problem = Problem(method, operator, data, x0)
    if run.scaled != _SCALE_NOTHING:
        problem = traced_problem(problem, measured=run.scaled == _SCALE_ALL)
    x, *others = _differentiable(problem.method, problem.A, problem.y, problem.x0, run)
    return problem.solution(x), *others, () if problem.units.trivial else problem.units[:2]


def _differentiable(method: Any, operator: LinearOperator, data: Array, x0: Array | None, run: _Options) -> Any:
    """Return the results of :func:`_loop`, with the derivatives that `run` specifies."""
    if run.differentiate == "unroll":
        return _loop(method, operator, data, x0, run.niter, unroll=True)
    if not hasattr(method, "optimality"):
        x, iterations, rows, *others = _loop(method, operator, data, x0, run.niter, verify=run.verify)
        x, rows = jax.tree.map(lambda array: _forward_mode_only(method, array), (x, rows))
        return x, iterations, rows, *others

    def iterated(_: object, guess: Array) -> Any:
        # `custom_root` does not differentiate this function.
        x, iterations, rows, code, variance = _loop(method, operator, data, x0, run.niter, verify=run.verify)
        # Auxiliary results need derivatives, even if zero: integers have none.
        return x, (iterations.astype(rows.dtype), rows, code.astype(rows.dtype), variance)

    def optimality(z: Array) -> Array:
        if x0 is None or not method.damps_change:
            return method.optimality(operator, data, z)
        return method.optimality(operator, data - operator.forward(x0), z - x0)

    guess = zeros(operator.domain, comm=data.comm, dtype=working_dtype(operator, data, x0), engine=data.engine)
    x, others = lax.custom_root(optimality, guess, iterated, _tangent(method, operator, run.niter), has_aux=True)
    iterations, rows, code, variance = others
    return x, iterations.astype(np.int32), rows, code.astype(np.int32), variance


def _forward_mode_only(method: Method, array: jax.Array) -> jax.Array:
    """Return a result of a loop; raise UnsupportedTypeError when JAX differentiates it in reverse mode.

    JAX cannot transpose a loop that ends by a test, and its error does not suggest a remedy.
    """

    def refuse(_: object) -> NoReturn:
        raise UnsupportedTypeError(
            f"{method.name} cannot be differentiated implicitly in reverse mode, as by jax.grad: pass "
            "differentiate='unroll' for the derivative of all iterations, or use jax.jvp"
        )

    return linear_map(lambda value: value, refuse, array, (array.shape, array.shape), (False, None))


def _loop(
    method: Method,
    operator: LinearOperator,
    data: Array,
    x0: Array | None,
    niter: int,
    *,
    unroll: bool = False,
    verify: bool = False,
) -> Any:
    """Return solution, number of iterations, rows, status index, and variances or ``None``.

    With `unroll`, derivatives pass through all iterations.
    """
    state = method.init(operator, data, x0)
    first = _row(method, state)
    reference = first
    at_zero = None if x0 is None else method.recomputed(operator, data, None, x0, state, method.numbers(*first))
    if at_zero is not None:
        at_zero = _stacked(at_zero).astype(first.dtype)
        reference = jnp.where(at_zero == 0, first, at_zero)
    rows = jnp.full((niter + 1, len(method.numbers._fields)), jnp.nan, first.dtype).at[0].set(first)

    def continues(loop: _Carried) -> jax.Array:
        _, rows, iteration = loop
        return (iteration < niter) & (_code(method, rows[iteration], reference) == _CONTINUES)

    def advance(loop: _Carried) -> _Carried:
        values, rows, iteration = loop
        after = method.step(operator, with_carried(state, values))
        rows = rows.at[iteration + 1].set(_row(method, after).astype(rows.dtype))
        return _of_types(values, carried(after)), rows, iteration + 1

    def ended(loop: _Carried) -> jax.Array:
        code = _code(method, loop[1][loop[2]], reference)
        return jnp.where(code == _CONTINUES, _STATUSES.index(Status.ITERATION_LIMIT), code)

    begin = carried(state)
    loop = (_of_types(begin, begin), rows, jnp.zeros((), np.int32))
    if unroll:
        loop, _ = lax.scan(
            lambda loop, _: (lax.cond(continues(loop), advance, lambda same: same, loop), None), loop, length=niter
        )
        code = ended(loop)
    elif not verify or type(method).recomputed is Method.recomputed:
        loop = lax.while_loop(continues, advance, loop)
        code = ended(loop)
    else:
        check = _verification(method, operator, data, x0, state, reference, niter)
        checked = [status for status in Status if status.successful or method.always_measured]
        checked = [status for status in checked if status is not Status.NOT_FINITE]

        def attempt(outer: tuple[_Carried, jax.Array, jax.Array]) -> tuple[_Carried, jax.Array, jax.Array]:
            loop, _, attempts = outer
            loop = lax.while_loop(continues, advance, loop)
            code = ended(loop)
            loop, code = lax.cond(
                _is_one_of(code, checked), lambda loop: check(loop, code, attempts), lambda loop: (loop, code), loop
            )
            return loop, code, attempts + 1

        loop, code, _ = lax.while_loop(
            lambda outer: outer[1] == _AGAIN, attempt, (loop, jnp.asarray(_AGAIN, np.int32), jnp.zeros((), np.int32))
        )
    values, rows, iterations = loop
    state = with_carried(state, values)
    return state.x, iterations, rows, code, getattr(state, "variance", None)


def _verification(
    method: Method,
    operator: LinearOperator,
    data: Array,
    x0: Array | None,
    state: State,
    reference: jax.Array,
    niter: int,
) -> Callable[[_Carried, jax.Array, jax.Array], tuple[_Carried, jax.Array]]:
    """Return a function that measures the solution of a loop that ended with the status index `ending`.

    It returns the loop and a status index, or the number that requests a restart from the solution.
    """

    def check(loop: _Carried, ending: jax.Array, attempts: jax.Array) -> tuple[_Carried, jax.Array]:
        values, rows, iteration = loop
        now = with_carried(state, values)
        x = now.x
        measured = _stacked(method.recomputed(operator, data, x, x0, now, method.numbers(*rows[iteration])))
        rows = rows.at[iteration].set(measured.astype(rows.dtype))
        code = _code(method, rows[iteration], reference)

        def explained() -> jax.Array:
            numbers = method.numbers(*rows[iteration])
            verdicts = method.at_rounding(operator, data, x, numbers, method.numbers(*rows.T))
            may_restart = (iteration < niter) & (attempts < MAX_RESTARTS) & method.restarts(now)
            limit, stagnated = (_STATUSES.index(status) for status in (Status.ITERATION_LIMIT, Status.STAGNATED))
            status_number = jnp.where(may_restart, _AGAIN, jnp.where(iteration == niter, limit, stagnated))
            for verdict, status in zip(reversed(verdicts), reversed(ROUNDING), strict=True):
                status_number = jnp.where(verdict, _STATUSES.index(status), status_number)
            return status_number.astype(np.int32)

        decided = _is_one_of(code, [*_SUCCESSFUL, Status.NOT_FINITE])
        code = jnp.where(decided, code, ending)
        code = lax.cond(decided | ~_is_one_of(ending, _SUCCESSFUL), lambda: code, explained)
        if method.restarts(now):
            values = lax.cond(
                code == _AGAIN,
                lambda: _of_types(values, carried(method.restarted(operator, data, x, now))),
                lambda: values,
            )
        return (values, rows, iteration), code

    return check


def _of_types(values: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays carried out of a step, converted to the types carried into it, as loops require."""
    if jax.tree.structure(after) != jax.tree.structure(values):
        raise CollopsError("a step that changes which fields of its state hold arrays cannot be compiled")
    return jax.tree.map(lambda old, new: lax.convert_element_type(new, jnp.result_type(old)), values, after)


def _row(method: Method, state: State) -> jax.Array:
    return _stacked(method.report(state))


def _stacked(numbers: Numbers) -> jax.Array:
    return numbers if isinstance(numbers, jax.Array) else jnp.stack([jnp.asarray(number) for number in numbers])


def _is_one_of(code: jax.Array, statuses: Sequence[Status]) -> jax.Array:
    return jnp.isin(code, np.array([_STATUSES.index(status) for status in statuses], np.int32))


def _code(method: Any, row: jax.Array, reference: jax.Array) -> jax.Array:
    """Return the status index of the first test that passes, or the number that continues the loop."""
    now, first = method.numbers(*row), method.numbers(*reference)
    code = jnp.asarray(_CONTINUES, np.int32)
    for test, status in reversed(method.possible_stops):
        code = jnp.where(test(method, now, first), _STATUSES.index(status), code)
    return code


def _tangent(method: Any, operator: LinearOperator, niter: int) -> Callable[[Any, Array], Array]:
    """Return a function that solves the equations of a method for another right-hand side, in either direction."""

    def solved(_: object, right: Array, equations: Callable[..., Any] = method.tangent) -> Array:
        # The derivative of the optimality is the negative of the operator that `tangent` returns.
        problem = traced_problem(Problem(method, operator, right, None), measured=False)
        right = problem.y
        tiny = (100 * float(jnp.finfo(right.dtype).eps)) ** 2
        solver, normal = equations(operator, tiny * right.vdot(right).real)
        return problem.units.array(-_loop(solver.variant(right), normal, right, None, 2 * niter)[0], (1, 0))

    def transposed(matvec: object, right: Array) -> Array:
        return solved(matvec, right.conj(), getattr(method, "cotangent", method.tangent)).conj()

    def tangent(linear: Callable[[Array], Array], right: Array) -> Array:
        return lax.custom_linear_solve(linear, right, solved, transposed)

    return tangent
