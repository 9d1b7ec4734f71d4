"""The variable: a JAX array that can be written to, because it is replaced by another one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from types import EllipsisType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from collops.errors import UnsupportedTypeError

__all__ = ["Variable", "as_result", "canonical", "value_of"]


class _Flags(NamedTuple):
    """What NumPy's arrays say of their memory: those of JAX are all in C order."""

    c_contiguous: bool = True
    f_contiguous: bool = False
    owndata: bool = False


_FLAGS = _Flags()


class Variable:
    """A place that holds a JAX array, or a view of a part of such a place.

    It has the methods of a NumPy array. Slices, reshaped and transposed forms are views: what is written into them is
    written into the variable that they were taken from. Functions of ``jax.numpy`` take a variable as the array that it
    holds now; results of arithmetic are new variables, scalars plain JAX arrays. In :mod:`jax` it is a pytree.

    Parameters
    ----------
    value : jax.Array
        What it holds at first; under a transformation, a tracer.

    Attributes
    ----------
    value : jax.Array
        What it holds now.
    """

    __slots__ = ("__weakref__", "_get", "_parent", "_put", "_value", "shape")

    __hash__ = None  # pyright: ignore[reportAssignmentType]
    __array_priority__ = 900.0

    shape: tuple[int, ...]

    def __init__(self, value: Any) -> None:
        self._parent: Variable | None = None
        self._value = value
        self.shape = getattr(value, "shape", ())  # pytrees are also made of what is no array

    @classmethod
    def _view(cls, parent: Variable, get: Callable[[Any], Any], put: Callable[[Any, Any], Any], shape: Any) -> Variable:
        view = object.__new__(cls)
        view._parent, view._get, view._put = parent, get, put
        view.shape = tuple(shape)
        return view

    @property
    def value(self) -> Any:
        """The JAX array that the variable holds now."""
        return self._value if self._parent is None else self._get(self._parent.value)

    @value.setter
    def value(self, new: Any) -> None:
        if self._parent is None:
            self._value = new
        else:
            self._parent.value = self._put(self._parent.value, new)

    @property
    def root(self) -> Variable:
        """The variable that this is a view of; itself if it is none."""
        return self if self._parent is None else self._parent.root

    # What NumPy's arrays say of themselves

    @property
    def dtype(self) -> np.dtype:
        """Element type."""
        return self.value.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.size * self.dtype.itemsize

    @property
    def flags(self) -> _Flags:
        """Of the memory: always contiguous in C order."""
        return _FLAGS

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a variable without axes has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def __repr__(self) -> str:
        return f"Variable({self.value!r})"

    # What makes it an array for NumPy, JAX and Python

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.value, dtype)

    def __jax_array__(self) -> Any:
        return self.value

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **arguments: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        return getattr(_namespace(), ufunc.__name__)(*inputs, **_with_one_out(arguments))

    def __array_function__(self, function: Any, types: Any, inputs: Any, arguments: dict[str, Any]) -> Any:
        return getattr(_namespace(), function.__name__)(*inputs, **arguments)

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __complex__(self) -> complex:
        return complex(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __getattr__(self, name: str) -> Any:
        # All other methods of JAX's arrays, which make new ones.
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.value, name)
        return _applied(found) if callable(found) and name != "at" else found

    # Views

    def __getitem__(self, index: Any) -> Any:
        if not _is_basic(index):
            return as_result(self.value[_plain(index)])
        shape = np.broadcast_to(_NOTHING, self.shape)[index].shape
        if not shape:
            return self.value[index]
        starts = _block(index, self.shape)
        if starts is None:
            return self._view(self, lambda v: v[index], lambda v, new: v.at[index].set(new), shape)
        if shape == self.shape:
            return self.reshape(shape)
        stops = tuple(map(operator.add, starts, shape))
        return self._view(
            self,
            lambda v: lax.slice(v, starts, stops),
            lambda v, new: lax.dynamic_update_slice(v, new, [np.int32(start) for start in starts]),
            shape,
        )

    def reshape(self, *shape: Any, order: str = "C") -> Variable:
        """Return a view in another shape."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int | np.integer) else shape
        found = np.broadcast_to(_NOTHING, self.shape).reshape(wanted).shape if -1 in wanted else tuple(wanted)
        given = self.shape
        return self._view(self, lambda v: v.reshape(found), lambda _, new: new.reshape(given), found)

    def ravel(self, order: str = "C") -> Variable:
        """Return a view as a vector."""
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> Variable:
        """Return a view with the axes in another order."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        order = tuple(range(self.ndim))[::-1] if not order or order is None else tuple(order)
        back = tuple(np.argsort(order).tolist())
        shape = tuple(self.shape[axis] for axis in order)
        return self._view(self, lambda v: v.transpose(order), lambda _, new: new.transpose(back), shape)

    @property
    def T(self) -> Variable:
        """A view with the axes in reverse order."""
        return self.transpose()

    def swapaxes(self, one: int, other: int) -> Variable:
        """Return a view in which two axes have changed places."""
        order = list(range(self.ndim))
        order[one], order[other] = order[other], order[one]
        return self.transpose(order)

    @property
    def real(self) -> Variable:
        """A view of the real part; the variable itself if it is real."""
        if self.dtype.kind != "c":
            return self
        return self._view(self, jnp.real, lambda v, new: lax.complex(new, v.imag), self.shape)

    @property
    def imag(self) -> Variable:
        """A view of the imaginary part; zeros if the variable is real."""
        if self.dtype.kind != "c":
            return Variable(jnp.zeros_like(self.value))
        return self._view(self, jnp.imag, lambda v, new: lax.complex(v.real, new), self.shape)

    def view(self, dtype: Any) -> Variable:
        """Return a view of complex numbers as pairs of real ones along the last axis."""
        pairs = np.dtype(dtype)
        if self.dtype.kind != "c" or pairs != self.value.real.dtype:
            raise UnsupportedTypeError(f"a variable of {self.dtype} cannot be seen as one of {pairs}")
        shape = (*self.shape[:-1], 2 * self.shape[-1])
        return self._view(
            self,
            lambda v: jnp.stack([v.real, v.imag], -1).reshape(shape),
            lambda _, new: lax.complex(new[..., ::2], new[..., 1::2]),
            shape,
        )

    # Writing

    def __setitem__(self, index: Any, new: Any) -> None:
        if _is_basic(index):
            target = self[index]
            if isinstance(target, Variable):
                target._write(value_of(new))
                return
            new = _converted(value_of(new), self.dtype)
        self.value = self.value.at[_plain(index)].set(value_of(new))

    def _write(self, new: Any) -> None:
        """Replace all elements, as the dtype and the shape are."""
        value = _converted(new, self.dtype)
        self.value = value if jnp.shape(value) == self.shape else jnp.broadcast_to(value, self.shape)

    def fill(self, number: Any) -> None:
        """Set all elements to a number."""
        self._write(number)

    def _updated(self, function: Callable[[Any, Any], Any], other: Any) -> Variable:
        new = function(self.value, value_of(other))
        if not np.can_cast(new.dtype, self.dtype, "same_kind"):
            raise UnsupportedTypeError(f"a result of {new.dtype} does not fit into an array of {self.dtype}")
        self._write(new)
        return self

    def copy(self, order: str = "C") -> Variable:
        """Return another variable that holds the same."""
        return Variable(self.value)

    def astype(self, dtype: Any, order: str = "C", copy: bool = True) -> Variable:
        """Return a variable of another dtype; itself if it has it already and need not be copied."""
        wanted = canonical(dtype)
        return self if wanted == self.dtype and not copy else Variable(self.value.astype(wanted))


_NOTHING = np.empty((), bool)


def _binary(function: Callable[[Any, Any], Any], reflected: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Variable, other: Any) -> Any:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        mine, given = self.value, value_of(other)
        return as_result(function(given, mine) if reflected else function(mine, given))

    return method


def _in_place(function: Callable[[Any, Any], Any]) -> Callable[[Variable, Any], Variable]:
    return lambda self, other: self._updated(function, other)


def _unary(function: Callable[[Any], Any]) -> Callable[[Variable], Any]:
    return lambda self: as_result(function(self.value))


_OPERANDS = (Variable, jax.Array, np.ndarray, np.generic, bool, int, float, complex)
_BOTH_WAYS = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and_",
    "or_",
    "xor",
    "matmul",
    "lshift",
    "rshift",
)
for _name in _BOTH_WAYS:
    _function, _plain_name = getattr(operator, _name), _name.rstrip("_")
    setattr(Variable, f"__{_plain_name}__", _binary(_function))
    setattr(Variable, f"__r{_plain_name}__", _binary(_function, True))
    setattr(Variable, f"__i{_plain_name}__", _in_place(_function))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Variable, f"__{_name}__", _binary(getattr(operator, _name)))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Variable, f"__{_name}__", _unary(getattr(operator, _name)))

jax.tree_util.register_pytree_node(
    Variable, lambda variable: ((variable.value,), None), lambda _, held: Variable(*held)
)


def value_of(array: Any) -> Any:
    """Return what a variable holds now; anything else as it is."""
    return array.value if isinstance(array, Variable) else array


def as_result(value: Any) -> Any:
    """Return a new array as a variable; what has no axes, and what is no array, as it is."""
    if isinstance(value, jax.Array):
        return Variable(value) if value.ndim else value
    if isinstance(value, tuple | list):
        return type(value)(map(as_result, value)) if type(value) in (tuple, list) else value
    return value


def canonical(dtype: Any) -> np.dtype:
    """Return the dtype that JAX has for `dtype`: without ``jax_enable_x64``, single instead of double precision."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def _converted(value: Any, dtype: np.dtype) -> Any:
    value = jnp.asarray(value)
    if value.dtype == dtype:
        return value
    if value.dtype.kind == "c" and dtype.kind != "c":
        raise UnsupportedTypeError(f"complex values do not fit into an array of {dtype}")
    return value.astype(dtype)


def _is_basic(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(
        part is None or (isinstance(part, slice | EllipsisType | int | np.integer) and not isinstance(part, bool))
        for part in parts
    )


def _block(index: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return where the box of a basic index begins, if it is one: without steps, and with all axes kept."""
    parts = index if isinstance(index, tuple) else (index,)
    if any(part is not Ellipsis and not isinstance(part, slice) for part in parts):
        return None
    if Ellipsis in parts:
        place = parts.index(Ellipsis)
        parts = (*parts[:place], *[slice(None)] * (len(shape) - len(parts) + 1), *parts[place + 1 :])
    bounds = [part.indices(extent) for part, extent in zip(parts, shape, strict=False)]
    if any(step != 1 for *_, step in bounds):
        return None
    return (*(start for start, *_ in bounds), *[0] * (len(shape) - len(parts)))


def _plain(index: Any) -> Any:
    return tuple(map(value_of, index)) if isinstance(index, tuple) else value_of(index)


def _applied(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, out: Any = None, **arguments: Any) -> Any:
        result = function(*map(value_of, args), **{name: value_of(arg) for name, arg in arguments.items()})
        if out is None:
            return as_result(result)
        out[...] = result
        return out

    return call


def _with_one_out(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a ufunc with its one output by itself, as NumPy's callers gave it."""
    outs = arguments.get("out")
    return {**arguments, "out": outs[0]} if outs is not None and len(outs) == 1 else arguments


def _namespace() -> Any:
    from collops.jax_engine.namespace import namespace

    return namespace
