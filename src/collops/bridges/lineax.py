"""Operators and solvers of collops in programs of lineax, optimistix and equinox, on any number of ranks.

Vectors are distributed arrays: pytrees of JAX, whose leaves are this rank's parts. Solvers of lineax compute inner
products of leaves, which are wrong if a vector is split over ranks. The import of this module therefore changes the
primitive of ``lineax.linear_solve`` for the process:

- it rejects solvers other than :class:`Solver` if a vector is split over ranks;
- it declares the effects of the program that it runs, among them the order of collectives. JAX passes the token of an
  ordered effect only to primitives that declare it, and otherwise raises ``KeyError: collops order`` when it lowers
  the program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.core import ShapedArray
from lineax.internal import linear_solve_p
from numpy.typing import DTypeLike

import collops
from collops import DistributedArray, LinearOperator, StackedArray, Status
from collops.errors import InputError, LayoutError, UnsupportedTypeError, type_name
from collops.extend.arrays import Array

__all__ = ["Solver", "as_lineax", "max_norm"]

Tree: TypeAlias = Any
"""A pytree of JAX."""

_SQUARE = (collops.cg, collops.minres, collops.bicgstab)
_LEAST_SQUARES = (collops.cgls, collops.lsqr, collops.lsmr)
_ALTERING = ("damp", "shift", "x0", "differentiate", "callback", "checkpoint", "resume")
_RESULTS = {
    Status.ITERATION_LIMIT: lx.RESULTS.max_steps_reached,
    Status.STAGNATED: lx.RESULTS.stagnation,
    Status.ILL_CONDITIONED: lx.RESULTS.conlim,
    Status.SINGULAR_TO_ROUNDING: lx.RESULTS.singular,
    Status.NOT_FINITE: lx.RESULTS.singular,
}


def as_lineax(
    op: LinearOperator, tags: object | Iterable[object] = (), *, dtype: DTypeLike | None = None
) -> lx.FunctionLinearOperator:
    """Return an operator of collops as an operator of lineax between distributed arrays.

    Parameters
    ----------
    op : LinearOperator
        The operator. Its JAX arrays, also tracers, become leaves of the result, so that lineax differentiates with
        respect to them.
    tags : object or iterable of object
        Properties of the operator for lineax, such as ``lineax.symmetric_tag`` and
        ``lineax.positive_semidefinite_tag``. They are not checked.
    dtype : dtype, optional
        The type of the vectors in the domain. By default the type of `op`.

    Returns
    -------
    lineax.FunctionLinearOperator
        ``mv`` takes an array in the layout ``op.domain`` and returns one in ``op.range``, both of the engine ``jax``.

    Raises
    ------
    UnsupportedTypeError
        If `op` is not a distributed operator.

    Notes
    -----
    Not collective, but ``mv`` sends the messages of `op`.

    Examples
    --------
    >>> import collops
    >>> from collops.bridges.lineax import as_lineax
    >>> x = collops.ones(5, engine="jax", dtype="float32")
    >>> as_lineax(2 * collops.Identity(5), dtype="float32").mv(x).gather().tolist()
    [2.0, 2.0, 2.0, 2.0, 2.0]
    """
    if not isinstance(op, LinearOperator):
        raise UnsupportedTypeError(f"as_lineax takes a distributed operator of collops, not {type_name(op)}")

    def vector() -> Array:
        return collops.zeros(op.domain, comm=op.comm, dtype=op.dtype if dtype is None else dtype, engine="jax")

    return lx.FunctionLinearOperator(op.forward, jax.eval_shape(vector), tags)  # pyright: ignore[reportArgumentType]


class Solver(lx.AbstractLinearSolver):
    """A solver of collops as a solver of lineax: compiled, with inner products over all ranks.

    It solves systems with operators of lineax between distributed arrays: the result of :func:`as_lineax`, and
    Jacobians, such as those that the solvers of optimistix pass to their ``linear_solver``. Add and multiply operators
    before :func:`as_lineax`: lineax's sums and products raise ValueError for distributed arrays.

    Parameters
    ----------
    method : callable
        One of ``collops.cg``, ``minres`` and ``bicgstab``, for nonsingular systems with one layout on both sides, or
        one of ``collops.cgls``, ``lsqr`` and ``lsmr``, for the least-squares solution of minimum norm.
    **options
        Options of `method`, such as `niter` and `rtol`; they must be hashable. Options that alter the solution, such as
        `damp`, raise an error, because lineax's derivatives do not include them.

    Raises
    ------
    InputError
        If `method` or an option is unsupported.
    UnsupportedTypeError
        In ``lineax.linear_solve``, if the operator is not between distributed or stacked arrays.
    LayoutError
        In ``lineax.linear_solve``, if the operator of a square system has two different layouts.

    Notes
    -----
    ``lineax.linear_solve`` with this solver is collective, and returns the same status on all ranks. A solve that ends
    at the iteration limit raises an error there, unless ``throw=False``. lineax's `options` are not supported.

    Derivatives are implicit, by one more solve, or by three for `cgls`, `lsqr` and `lsmr`, which do not assume full
    rank. They are as accurate as the tolerance of the solver.

    Examples
    --------
    >>> import collops
    >>> import lineax
    >>> from collops.bridges.lineax import Solver, as_lineax
    >>> A = as_lineax(collops.Diagonal([1.0, 2.0, 4.0]), lineax.positive_semidefinite_tag, dtype="float32")
    >>> y = collops.ones(3, engine="jax", dtype="float32")
    >>> lineax.linear_solve(A, y, Solver(collops.cg, rtol=1e-5)).value.gather().round(3).tolist()
    [1.0, 0.5, 0.25]
    """

    method: Callable[..., Any] = eqx.field(static=True)
    options: tuple[tuple[str, Any], ...] = eqx.field(static=True)

    def __init__(self, method: Callable[..., Any] = collops.cg, **options: Any) -> None:
        if method not in (*_SQUARE, *_LEAST_SQUARES):
            names = ", ".join(known.__name__ for known in (*_SQUARE, *_LEAST_SQUARES))
            raise InputError(f"method must be one of collops' solvers {names}, not {method!r}")
        if altering := [name for name in _ALTERING if name in options]:
            raise InputError(f"{method.__name__} inside lineax does not support the option {altering[0]}")
        self.method = method
        self.options = tuple(sorted(options.items()))

    def init(self, operator: lx.AbstractLinearOperator, options: dict[str, Any]) -> lx.AbstractLinearOperator:
        """Check the operator, and return it with the part of a Jacobian that does not depend on the vector."""
        if options:
            raise InputError(f"pass options to Solver(...), not to lineax: {', '.join(options)}")
        sides = operator.in_structure(), operator.out_structure()
        for side in sides:
            if not _is_distributed(side):
                raise UnsupportedTypeError(
                    f"a solver of collops needs an operator between distributed arrays, not {type_name(side)}"
                )
        if self.assume_full_rank() and sides[0].layout is not sides[1].layout:
            raise LayoutError(
                f"{self.method.__name__} needs one layout on both sides of the operator, not {sides[0].layout} "
                f"and {sides[1].layout}; take Solver(collops.lsqr)"
            )
        return lx.linearise(operator)

    def compute(
        self, state: lx.AbstractLinearOperator, vector: Array, options: dict[str, Any]
    ) -> tuple[Array, lx.RESULTS, dict[str, Any]]:
        """Solve a system. Collective."""
        result = self.method(_Lifted(state), vector, **dict(self.options))
        # Outside a traced program, as with jax.disable_jit, the solver returns the status itself.
        code = result.code if hasattr(result, "code") else list(Status).index(result.status)
        outcome = lx.RESULTS.breakdown
        for number, status in enumerate(Status):
            meaning = lx.RESULTS.successful if status.successful else _RESULTS.get(status)
            if meaning is not None:
                outcome = lx.RESULTS.where(jnp.asarray(code == number), meaning, outcome)
        return result.x, outcome, {"num_steps": result.iterations}

    def transpose(
        self, state: lx.AbstractLinearOperator, options: dict[str, Any]
    ) -> tuple[lx.AbstractLinearOperator, dict[str, Any]]:
        """Return the state for the transposed operator."""
        return state.transpose(), options

    def conj(
        self, state: lx.AbstractLinearOperator, options: dict[str, Any]
    ) -> tuple[lx.AbstractLinearOperator, dict[str, Any]]:
        """Return the state for the conjugate operator."""
        return lx.conj(state), options

    def assume_full_rank(self) -> bool:
        """Return whether the method needs a nonsingular operator, which simplifies derivatives."""
        return self.method in _SQUARE


class _Lifted(LinearOperator):
    """An operator of lineax between distributed arrays, as an operator of collops."""

    def __init__(self, operator: lx.AbstractLinearOperator) -> None:
        domain, range = operator.in_structure(), operator.out_structure()
        super().__init__(domain.layout, range.layout, np.result_type(domain.dtype, range.dtype), domain.comm)
        self._operator = operator

    def _forward(self, x: Array, out: Array | None) -> Array:
        return self._operator.mv(x)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        return self._transposed.mv(y.conj()).conj()

    @functools.cached_property
    def _transposed(self) -> lx.AbstractLinearOperator:
        return self._operator.transpose()


def max_norm(tree: Tree) -> jax.Array:
    """Return the largest absolute value of distributed arrays, on all ranks: a `norm` for solvers of optimistix.

    With optimistix's own norms the ranks would stop in different iterations.

    Parameters
    ----------
    tree : pytree of DistributedArray or StackedArray

    Raises
    ------
    UnsupportedTypeError
        If a part of `tree` is another array, or there is none.

    Notes
    -----
    Collective: one scalar allreduce for each array.

    Examples
    --------
    >>> import collops
    >>> from collops.bridges.lineax import max_norm
    >>> float(max_norm(-2 * collops.ones(5, engine="jax")))
    2.0
    """
    arrays = jax.tree.leaves(tree, is_leaf=_is_distributed)
    for array in arrays or [None]:
        if not _is_distributed(array):
            raise UnsupportedTypeError(
                f"max_norm takes distributed arrays, not {type_name(array)}; solvers of optimistix that can use it are "
                "Newton, GaussNewton and FixedPointIteration"
            )
    return functools.reduce(jnp.maximum, [array.norm(np.inf) for array in arrays])


def _is_distributed(value: object) -> bool:
    return isinstance(value, DistributedArray | StackedArray)


def _as_struct(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, ShapedArray) else leaf


@eqxi.filter_primitive_def
def _effects(
    operator: lx.AbstractLinearOperator,
    state: Tree,
    vector: Tree,
    options: dict[str, Any],
    solver: lx.AbstractLinearSolver,
    throw: bool,
) -> set[Any]:
    """Return the effects of a solve; raise UnsupportedTypeError if its inner products would be wrong."""
    operator, state, vector, options = jax.tree.map(_as_struct, (operator, state, vector, options))
    sides = jax.tree.leaves((vector, operator.in_structure()), is_leaf=_is_distributed)
    if not isinstance(solver, Solver):
        for array in sides:
            if _is_distributed(array) and array.comm.size > 1 and not array.layout.is_replicated:
                raise UnsupportedTypeError(
                    f"{type(solver).__name__} of lineax computes inner products of this rank's part only, but the "
                    "vectors are split over ranks; use collops.bridges.lineax.Solver"
                )
    return eqx.filter_make_jaxpr(solver.compute)(state, vector, options)[0].effects


_abstract_eval = linear_solve_p.abstract_eval


def _effectful_abstract_eval(*avals: ShapedArray, **parameters: Any) -> tuple[Any, set[Any]]:
    rule: Callable[..., set[Any]] = _effects
    effects = rule(*avals, **{**parameters, "flatten": lambda effects: effects})
    return _abstract_eval(*avals, **parameters)[0], effects


linear_solve_p.def_effectful_abstract_eval(_effectful_abstract_eval)
