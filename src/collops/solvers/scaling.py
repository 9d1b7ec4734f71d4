"""Divide data and operators far from 1 by powers of two, so that squares neither underflow nor overflow.

Krylov methods are homogeneous: dividing the data by a number divides the solution by it, and dividing the operator by a
number multiplies the solution by it. Scaling by a power of two is exact, so that the iterates are bitwise unchanged
unless numbers would have underflowed or overflowed. Data and operators of ordinary size are not scaled.

The numbers of the first iterations show whether data or operator need a unit (:func:`is_ordinary_norm`,
:meth:`Method.magnitudes`); the driver then measures them and restarts. If the first residual norm is not the norm of
the data, their unit is determined before the first iteration.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from collops.array import Array, axpby, random
from collops.array.dtypes import real_of
from collops.array.kernels import kernels_for
from collops.backend import LocalArray, is_traced
from collops.comm.agreement import raised_together
from collops.errors import InputError
from collops.operators import Columns, LinearOperator
from collops.operators.base import Product
from collops.solvers.blocks import combine
from collops.solvers.method import Method
from collops.solvers.problem import group_of, real_dtype, starting_point, working_dtype
from collops.solvers.state import Numbers, Scalar, Truth

_NONE, _INFINITE = -(1 << 20), 1 << 20
_DOUBLES = range(-1073, 1025)  # exponents of doubles, in which norms and units are

Degree = tuple[float, float]
"""The powers of the units of data and operator in a quantity."""


class Units(NamedTuple):
    """Even powers of two by which data and operator are divided: floats or arrays of JAX."""

    data: Scalar = 1.0
    operator: Scalar = 1.0
    columns: tuple[float, ...] | LocalArray | None = (
        None  # units of the columns of a block, if they differ; `data` is the largest
    )

    @property
    def trivial(self) -> bool:
        """Whether all units are 1."""
        return _is_one(self.data) and _is_one(self.operator) and self.columns is None

    @property
    def relative_columns(self) -> tuple[float, ...] | LocalArray:
        """The units of columns relative to the largest, as a tuple or an array of JAX."""
        if isinstance(self.columns, tuple):
            return tuple(unit / self.data for unit in self.columns)
        return self.columns / self.data

    def inward(self, value: Any, degree: Degree) -> Any:
        """Return an option, such as a tolerance or a preconditioner, in these units."""
        return _times(_times(value, 1 / self.data, degree[0]), 1 / self.operator, degree[1])

    def outward(self, value: Scalar, degree: Degree) -> Scalar:
        """Convert a number from these units to the units of the caller."""
        return _times(_times(value, self.data, degree[0]), self.operator, degree[1])

    def array(self, array: Array | None, degree: Degree) -> Any:
        """Convert an array from these units to the units of the problem; return it unchanged if they are 1."""
        if array is None:
            return None
        # One after another, since their product may be out of range.
        for index, (unit, power) in enumerate(zip((self.data, self.operator), degree, strict=True)):
            if power and index == 0 and self.columns is not None:
                xp, real = array.engine.xp, array.engine.dtype(real_dtype(array.dtype))
                array = combine(array, xp.diag(xp.asarray(self.columns, dtype=real) ** power))
            elif power and not _is_one(unit):
                array = _product(unit**power, array)
        return array

    def divided(self, array: Array | None, degree: Degree) -> Any:
        """Return an array of the problem in these units."""
        return self.array(array, (-degree[0], -degree[1]))


_NO_UNITS = Units()


@dataclass(eq=False)
class Problem:
    """A method, its operator, data and starting point, in the units of the caller or in other units."""

    method: Method
    A: Any  # a LinearOperator, or None
    y: Array
    x0: Array | None
    units: Units = _NO_UNITS

    def within(self, units: Units) -> Problem:
        """Convert a problem in units of 1 to other units."""
        if units.trivial:
            return self
        method, model = self.method, self.method.degree("x")
        changes = {} if units.columns is None else {"columns": units.relative_columns}
        for name, degree in (method.degrees or {}).items():
            value = getattr(method, name, None) if name in method.__dataclass_fields__ else None
            if value is not None and not (isinstance(value, float) and value == 0):
                changes[name] = units.inward(value, degree)
        A = self.A if self.A is None else _times(self.A, 1 / units.operator, 1)
        y, x0 = units.divided(self.y, (1, 0)), units.divided(self.x0, model)
        return Problem(replace(method, **changes), A, y, x0, units)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the computation."""
        return working_dtype(self.A, self.y, self.x0)

    @property
    def columns(self) -> int:
        """Number of columns of a block; 1 for other data."""
        return self.A.count if isinstance(self.A, Columns) else 1

    def exponents(self) -> list[int]:
        """Return the binary exponents of this rank's largest elements of data and starting point, by columns."""
        return [exponent for array in (self.y, self.x0) for exponent in exponents_of(array, self.columns)]

    def residual_norm(self, numbers: Numbers) -> Scalar:
        """Return the norm of the residual in the units of the caller, from numbers of the method."""
        norm = self.method.residual_norm(numbers)
        return norm if self.units.trivial else self.units.outward(norm, self.method.degree("residual"))

    def solution(self, x: Array) -> Array:
        """Convert a solution from the units of this problem to the units of the caller."""
        return x if self.units.trivial else self.units.array(x, self.method.degree("x"))

    def checked_solution(self, x: Array) -> Array:
        """Convert a solution, and raise InputError if its precision cannot represent it. Collective."""
        if self.units.trivial:
            return x
        (exponent,) = group_of(x).agree("the size of a solution", self.method.name, [exponent_of(x)])
        units = zip((self.units.data, self.units.operator), self.method.degree("x"), strict=True)
        size = exponent + sum(power * math.log2(unit) for unit, power in units)
        vectors = np.finfo(real_of(x.dtype))
        if abs(exponent) < _INFINITE and not vectors.minexp - vectors.nmant <= size <= vectors.maxexp:
            with raised_together():
                raise InputError(
                    f"{self.method.name}: the solution is about 2^{size:.0f}, which {x.dtype} cannot hold: multiply "
                    "the operator or the data by a number, or use a higher precision"
                )
        return self.solution(x)

    def details(self, details: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the details of a result to the units of the caller."""
        if self.units.trivial:
            return dict(details)
        return {name: self.units.outward(value, self.method.degree(name)) for name, value in details.items()}


def exponent_of(array: Array | None) -> int:
    """Return the binary exponent of this rank's largest element.

    It is far out of range for zeros and for non-finite numbers. Synchronises with the device.
    """
    return exponents_of(array, 1)[0]


def exponents_of(array: Array | None, columns: int) -> list[int]:
    """Return the exponents of each column of a block, or of an array if `columns` is 1; see :func:`exponent_of`."""
    if array is None or array.dtype.kind not in "fc":
        return [_NONE] * columns
    part = kernels_for(array.engine).norm_part
    locals_ = [leaf.local_array for leaf in array.leaves]
    if columns == 1:
        return [_exponent([part(local, np.inf) for local in locals_])]
    return [_exponent([part(local[number], np.inf) for local in locals_]) for number in range(columns)]


def _exponent(sizes: Sequence[Scalar]) -> int:
    # Numbers of long double may exceed the range of a float.
    numbers = [size if isinstance(size, np.floating) else np.float64(size) for size in sizes]
    # A NaN must not be lost in a maximum.
    if not all(map(np.isfinite, numbers)):
        return _INFINITE
    size = max(numbers, default=np.float64(0))
    return int(np.frexp(size)[1]) if size else _NONE


def divided(array: Array, unit: float) -> Array:
    """Return an array divided by a power of two; the array itself if the power is 1."""
    return Units(unit).divided(array, (1, 0))


def data_units(data: Array, exponents: Sequence[int], *, exact: bool = False) -> Units:
    """Return the unit of the data; with `exact`, ordinary data also get a unit near their size.

    `exponents` belong to the columns of the data, and then of the starting point, over all ranks.
    """
    count = max(1, len(exponents) // 2)
    largest_of = [next((e for e in exponents[column::count] if e != _NONE), _NONE) for column in range(count)]
    limit, largest = _exponents(data.dtype) if data.dtype.kind in "fc" else (_INFINITE, 0)
    sizes = [number for number in largest_of if number != _NONE]
    if sizes and _INFINITE not in sizes and max(sizes) not in _DOUBLES:
        raise InputError(f"the data are about 2**{max(sizes)}, outside the range of norms: multiply them by a number")
    if not sizes or _INFINITE in sizes or not (exact or any(abs(number) > limit for number in sizes)):
        return _NO_UNITS
    even = [2 * (max(-largest, min(largest, number if number != _NONE else max(sizes))) // 2) for number in largest_of]
    columns = None if min(even) == max(even) else tuple(2.0**number for number in even)
    return Units(2.0 ** max(even), 1.0, columns)


def measured_units(problem: Problem, exponents: Sequence[int]) -> Units | None:
    """Return units in which data and operator are near 1. Collective: two products, each with one small message.

    It returns ``None`` if the image of the data is zero, or not finite. The largest elements of images are used, since
    squares could underflow or overflow.
    """
    method, A, comm = problem.method, problem.A, group_of(problem.y)
    units = data_units(problem.y, exponents, exact=True)
    maps = _maps(method, A)
    start, order = units.divided(problem.y, (1, 0)), range(2)
    if max(exponents[: problem.columns]) == _NONE and problem.x0 is not None:
        start, order = units.divided(problem.x0, (1, 0)), reversed(range(2))
    vector, sizes = start.astype(problem.dtype), []
    largest = _exponents(vector.dtype)[1]
    for number in order:
        vector = maps[number](vector)
        (exponent,) = comm.agree("the size of an image", method.name, [exponent_of(vector)])
        if exponent in (_NONE, _INFINITE):
            break
        sizes.append(max(-largest, min(largest, exponent)))
        vector = axpby(2.0 ** -sizes[-1], vector, 0.0, vector)
    return units._replace(operator=2.0 ** (2 * (max(sizes) // 2))) if sizes else None


def operator_unit(A: LinearOperator, like: Array, dtype: np.dtype) -> float:
    """Return an even power of two near the size of an operator; 1 if its size is ordinary. Collective: one product."""
    image = A._forward(random(A.domain, comm=A.comm, dtype=dtype, engine=like.engine.name), None)
    (exponent,) = group_of(image).agree("the size of an operator", str(dtype), [exponent_of(image)])
    if abs(exponent) >= _INFINITE or abs(exponent) <= _largest_magnitude(dtype) // 2:
        return 1.0
    return data_units(image, [exponent], exact=True).data


def out_of_range(magnitudes: Sequence[float], dtype: np.dtype) -> bool:
    """Return whether squares may underflow or overflow in a run whose first squares have these binary logarithms.

    NaN is the logarithm of 0 and of non-finite numbers.
    """
    if not magnitudes:
        return False
    limit = 2 * _largest_magnitude(dtype)
    return not all(abs(magnitude) <= limit for magnitude in magnitudes)


def starts_from_norm(problem: Problem) -> bool:
    """Return whether the first residual norm of a run is the norm of all of its data; see :func:`is_ordinary_norm`."""
    method = problem.method
    if problem.A is None or problem.x0 is not None or problem.columns > 1 or getattr(method, "M", None) is not None:
        return False
    return method.degrees is not None and method.degree("x") == (1, -1) and problem.y.dtype.kind in "fc"


def is_ordinary_norm(problem: Problem, norm: float) -> bool:
    """Return whether data with this norm certainly need no unit; see :func:`data_units`."""
    limit = _exponents(problem.y.dtype)[0]
    return math.sqrt(problem.y.size) * 2.0**-limit <= norm <= 2.0**limit


def refuse_false_zero(problem: Problem, magnitudes: Sequence[float]) -> None:
    """Raise InputError if a gradient at the starting point seems zero because its square underflows. Collective.

    `magnitudes` come from a method whose test of the gradient has passed before the first iteration.
    """
    method, A, M = problem.method, problem.A, getattr(problem.method, "M", None)
    if method.square or not any(map(math.isnan, magnitudes)):
        return
    gradient = A._adjoint(starting_point(A, problem.y, problem.x0)[1], None)
    if M is not None:
        gradient = M._adjoint(gradient, None)
    if group_of(problem.y).agree("the size of a gradient", method.name, [exponent_of(gradient)])[0] != _NONE:
        with raised_together():
            raise InputError(
                f"{method.name}: the square of the gradient underflows in {problem.dtype} although it is not zero: "
                "multiply the operator, the data or M by a number, or use a higher precision"
            )


def traced_problem(problem: Problem, *, measured: bool) -> Problem:
    """Return a problem of traced arrays of JAX in other units, which are constants for derivatives.

    Collective: without `measured` only the data have a unit. With it, a product determines the operator's unit, and
    another product if that is not ordinary.
    """
    import jax.numpy as jnp
    from jax import lax

    data, x0 = problem.y, problem.x0
    if problem.method.degrees is None or data.dtype.kind not in "fc" or data.size == 0:
        return problem
    limit, largest = _exponents(data.dtype)
    sizes = _traced_sizes(data, problem.columns)
    if x0 is not None and x0.size:
        sizes = jnp.where(sizes == 0, _traced_sizes(x0, problem.columns).astype(sizes.dtype), sizes)
    exponents, one = jnp.frexp(sizes)[1], jnp.ones((), sizes.dtype)
    exponents = jnp.where(sizes == 0, jnp.max(jnp.where(sizes == 0, -largest, exponents)), exponents)
    special = (jnp.any(sizes > 0) & jnp.all(jnp.isfinite(sizes))) & jnp.any((jnp.abs(exponents) > limit) & (sizes > 0))

    def even(exponents: LocalArray, special: Truth) -> LocalArray:
        return jnp.where(special, 2 * (jnp.clip(exponents, -largest, largest) // 2), 0)

    exponents = even(exponents, special)
    columns = None if problem.columns == 1 else jnp.ldexp(one, exponents)
    units = Units(jnp.ldexp(one, exponents.max()), 1.0, columns)
    if not measured or problem.A is None:
        return problem.within(units)
    # From a vector with a largest element near 1, so that images under ordinary operators are neither 0 nor infinite.
    start = lax.stop_gradient(data.astype(problem.dtype))
    near_one = jnp.where(jnp.isfinite(sizes.max()) & (sizes.max() > 0), jnp.frexp(sizes.max())[1], 0)
    vector = axpby(jnp.ldexp(one, -near_one), start, 0.0, start)
    maps = _maps(problem.method, problem.A)
    first = lax.stop_gradient(maps[0](vector))
    size = first.norm(np.inf).astype(sizes.dtype)
    exponent = jnp.frexp(size)[1]
    usable = jnp.isfinite(size) & (size > 0)

    def from_both() -> LocalArray:
        second = lax.stop_gradient(maps[1](axpby(jnp.ldexp(one, -exponent), first, 0.0, first)))
        again = second.norm(np.inf).astype(sizes.dtype)
        return jnp.where((again > 0) & jnp.isfinite(again), jnp.maximum(exponent, jnp.frexp(again)[1]), exponent)

    far = usable & (jnp.abs(exponent) > _largest_magnitude(data.dtype) // 2)
    exponent = lax.cond(far, from_both, lambda: exponent)
    return problem.within(units._replace(operator=jnp.ldexp(one, even(exponent, far))))


def _traced_sizes(array: Array, columns: int) -> LocalArray:
    """Return the largest absolute value of an array of JAX, or of each of its columns, as a 1-d array."""
    import jax.numpy as jnp
    from jax import lax

    parts = Columns.split(array) if columns > 1 else [array]
    return jnp.stack([lax.stop_gradient(part).norm(np.inf) for part in parts])


def _maps(method: Method, A: LinearOperator) -> list[Callable[[Array], Array]]:
    """Return two functions whose images measure the size of an operator; the first is applied to the data."""
    if method.square:
        return [lambda x: method.image(A, x, None)] * 2
    return [lambda y: A._adjoint(y, None), lambda x: A._forward(x, None)]


def _times(value: Any, unit: Scalar, degree: float) -> Any:
    """Return ``value * unit**degree``: a number, an array or an operator."""
    if value is None or _is_one(unit):
        return value
    unit, degree = (unit, degree) if degree >= 0 else (1 / unit, -degree)
    if isinstance(value, Columns):
        return Columns(_times(value.operator, unit, degree), value.count)
    if isinstance(value, Product) and degree == 2:  # such as M M^H, whose elements may be out of range
        first, *others, last = value.factors
        return Product([_times(first, unit, 1), *others, _times(last, unit, 1)])
    for _ in range(int(degree)):
        if isinstance(value, LinearOperator) and not isinstance(unit, float):
            value = _Scaled(value, unit)
        else:
            value = unit * value if isinstance(value, LinearOperator) else _shielded(unit, value * unit)
    return value if degree == int(degree) else _shielded(unit, value * unit**0.5)


class _Scaled(LinearOperator):
    """An operator times a power of two that JAX is tracing.

    It multiplies operands, so that the transposed operator multiplies results: cotangents already have the inverse unit
    of the operator.
    """

    def __init__(self, operator: LinearOperator, factor: Scalar) -> None:
        super().__init__(operator.domain, operator.range, operator.dtype, operator.comm)
        self._inherit([operator])
        self._operator, self._factor = operator, factor

    def _forward(self, x: Array, out: Array | None) -> Array:
        return self._operator._forward(_product(self._factor, x), None)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        return self._operator._adjoint(_product(self._factor, y), None)


def _product(factor: Scalar, array: Array) -> Array:
    """Return a number times an array."""
    product = axpby(factor, array, 0.0, array)
    if not array.engine.traced:
        return product
    import jax

    return jax.tree.map(_shielded, array, product)


def _shielded(value: LocalArray, times: LocalArray) -> LocalArray:
    """Return the product `times` of a factor and `value`, or of both as numbers.

    The compiler of JAX would combine the factors of squares and inner products, and the squares of the factors are out
    of range. A selection prevents this; the compiler removes optimisation barriers too early.
    """
    if not is_traced(times):
        return times
    import jax.numpy as jnp

    return jnp.where(value == value, times, value)  # preserves NaN, which the compiler cannot exclude


def _is_one(unit: Scalar) -> bool:
    return isinstance(unit, float) and unit == 1.0


def _exponents(dtype: np.dtype) -> tuple[int, int]:
    """Return the largest exponents of ordinary data, and of a unit whose inverse is also a normal number.

    Residuals decrease by the rounding unit, and their squares must stay normal. Units and norms are in double
    precision, whose range is smaller than the range of long double.
    """
    vectors, squares = np.finfo(real_of(dtype)), np.finfo(real_dtype(dtype))
    limit = min(squares.maxexp // 2 - squares.nmant - 4, vectors.maxexp - vectors.nmant - 2)
    largest = min(vectors.maxexp, sys.float_info.max_exp)
    largest -= largest // 8
    return min(limit, largest), largest


def _largest_magnitude(dtype: np.dtype) -> int:
    """Return the largest exponent of the norm of an ordinary image: a norm exceeds the largest element."""
    vectors, squares = np.finfo(real_of(dtype)), np.finfo(real_dtype(dtype))
    return min(squares.maxexp // 2 - squares.nmant - 4, vectors.maxexp - 4)
