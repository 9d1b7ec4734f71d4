"""Rows of the Numba time steps in vector instructions: stencils, the recursions of layers, and the leap.

Numba's own loops would not be vectorised: the compiler had to compare too many arrays for overlaps. Functions take the
addresses of arrays, since references of arrays would be counted in each call, which takes longer than the work on a
row. Each is compiled once and called, which takes a fraction of the time to compile it into its callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

_INT = ir.IntType(64)
_Stores = list[tuple[Any, Any]]  # values, and the pointers to their places
_DISTANCES = {
    "u": "field rows",
    "before": "field rows",
    "first": "memory rows",
    "second": "memory rows",
    "total": "total rows",
    "c": "total rows",
    "sum": "sum rows",
    "x": "x rows",
    "y": "y rows",
    "a": "profile rows",
    "b": "profile rows",
}
"""How far the rows of each array are apart, by the name of an argument."""


class _Vector:
    """Instructions on consecutive elements of the arrays of a row.

    Parameters
    ----------
    builder : IRBuilder
        Where the instructions are added.
    row : dict
        Pointers to the first element of the row in each array, and integers; ``row["half"]`` is a number of Python: the
        coefficients on each side of a stencil.
    width : int
        Elements.
    k : value
        Index of the first element in the row.
    """

    def __init__(self, builder: Any, row: dict[str, Any], width: int, k: Any) -> None:
        self.builder, self.row, self._width, self.k = builder, row, width, k
        number = next(value.type.pointee for value in row.values() if _is_pointer(value))
        self._vector = ir.VectorType(number, width) if width > 1 else number
        self._align = 4 if isinstance(number, ir.FloatType) else 8

    def at(self, array: str, shift: Any = None) -> Any:
        """Return a pointer to the vector of an array, some elements away."""
        place = self.k if shift is None else self.builder.add(self.k, shift)
        return self._cast(self.builder.gep(self.row[array], [place]))

    def load(self, array: str, shift: Any = None) -> Any:
        """Load the vector of an array, some elements away."""
        return self.builder.load(self.at(array, shift), align=self._align)

    def store(self, value: Any, pointer: Any) -> None:
        """Store a vector."""
        self.builder.store(value, pointer, align=self._align)

    def prefetch(self, array: str) -> None:
        """Begin to load the vector of an array into the L2 cache."""
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = self.builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        pointer = self.builder.bitcast(self.at(array), byte)
        self.builder.call(function, [pointer, number(0), number(2), number(1)])

    def sides(self, array: str, stride: Any, first: int, total: Any = None, odd: bool = False) -> Any:
        """Return a sum over the neighbours along an axis, whose coefficients begin at `first`, added to `total`."""
        builder = self.builder
        combine = builder.fsub if odd else builder.fadd
        for k in range(1, self.row["half"] + 1):
            distance = builder.mul(stride, _INT(k))
            ends = self.load(array, distance), self.load(array, builder.neg(distance))
            term = builder.fmul(self.coefficient(first + k - 1), combine(*ends))
            total = term if total is None else builder.fadd(total, term)
        return total

    def first_derivative(self, array: str) -> Any:
        """Return the first derivative across a layer, of the field or of a memory variable."""
        return self.sides(array, self._across(array), 1 + self.row["half"], odd=True)

    def second_derivative(self, array: str) -> Any:
        """Return the second derivative likewise."""
        total = self.builder.fmul(self.coefficient(0), self.load(array))
        return self.sides(array, self._across(array), 1, total)

    def decayed(self, own: str, change: Any, negative: bool = False) -> Any:
        """Return the next value of a memory variable."""
        builder, place = self.builder, self.builder.mul(self.k, self.row["along"])
        pointers = (self._cast(builder.gep(self.row[name], [place])) for name in ("a", "b"))
        a, b = (builder.load(pointer, align=self._align) for pointer in pointers)
        combine = builder.fsub if negative else builder.fadd
        return combine(builder.fmul(b, self.load(own)), builder.fmul(a, change))

    def coefficient(self, place: int) -> Any:
        """Return a coefficient in all elements of a vector."""
        number = self.builder.load(self.builder.gep(self.row["coefficients"], [_INT(place)]))
        if self._width == 1:
            return number
        lane = self.builder.insert_element(self._vector(ir.Undefined), number, ir.IntType(32)(0))
        lanes = ir.VectorType(ir.IntType(32), self._width)([0] * self._width)
        return self.builder.shuffle_vector(lane, self._vector(ir.Undefined), lanes)

    def _cast(self, pointer: Any) -> Any:
        return self.builder.bitcast(pointer, self._vector.as_pointer())

    def _across(self, array: str) -> Any:
        return self.row["across" if array == "u" else "beside"]


def _is_pointer(value: Any) -> bool:
    return isinstance(getattr(value, "type", None), ir.PointerType)


_Work = Callable[[_Vector], _Stores]


def _add_loop(builder: Any, step: int, end: Any, work: Callable[[Any], None]) -> None:
    """Add a loop over 0, `step`, ... below `end`."""
    before, body, after = builder.block, *(builder.append_basic_block(name) for name in ("body", "after"))
    builder.cbranch(builder.icmp_signed(">", end, _INT(0)), body, after)
    builder.position_at_end(body)
    k = builder.phi(_INT)
    k.add_incoming(_INT(0), before)
    work(k)
    following = builder.add(k, _INT(step))
    k.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, end), body, after)
    builder.position_at_end(after)


def _add_row(builder: Any, row: dict[str, Any], width: int, work: _Work) -> None:
    """Add the work on a row.

    The last vector may overlap the one before. It is computed before any other is stored, and stored last: elements in
    both have the same values.
    """

    def compute(width: int, k: Any) -> None:
        v = _Vector(builder, row, width, k)
        for value, pointer in work(v):
            v.store(value, pointer)

    with builder.if_else(builder.icmp_signed("<", row["n"], _INT(width))) as (short, long):
        with short:
            _add_loop(builder, 1, row["n"], lambda k: compute(1, k))
        with long:
            end = builder.sub(row["n"], _INT(width))
            last = _Vector(builder, row, width, end)
            stores = work(last)
            _add_loop(builder, width, end, lambda k: compute(width, k))
            for value, pointer in stores:
                last.store(value, pointer)


def _call(name: str, work: _Work, context: Any, builder: Any, rows: dict[str, Any], sizes: tuple[int, int]) -> Any:
    """Call the function that does the work on ``rows["lines"]`` rows; it is added to the module once.

    `sizes` are the coefficients on each side of a stencil, and the elements of a vector.
    """
    half, width = sizes
    key = f"collops_{name}_{half}_{width}"
    function = builder.module.globals.get(key)
    if function is None:
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in rows.values()])
        function = ir.Function(builder.module, kind, key)
        function.linkage = "internal"
        function.attributes.add("noinline")
        for argument in function.args:
            if _is_pointer(argument):
                argument.add_attribute("noalias")
        inner = ir.IRBuilder(function.append_basic_block("entry"))
        own = dict(zip(rows, function.args, strict=True)) | {"half": half}

        def shifted(line: Any) -> dict[str, Any]:
            arrays = _DISTANCES.keys() & own.keys()
            places = {array: inner.mul(line, own[_DISTANCES[array]]) for array in sorted(arrays)}
            return own | {array: inner.gep(own[array], [place]) for array, place in places.items()}

        _add_loop(inner, 1, own["lines"], lambda line: _add_row(inner, shifted(line), width, work))
        inner.ret_void()
    builder.call(function, list(rows.values()))
    return context.get_dummy_value()


class _Arguments:
    """The arguments of an intrinsic; the first one is a tuple as long as a vector, of numbers of the type of arrays."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> None:
        self._context, self._builder, self._kinds, self._arguments = context, builder, signature.args, arguments

    def integer(self, place: int) -> Any:
        """Return an argument."""
        return self._context.cast(self._builder, self._arguments[place], self._kinds[place], types.intp)

    def integers(self, place: int, *names: str) -> dict[str, Any]:
        """Return the elements of a tuple, with names."""
        values = [self._builder.extract_value(self._arguments[place], number) for number in range(len(names))]
        kinds = zip(values, self._kinds[place], strict=True)
        integers = (self._context.cast(self._builder, value, kind, types.intp) for value, kind in kinds)
        return dict(zip(names, integers, strict=True))

    def pointers(self, place: int, *names: str) -> dict[str, Any]:
        """Return pointers, with names: their arrays' addresses are a tuple, and their indices the next argument."""
        number = self._context.get_value_type(self._kinds[0].dtype).as_pointer()
        addresses, indices = self.integers(place, *names), self.integers(place + 1, *names)
        arrays = {name: self._builder.inttoptr(value, number) for name, value in addresses.items()}
        return {name: self._builder.gep(array, [indices[name]]) for name, array in arrays.items()}


def _layer_function(name: str, work: _Work) -> Any:
    """Return a function of rows in a layer.

    `size` is the number of rows and their length. `arrays` are the addresses of both memory variables, the field, the
    sum, the coefficients of the axis and the profile, and `places` the indices of their first elements. `distances` are
    those of neighbours across the layer in the field and in the memory variables, and of rows in the field, the memory
    variables, the sum and the profile. The profile varies along a row if `along` is 1, and is one vector if it is 0.
    """

    def typed(typing, lanes, half, size, arrays, places, distances, along):
        def generate(context, builder, signature, arguments):
            v = _Arguments(context, builder, signature, arguments)
            rows = v.integers(2, "lines", "n")
            rows |= v.pointers(3, "first", "second", "u", "total", "coefficients", "a", "b")
            rows |= v.integers(5, "across", "beside", "field rows", "memory rows", "total rows", "profile rows")
            rows["along"] = v.integer(6)
            return _call(name, work, context, builder, rows, (half.count, lanes.count))

        return types.void(lanes, half, size, arrays, places, distances, along), generate

    return intrinsic(typed)


def _zeta(v: _Vector) -> _Stores:
    change = v.first_derivative("first")
    second = v.decayed("second", v.builder.fadd(v.second_derivative("u"), change))
    total = v.builder.fadd(v.builder.fadd(v.load("total"), change), second)
    return [(second, v.at("second")), (total, v.at("total"))]


def _r(v: _Vector) -> _Stores:
    change = v.builder.fadd(v.first_derivative("u"), v.first_derivative("second"))
    return [(v.decayed("first", change, negative=True), v.at("first"))]


def _adjoint(v: _Vector) -> _Stores:
    change = v.builder.fsub(v.second_derivative("second"), v.first_derivative("first"))
    return [(v.builder.fadd(v.load("total"), change), v.at("total"))]


def _laplacian_rows(typing, lanes, half, unit, size, arrays, places, steps, apart):
    """Fill rows of the sum with the Laplacian, while rows that the leap needs are loaded into the cache.

    `arrays` are the addresses of the sum, the field, the field before it, the coefficients of the medium and those of
    the Laplacian, and `places` the indices of their first elements. The last of the steps to neighbours is 1 if `unit`
    is not empty. `apart` are the distances of rows of the field and of the sum.
    """

    def generate(context, builder, signature, arguments):
        v = _Arguments(context, builder, signature, arguments)
        names = [f"step {axis}" for axis in range(steps.count)]
        rows = v.integers(3, "lines", "n") | v.pointers(4, "total", "u", "before", "c", "coefficients")
        rows |= v.integers(6, *names) | v.integers(7, "field rows", "total rows")

        def work(v: _Vector) -> _Stores:
            v.prefetch("before")
            v.prefetch("c")
            total = v.builder.fmul(v.coefficient(0), v.load("u"))
            for axis, name in enumerate(names):
                contiguous = unit.count and axis == steps.count - 1
                total = v.sides("u", _INT(1) if contiguous else v.row[name], 1 + axis * half.count, total)
            return [(total, v.at("total"))]

        return _call("laplacian", work, context, builder, rows, (half.count, lanes.count))

    return types.void(lanes, half, unit, size, arrays, places, steps, apart), generate


def _leap(v: _Vector) -> _Stores:
    now, product = v.load("u"), v.builder.fmul(v.load("c"), v.load("total"))
    moved = v.builder.fsub(v.builder.fadd(now, now), v.load("before"))
    return [(v.builder.fadd(moved, product), v.at("before"))]


def _leap_rows(typing, lanes, size, arrays, places, apart):
    """Replace rows of the field before by the field after.

    `arrays` are the addresses of the field before, the field, the coefficients of the medium and the sum.
    """

    def generate(context, builder, signature, arguments):
        v = _Arguments(context, builder, signature, arguments)
        rows = v.integers(1, "lines", "n") | v.pointers(2, "before", "u", "c", "total")
        rows |= v.integers(4, "field rows", "total rows")
        return _call("leap", _leap, context, builder, rows, (0, lanes.count))

    return types.void(lanes, size, arrays, places, apart), generate


def _product_rows(typing, lanes, size, arrays, places, apart):
    """Add the products of rows of the second and the third array to rows of the first."""

    def work(v: _Vector) -> _Stores:
        return [(v.builder.fadd(v.load("sum"), v.builder.fmul(v.load("x"), v.load("y"))), v.at("sum"))]

    def generate(context, builder, signature, arguments):
        v = _Arguments(context, builder, signature, arguments)
        rows = v.integers(1, "lines", "n") | v.pointers(2, "sum", "x", "y")
        rows |= v.integers(4, "sum rows", "x rows", "y rows")
        return _call("product", work, context, builder, rows, (0, lanes.count))

    return types.void(lanes, size, arrays, places, apart), generate


def _mirror_rows(typing, lanes, size, arrays, places, apart):
    """Fill the elements before rows with the elements after their first, in the opposite order and negative."""

    def work(v: _Vector) -> _Stores:
        before = v.builder.sub(_INT(-1), v.builder.mul(v.k, _INT(2)))
        return [(v.builder.fneg(v.load("u", _INT(1))), v.at("u", before))]

    def generate(context, builder, signature, arguments):
        v = _Arguments(context, builder, signature, arguments)
        rows = v.integers(1, "lines", "n") | v.pointers(2, "u") | v.integers(4, "field rows")
        return _call("mirror", work, context, builder, rows, (0, 1))

    return types.void(lanes, size, arrays, places, apart), generate


def _address(typing, array):
    """Return the address of the first element of an array."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(array)(context, builder, arguments[0]).data
        return builder.ptrtoint(data, _INT)

    return types.intp(array), generate


def _entry(typing, table, place):
    """Return an element of a flat array of integers, by the address of the array."""

    def generate(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _INT.as_pointer())
        return builder.load(builder.gep(pointer, [context.cast(builder, arguments[1], place, types.intp)]))

    return types.int64(table, place), generate


# Numba passes the argument `typing`.
address: Any = intrinsic(_address)
entry: Any = intrinsic(_entry)
laplacian_rows: Any = intrinsic(_laplacian_rows)
leap_rows: Any = intrinsic(_leap_rows)
product_rows: Any = intrinsic(_product_rows)
mirror_rows: Any = intrinsic(_mirror_rows)
advance_psi: Any = _layer_function("psi", lambda v: [(v.decayed("first", v.first_derivative("u")), v.at("first"))])
advance_zeta: Any = _layer_function("zeta", _zeta)
recede_t: Any = _layer_function("t", lambda v: [(v.decayed("second", v.load("u")), v.at("second"))])
recede_r: Any = _layer_function("r", _r)
add_adjoint: Any = _layer_function("adjoint", _adjoint)
