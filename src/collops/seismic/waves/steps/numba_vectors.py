"""Vector instructions of the Numba time steps: stencils, and the recursions of rows that cross a layer.

Each function computes ``len(lanes)`` consecutive elements of flat arrays, from the indices that it is passed. Loops
would not be vectorised: the compiler had to compare too many arrays for overlaps, or the rows are short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic


class _Vectors:
    """Instructions on vectors of the elements of arguments; an argument is identified by its place."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> None:
        self.context, self.builder, self.types, self.arguments = context, builder, signature.args, arguments
        self._width = self.types[0].count
        number = context.get_value_type(self.types[1].dtype)
        self._vector = ir.VectorType(number, self._width) if self._width > 1 else number
        self._align = context.get_abi_sizeof(number)

    def index(self, argument: int, place: int | None = None) -> Any:
        """Return an argument, or an element of a tuple, as an integer."""
        value, kind = self.arguments[argument], self.types[argument]
        if place is not None:
            value, kind = self.builder.extract_value(value, place), kind[place]
        return self.context.cast(self.builder, value, kind, types.intp)

    def load(self, array: int, index: Any) -> Any:
        """Load a vector."""
        return self.builder.load(self._pointer(array, index), align=self._align)

    def store(self, value: Any, array: int, index: Any) -> None:
        """Store a vector."""
        self.builder.store(value, self._pointer(array, index), align=self._align)

    def stencil(
        self, array: int, index: Any, strides: Sequence[Any], sides: int, center: int | None = None, odd: bool = False
    ) -> Any:
        """Return a stencil; `sides` and `center` are places of tuples of coefficients, of one axis after the other."""
        builder = self.builder
        total = None if center is None else builder.fmul(self._coefficient(center, 0), self.load(array, index))
        combine, half = builder.fsub if odd else builder.fadd, self.types[sides].count // len(strides)
        for axis, stride in enumerate(strides):
            for k in range(half):
                distance = builder.mul(stride, stride.type(k + 1))
                ends = (self.load(array, move(index, distance)) for move in (builder.add, builder.sub))
                term = builder.fmul(self._coefficient(sides, axis * half + k), combine(*ends))
                total = term if total is None else builder.fadd(total, term)
        return total

    def load_one(self, array: int, index: Any) -> Any:
        """Load one number into all elements of a vector."""
        data = self.context.make_array(self.types[array])(self.context, self.builder, self.arguments[array]).data
        return self._spread(self.builder.load(self.builder.gep(data, [index])))

    def _pointer(self, array: int, index: Any) -> Any:
        data = self.context.make_array(self.types[array])(self.context, self.builder, self.arguments[array]).data
        return self.builder.bitcast(self.builder.gep(data, [index]), self._vector.as_pointer())

    def _coefficient(self, argument: int, place: int) -> Any:
        return self._spread(self.builder.extract_value(self.arguments[argument], place))

    def _spread(self, number: Any) -> Any:
        if self._width == 1:
            return number
        lane = self.builder.insert_element(self._vector(ir.Undefined), number, ir.IntType(32)(0))
        lanes = ir.VectorType(ir.IntType(32), self._width)([0] * self._width)
        return self.builder.shuffle_vector(lane, self._vector(ir.Undefined), lanes)


def _elements(typing, places, array, begin):
    """Return ``len(places)`` elements of a flat array as a tuple, whose length is known at compile time."""
    result = types.UniTuple(array.dtype, places.count)

    def generate(context, builder, signature, arguments):
        data = context.make_array(array)(context, builder, arguments[1]).data
        first = builder.gep(data, [context.cast(builder, arguments[2], begin, types.intp)])
        values = [builder.load(builder.gep(first, [ir.IntType(64)(place)])) for place in range(places.count)]
        return context.make_tuple(builder, result, values)

    return result(places, array, begin), generate


def _stencil(typing, lanes, out, to, source, index, strides, center, sides, odd):
    """Store a stencil of `source` in `out`.

    `strides` are the distances of neighbours along each axis, and `sides` the coefficients of one axis after the other.
    `center` is a tuple of the coefficient of the point, or empty. The stencil is antisymmetric if `odd` is not empty.
    """

    def generate(context, builder, signature, arguments):
        v = _Vectors(context, builder, signature, arguments)
        distances = [v.index(5, axis) for axis in range(strides.count)]
        value = v.stencil(3, v.index(4), distances, 7, 6 if center.count else None, bool(odd.count))
        v.store(value, 1, v.index(2))
        return context.get_dummy_value()

    return types.void(lanes, out, to, source, index, strides, center, sides, odd), generate


# Arguments of the functions of layers, by their places.
_FIRST, _SECOND, _AT, _U, _INDEX, _TOTAL, _TO, _ACROSS, _BESIDE, _CENTER, _SECONDS, _FIRSTS, _A, _B, _PLACE = range(
    1, 16
)


class _LayerVectors(_Vectors):
    """Instructions on the points of a layer: derivatives across it, and its memory variables."""

    def first_derivative(self, array: int) -> Any:
        """Return the first derivative of the field or of a memory variable."""
        index, stride = (_INDEX, _ACROSS) if array == _U else (_AT, _BESIDE)
        return self.stencil(array, self.index(index), [self.index(stride, 0)], _FIRSTS, odd=True)

    def second_derivative(self, array: int) -> Any:
        """Return the second derivative of the field or of a memory variable."""
        index, stride = (_INDEX, _ACROSS) if array == _U else (_AT, _BESIDE)
        return self.stencil(array, self.index(index), [self.index(stride, 0)], _SECONDS, _CENTER)

    def decay(self, own: int, change: Any, negative: bool = False) -> Any:
        """Advance a memory variable, and return it."""
        builder, at, place = self.builder, self.index(_AT), self.index(_PLACE)
        crosses = self.types[-1].count  # then the coefficients vary along the row
        a, b = (self.load(array, place) if crosses else self.load_one(array, place) for array in (_A, _B))
        combine = builder.fsub if negative else builder.fadd
        value = combine(builder.fmul(b, self.load(own, at)), builder.fmul(a, change))
        self.store(value, own, at)
        return value

    def add(self, *values: Any) -> None:
        """Add vectors to the Laplacian, one after the other."""
        total = self.load(_TOTAL, self.index(_TO))
        for value in values:
            total = self.builder.fadd(total, value)
        self.store(total, _TOTAL, self.index(_TO))


def _layer_function(work: Callable[[_LayerVectors], None]) -> Any:
    """Return a function of the fields, memory variables and coefficients of a layer, and of their indices.

    `across` and `beside` are tuples of the distance of neighbours across the layer, in the field and in the memory
    variables. `crosses` is empty for rows along the layer, which have one coefficient.
    """

    def typed(
        typing, lanes, one, two, at, u, index, total, to, across, beside, center, seconds, firsts, a, b, place, crosses
    ):
        def generate(context, builder, signature, arguments):
            work(_LayerVectors(context, builder, signature, arguments))
            return context.get_dummy_value()

        arrays = lanes, one, two, at, u, index, total, to
        return types.void(*arrays, across, beside, center, seconds, firsts, a, b, place, crosses), generate

    return intrinsic(typed)


def _forward_work(v: _LayerVectors) -> None:
    change = v.first_derivative(_FIRST)
    second = v.second_derivative(_U)
    v.add(change, v.decay(_SECOND, v.builder.fadd(second, change)))


def _first_adjoint_work(v: _LayerVectors) -> None:
    v.decay(_FIRST, v.builder.fadd(v.first_derivative(_U), v.first_derivative(_SECOND)), negative=True)


# Numba passes the argument `typing`.
elements: Any = intrinsic(_elements)
stencil: Any = intrinsic(_stencil)
advance_psi: Any = _layer_function(lambda v: v.decay(_FIRST, v.first_derivative(_U)))
advance_zeta: Any = _layer_function(_forward_work)
recede_t: Any = _layer_function(lambda v: v.decay(_SECOND, v.load(_U, v.index(_INDEX))))
recede_r: Any = _layer_function(_first_adjoint_work)
add_adjoint: Any = _layer_function(
    lambda v: v.add(v.builder.fsub(v.second_derivative(_SECOND), v.first_derivative(_FIRST)))
)
