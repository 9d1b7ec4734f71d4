"""The arguments of solvers: checks, the dtype of the computation, and rank-consistent inner products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array, DistributedArray, Layout, StackedArray, axpby, dots, zeros
from collops.array.dtypes import real_of
from collops.array.operands import way_to
from collops.array.plans import PLANS_KEPT
from collops.backend import Engine, LocalArray, engine_of, is_traced, memory_of
from collops.comm import Communicator
from collops.comm.agreement import raised_together
from collops.errors import InputError, LayoutError, UnsupportedTypeError, type_name
from collops.limits import in_words
from collops.operators import LinearOperator
from collops.operators.base import AnyLayout
from collops.operators.dims import check_count
from collops.operators.memory import new_array
from collops.solvers.method import Method
from collops.solvers.state import Scalar, Truth, copied, scratch_array

__all__ = [
    "check_array",
    "check_count",
    "check_kept",
    "check_number",
    "check_operator",
    "check_preconditioner",
    "check_problem",
    "check_square",
    "consistent",
    "group_of",
    "has_copies",
    "on_host",
    "precision_of",
    "real_dtype",
    "starting_point",
    "takes_part",
    "working_dtype",
]

RTOL = 1e-5
"""Default bound on the norm of the residual, relative to the norm of the data, as in SciPy and PETSc."""

_UNITS, _SMALL = 10.0, 1e-3
"""Rounding errors of residuals, in units of the precision; and their upper bound relative to the data."""


def check_problem(
    operator: LinearOperator, data: Array, x0: Array | None, niter: int, M: LinearOperator | None = None
) -> None:
    """Check that the arguments are consistent. No messages: every rank has the layouts and raises the same error."""
    check_operator("A", operator)
    check_array("y", data, operator.range)
    check_array("x0", x0, operator.domain, optional=True)
    if x0 is not None and x0.engine is not data.engine:
        raise InputError(f"y is an array of {data.engine.name}, but x0 one of {x0.engine.name}")
    check_count("niter", niter)
    check_preconditioner(M, operator.domain)


def check_plain(method: Method, needs_variant: bool) -> None:
    """Raise InputError if an option needs the steps of a variant, which a derived textbook method lacks."""
    if needs_variant:
        raise InputError(
            f"{type(method).__name__} has the textbook steps only: for M, damp or calc_var derive from a class "
            "of collops.solvers.variants"
        )


def check_operator(name: str, operator: LinearOperator) -> None:
    """Raise UnsupportedTypeError unless an argument is a distributed operator."""
    if not isinstance(operator, LinearOperator):
        raise UnsupportedTypeError(
            f"{name} must be a distributed operator, not {type_name(operator)}; "
            "collops.operators.VStack or BlockDiag makes one from local operators"
        )


def check_square(name: str, A: LinearOperator, advice: str = "") -> None:
    """Raise an error with the `name` of a function unless `A` is an operator with one layout on both sides."""
    check_operator("A", A)
    if A.domain is not A.range:
        raise LayoutError(f"{name} needs an operator with one layout on both sides, not {A!r}{advice}")


def check_preconditioner(M: LinearOperator | None, layout: AnyLayout) -> None:
    """Check that `M` is ``None`` or an operator from arrays of this layout to the same. No messages.

    By convention `M` approximates the inverse of the operator, and is the field ``M`` of a method.
    """
    if M is None:
        return
    check_operator("M", M)
    if M.domain is not layout or M.range is not layout:
        raise LayoutError(f"M must map arrays of the layout {layout} to arrays of the same layout, not {M!r}")


def check_array(name: str, array: Array | None, layout: Any, *, optional: bool = False) -> None:
    """Raise UnsupportedTypeError or LayoutError unless an argument is a distributed array of this layout."""
    if optional and array is None:
        return
    if not isinstance(array, DistributedArray | StackedArray):
        raise UnsupportedTypeError(
            f"{name} must be a distributed array, not {type_name(array)}; "
            "collops.from_global or collops.from_local makes one"
        )
    if array.layout is not layout:
        way = way_to(array.layout, layout, name if name.isidentifier() else "x", "layout")
        raise LayoutError(f"{name} must have the layout {layout}, not {array.layout}; {way}")


def check_reductions(value: int | str, data: Array) -> int | str:
    """Return the key of a variant of CG or CGLS: 2, 1 or ``"pipelined"``; raise InputError for other values.

    ``"pipelined"`` becomes 1 for `data` whose messages cannot overlap with computation.
    """
    if isinstance(value, bool) or value not in (1, 2, "pipelined"):
        raise InputError(f'reductions must be 1, 2 or "pipelined", not {value!r}')
    return 1 if value == "pipelined" and not on_host(data.engine) else value


def on_host(engine: Engine) -> bool:
    """Return whether operations are synchronous and in host memory, as with NumPy."""
    return engine.mutable and engine.memory == "host"


def check_number(name: str, value: Scalar, *, smallest: float = 0.0) -> float:
    """Return an option as a float; raise InputError unless it is a finite real number of at least `smallest`.

    A tracer of JAX has no value, and is accepted.
    """
    try:
        number = math.nan if np.iscomplexobj(value) else float(value)  # NumPy would drop an imaginary part
    except (TypeError, ValueError, OverflowError):
        if is_traced(value) and value.ndim == 0:
            return value
        number = math.nan
    if not smallest <= number < float("inf"):
        raise InputError(f"{name} must be a finite number of at least {smallest:g}, not {value!r}")
    return number


def check_numbers(**options: Scalar) -> dict[str, float]:
    """Return options by name as floats of at least 0; see :func:`check_number`."""
    return {name: check_number(name, value) for name, value in options.items()}


def takes_part(coefficient: Scalar) -> bool:
    """Return whether a coefficient may differ from 0: its value is nonzero, or JAX is tracing it."""
    return coefficient != 0 if coefficient.__class__ is float else is_traced(coefficient) or coefficient != 0


def working_dtype(operator: LinearOperator, data: Array, x0: Array | None) -> np.dtype:
    """Return the dtype of a solver's vectors: the precision of the data, complex if any argument is complex.

    The operator's dtype only determines whether numbers are complex: its precision is often a default of its package.
    """
    dtype = data.dtype if x0 is None else np.result_type(data.dtype, x0.dtype)
    if dtype.kind in "biu":
        dtype = np.result_type(dtype, np.float64 if operator.dtype.kind in "biu" else operator.dtype)
    if operator.dtype.kind == "c" and dtype.kind != "c":
        dtype = np.result_type(dtype, np.complex64)
    return dtype


def real_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of squared norms of arrays of `dtype`: single precision at least."""
    return np.result_type(real_of(dtype), np.float32)


def precision_of(dtype: np.dtype) -> float:
    """Return the relative size of rounding errors of squared norms of arrays of `dtype`."""
    return float(np.finfo(real_dtype(dtype)).eps)


def checked_limits(
    operator: LinearOperator,
    data: Array,
    x0: Array | None,
    damp: Scalar,
    tol: Scalar | None,
    rtol: Scalar | None,
    atol: Scalar,
) -> dict[str, Any]:
    """Return the damping and tolerances of CG or CGLS. No messages.

    `rtol` is :data:`RTOL` by default, or 0 if `tol` is set.
    """
    if rtol is None:
        rtol = RTOL if tol is None else 0.0
    return {
        **check_numbers(damp=damp, tol=0.0 if tol is None else tol, rtol=rtol, atol=atol),
        "precision": precision_of(working_dtype(operator, data, x0)),
    }


def check_kept(
    name: str,
    count: int,
    engine: Engine,
    numbers: int = 0,
    *,
    layout: AnyLayout | None = None,
    dtype: DTypeLike | None = None,
) -> None:
    """Raise InputError if `count` items need more memory than this rank has. No messages.

    On equal machines all ranks raise.

    Parameters
    ----------
    name, count
        The option that determines the number of items.
    engine : Engine
        The engine in whose memory items are stored.
    numbers : int
        Numbers of 8 bytes in an item.
    layout, dtype : optional
        Layout and dtype of the vector in an item, if any.
    """
    size = 8 * numbers
    if layout is not None:
        size += max(map(layout.local_size, range(layout.ranks))) * np.dtype(dtype).itemsize
    if count * size > (memory := memory_of(engine)):
        with raised_together():
            raise InputError(
                f"{name}={count} needs {in_words(count * size)} on a rank, which has "
                f"{in_words(memory)} of memory: choose a smaller {name}"
            )


def consistent(*pairs: tuple[Array, Array]) -> Sequence[tuple[Array, Array]]:
    """Return pairs of arrays whose inner products are bitwise equal on every rank that shares a decision.

    The inner product of a replicated array needs no message, and each rank computes it: with another number of BLAS
    threads, or on another type of processor, it can round differently, and a stopping test could pass on some ranks
    only. An empty split part, stacked with the array, makes the product part of a message. On JAX each part is summed
    separately, so that this would have no effect.
    """
    comm = pairs[0][0].comm
    if comm.size == 1 or pairs[0][0].engine.traced:
        return pairs
    return [pair if pair[0]._plan.communicator is comm else _with_empty_part(*pair) for pair in pairs]


def has_copies(array: Array) -> bool:
    """Return whether an inner product of an array does not involve all ranks that share a decision."""
    return array.comm.size > 1 and array._plan.communicator is not group_of(array)


def _with_empty_part(x: Any, y: Any) -> tuple[Array, Array]:
    """Return both arrays of a pair, stacked with an empty split part if they are replicated."""
    comm = x.comm
    templates = comm.cache.get(_with_empty_part) or comm.cache.setdefault(_with_empty_part, {})
    key = x.layout, x.leaves[0].dtype, x.engine.name
    if key not in templates:
        if len(templates) == PLANS_KEPT:
            templates.clear()
        templates[key] = None
        if has_copies(x):
            layout = Layout.split((0,), comm.size, mask=mask_of(x))
            stack = StackedArray([x, zeros(layout, comm=comm, dtype=key[1], engine=x.engine)])
            templates[key] = stack._like(stack.arrays[1:])  # without a reference to the memory of the array
    template = templates[key]
    if template is None:
        return x, y
    together = template._like((x, *template.arrays))
    return together, together if y is x else template._like((y, *template.arrays))


def mask_of(*arrays: Array) -> tuple[int, ...] | None:
    """Return the mask of the first leaf that has one, or ``None``."""
    masks = (leaf.layout.mask for array in arrays for leaf in array.leaves)
    return next((mask for mask in masks if mask is not None), None)


def group_of(array: Array) -> Communicator:
    """Return the ranks that solve one problem together: all, or one group of a mask."""
    mask = mask_of(array)
    return array.comm if mask is None else array.comm.subgroup(mask)


def starting_point(
    operator: LinearOperator,
    data: Array,
    x0: Array | None,
    dtype: DTypeLike | None = None,
    image_of: Callable[..., Array] | None = None,
) -> tuple[Array, Array, Array | None]:
    """Return the starting point, the residual there, and memory for images; none shares memory with the arguments.

    Without `x0` it starts at zero, without computing an image. All are of `dtype`, by default the
    :func:`working_dtype`; ``image_of(operator, x, out)`` is the image of `x`, by default ``operator @ x``.
    """
    dtype = working_dtype(operator, data, x0) if dtype is None else dtype
    image = scratch_array(operator.range, data, dtype)
    if x0 is None:
        x = zeros(operator.domain, comm=data.comm, dtype=dtype, engine=data.engine)
        return x, copied(operator.range, data, dtype), image
    x = x0.astype(dtype)
    image = operator._forward(x, image) if image_of is None else image_of(operator, x, image)
    return x, axpby(1.0, data, -1.0, image, out=new_array(operator.range, data, dtype)), image


def explained_by_rounding(
    norm: Scalar, y: Array, x: Array, residual: Scalar, gradient: Scalar, length: Scalar | None = None
) -> tuple[Truth, Truth]:
    """Return whether rounding errors explain the norms of the residual and of the gradient of a solution. Collective.

    `norm` is an estimate of the norm of the operator. If rounding errors explain the residual, `x` solves the equations
    of an operator perturbed by some units of rounding [Higham 2002, section 7.1]. They are not accepted as explanation
    unless the residual is far below the data and the gradient far below the product of `norm` and residual: otherwise
    the operator is singular in this precision. `length` is the norm of the unknowns of the operator, by default the
    norm of `x`.
    """
    rounding = _UNITS * float(np.finfo(real_of(x.dtype)).eps)
    size, data = (square**0.5 for square in dots(*consistent((x, x), (y, y))))
    image = norm * (size if length is None else length)
    compatible = (residual <= rounding * (image + data)) & (residual <= _SMALL * data)
    orthogonal = (gradient <= rounding * norm * (image + residual)) & (gradient <= _SMALL * norm * residual)
    return compatible & (image < math.inf), orthogonal & (image < math.inf)  # infinity explains nothing


def root_of_largest(squares: LocalArray) -> Scalar:
    """Return the root of the largest finite number; 0 if there is none."""
    xp = engine_of(squares).xp
    return xp.max(xp.where(xp.isfinite(squares), squares, 0), initial=0.0) ** 0.5
