"""Linear operators and their algebra: sums with coefficients, products, powers, adjoints, conjugates, flat forms."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from functools import cache, partial
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array, DistributedArray, Layout, StackedArray, StackedLayout, axpby
from collops.array.dtypes import accumulator, as_dtype, combined, real_of
from collops.array.fused import LocalPairs, Square, sums_squares
from collops.array.operands import way_to
from collops.array.redistribute import compare_copies
from collops.backend import engine_of
from collops.comm.arguments import checked_communicator
from collops.errors import InputError, LayoutError, UnsupportedTypeError, type_name
from collops.operators.dottest import dottest
from collops.operators.memory import Buffers, allocator, check_holds, new_array

if TYPE_CHECKING:
    from collops.array.coefficients import Coefficient
    from collops.comm import Communicator

__all__ = [
    "Adjoint",
    "AnyLayout",
    "Combination",
    "Conjugate",
    "Direction",
    "Flat",
    "LinearOperator",
    "Product",
    "is_complex",
    "product",
    "reinterpret",
]

AnyLayout: TypeAlias = Layout | StackedLayout
_PRECISIONS = ("float32", "float64", "complex64", "complex128", "bfloat16")
FORMS = "dense matrices have one in bfloat16, and matrices and operators without coefficients in single and double"
"""The operators that can be converted to each precision, for messages."""


class Direction(NamedTuple):
    """The functions that apply an operator in one direction: the product, and its optional faster forms.

    ``apply(x, out)`` returns the product; `out` is ``None`` or an array whose memory it may use. The other forms are
    ``None`` where an operator has none. ``norm2(x, out, squares=list)`` also appends pairs for ``Square.parts``, whose
    products add up to the square of the result, to the list. ``add(x, total, squares=list or None)`` also does this,
    adds the product to `total` in the same pass over memory, and returns `total`. Both write to mutable arrays only.
    ``batched(X, out)`` fills a block of columns with the products of the columns of a block, both of the engine named
    by `batch_engine`, and returns `out`; see :class:`collops.operators.Columns`.
    """

    apply: Callable[..., Array]
    norm2: Callable[..., Array] | None = None
    add: Callable[..., Array] | None = None
    batched: Callable[[Array, Array], Array] | None = None
    batch_engine: str = "numpy"

    def with_squares(self, x: Array, out: Array | None, squares: LocalPairs | None) -> Array:
        """Return the product, and append pairs for ``Square.parts`` to `squares` unless that is ``None``."""
        if squares is None:
            return self.apply(x, out)
        if self.norm2 is not None:
            return self.norm2(x, out, squares=squares)
        result = self.apply(x, out)
        squares += [(leaf.local_array, leaf.local_array) for leaf in result.leaves]
        return result


class LinearOperator:
    """A linear map between distributed arrays.

    Subclasses implement ``_forward(x, out)`` and ``_adjoint(y, out)``, which get arrays of the right layout and return
    the result. ``out`` is ``None`` or an array whose memory they may use for it. Where both are one computation with
    different data, they implement ``_apply(x, out, adjoint)`` instead, whose `out` is always an array. Operators with
    faster forms of their products also return these, by ``_direction(adjoint)``.

    Parameters
    ----------
    domain, range : Layout or StackedLayout
        Layouts of the arrays that :meth:`forward` takes and returns.
    dtype : dtype
        Type of the coefficients. Results have the common type of the coefficients and the input, unless `out` has
        another.
    comm : Communicator
        The ranks.

    Attributes
    ----------
    domain, range : Layout or StackedLayout
    dtype : numpy.dtype
    comm : Communicator
    shape : tuple of int
        Global numbers of rows and columns.
    capturable : bool
        Whether a solver may record the operator's device work once and replay it (a CUDA graph). An operator whose work
        depends on values that the host reads, or differs from call to call, sets this to ``False``.
    clinear : bool
        Whether the operator is linear over the complex numbers. An operator that takes real parts, such as the adjoint
        of a Fourier transform of real arrays, is linear over the real numbers only. So are operators composed of it;
        the real part of the inner product defines their adjoint.

    Raises
    ------
    LayoutError
        If the layouts are for different numbers of ranks.
    InputError
        If `dtype` is not a valid dtype.

    Examples
    --------
    >>> import collops
    >>> D = collops.FirstDerivative(5)
    >>> isinstance(D, collops.LinearOperator), (D.H @ D + 2 * collops.Identity(5)).shape, D.dottest()
    (True, (5, 5), True)
    """

    capturable = True
    clinear = True
    __array_ufunc__ = None  # so that a NumPy scalar times an operator calls the operator's __rmul__

    def __init__(self, domain: AnyLayout, range: AnyLayout, dtype: DTypeLike, comm: Communicator) -> None:
        checked_communicator(comm)
        for layout in (domain, range):
            if not isinstance(layout, Layout | StackedLayout):
                raise LayoutError(f"an operator needs layouts, not {type_name(layout)}")
        if not domain.ranks == range.ranks == comm.size:
            raise LayoutError(
                f"an operator on {comm.size} ranks cannot have a domain on {domain.ranks} "
                f"and a range on {range.ranks} ranks"
            )
        self.domain = domain
        self.range = range
        self.dtype = as_dtype(dtype)
        self.comm = comm
        self._allocators: dict[Hashable, Callable[[], Array]] = {}
        if comm.calls is not None:  # formatting a dtype takes as long as all other steps
            comm.announce(type(self).__name__, shape=[range.size, domain.size], dtype=self.dtype.name)

    def _inherit(self, operators: Sequence[LinearOperator]) -> None:
        """Set `capturable` and `clinear`, each if all of `operators` have it."""
        self.capturable = all(op.capturable for op in operators)
        self.clinear = all(op.clinear for op in operators)

    # For subclasses

    _has_coefficients = True  # own coefficients, which astype() must convert

    @property
    def _directions(self) -> tuple[Direction, Direction]:
        """Forward and adjoint. The class that defines the product defines its faster forms.

        They are not cached: they refer to this operator, and the reference cycle would delay freeing its memory.
        """
        return self._resolved(False), self._resolved(True)

    def _resolved(self, adjoint: bool) -> Direction:
        """Return a direction, without faster forms where an object or a class overrides the method of its bases."""
        method = "_adjoint" if adjoint else "_forward"
        product = getattr(self, method)
        fast = _has_forms(type(self), method) and getattr(product, "__func__", None) is getattr(type(self), method)
        return self._direction(adjoint) if fast else Direction(product)

    def _direction(self, adjoint: bool) -> Direction:
        """Return the product and its faster forms; see `_directions`."""
        return Direction(self._adjoint if adjoint else self._forward)

    def _forward(self, x: Array, out: Array | None) -> Array:
        return self._apply(x, self._new(self.range, x) if out is None else out, False)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        return self._apply(y, self._new(self.domain, y) if out is None else out, True)

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        raise NotImplementedError(f"{type(self).__name__} has no {'adjoint' if adjoint else 'forward'}")

    def _forward_and_square(self, x: Array, out: Array | None) -> tuple[Array, Square]:
        """Return the result of :meth:`_forward`, and its square for :func:`collops.array.dots`."""
        if not sums_squares(out):  # as on hosts, where creating a record takes longer than a short product
            result = self._forward(x, out)
            return result, Square(result)
        squares: LocalPairs = []
        result = self._resolved(False).with_squares(x, out, squares)
        return result, Square(result, squares)

    def _adjoint_and_square(self, y: Array, out: Array | None) -> tuple[Array, Square]:
        if not sums_squares(out):
            result = self._adjoint(y, out)
            return result, Square(result)
        squares: LocalPairs = []
        result = self._resolved(True).with_squares(y, out, squares)
        return result, Square(result, squares)

    def _new(self, layout: AnyLayout, like: Array, real: bool = False) -> Array:
        """Return an array of `layout` with undefined values, for the result of applying the operator to `like`.

        Its dtype is the common dtype of the operator and `like`, or the real type of the same precision.
        """
        key = layout, like.dtype, like.engine, real
        make = self._allocators.get(key)
        if make is None:
            dtype = np.result_type(self.dtype, like.dtype)
            dtype = real_of(dtype) if real else dtype
            if not like.engine.mutable:  # the dtype depends on JAX's configuration, which may change
                return new_array(layout, like, dtype)
            make = self._allocators[key] = allocator(layout, like, dtype)
        return make()

    # Application

    @property
    def shape(self) -> tuple[int, int]:
        """Global numbers of rows and columns."""
        return self.range.size, self.domain.size

    def forward(self, x: Array, out: Array | None = None) -> Array:
        """Apply the operator. Collective.

        Parameters
        ----------
        x : DistributedArray or StackedArray
            In the layout ``domain``.
        out : DistributedArray or StackedArray, optional
            In the layout ``range``; shares no memory with `x`; receives the result.

        Returns
        -------
        DistributedArray or StackedArray
            The result: `out` unless that is ``None``.

        Raises
        ------
        LayoutError
            If an array has another layout or communicator, or `out` is not contiguous.
        InputError
            If `out` shares memory with `x`, or is read-only.
        UnsupportedTypeError
            If an argument is not a distributed array, or `out` cannot hold the result.
        """
        if getattr(x, "layout", None) is not self.domain or x.comm is not self.comm:
            self._raise_misfit(x, self.domain, "forward takes an array")
        if out is not None:
            self._check_out(x, out, self.range)
        if self.comm.calls is not None:
            compare_copies(x)
        result = self._forward(x, out)
        return result if out is None or result is out else axpby(1, result, 0, result, out=out)

    def adjoint(self, y: Array, out: Array | None = None) -> Array:
        """Apply the adjoint, the conjugate transpose, to an array in the layout ``range``. See :meth:`forward`."""
        if getattr(y, "layout", None) is not self.range or y.comm is not self.comm:
            self._raise_misfit(y, self.range, "adjoint takes an array")
        if out is not None:
            self._check_out(y, out, self.domain)
        if self.comm.calls is not None:
            compare_copies(y)
        result = self._adjoint(y, out)
        return result if out is None or result is out else axpby(1, result, 0, result, out=out)

    def _raise_misfit(self, array: object, layout: AnyLayout, role: str) -> NoReturn:
        if not isinstance(array, DistributedArray | StackedArray):
            raise UnsupportedTypeError(
                f"{type(self).__name__}.{role} of collops, not {type_name(array)}; "
                "make one with collops.from_global or collops.from_local"
            )
        # Layouts are interned: equal layouts are one object.
        if array.layout is not layout:
            raise LayoutError(
                f"{type(self).__name__}.{role} in the layout {layout}, not {array.layout}; "
                + way_to(array.layout, layout, layout="layout")
            )
        raise LayoutError(f"{type(self).__name__}.{role} on its own communicator; make both with one comm=")

    def _check_out(self, x: Array, out: Array, layout: AnyLayout) -> None:
        if getattr(out, "layout", None) is not layout or out.comm is not self.comm:
            self._raise_misfit(out, layout, "out is an array")
        engine, dtype = out.engine, x.dtype
        if x.engine is not engine:
            raise UnsupportedTypeError(
                f"{type(self).__name__} cannot fill an out of {engine.name} from an input of {x.engine.name}; "
                "make out with engine=x.engine"
            )
        for leaf in out.leaves if engine.mutable else ():
            memory = leaf.local_array
            if not memory.dtype is dtype is self.dtype:
                # Dtypes of local operators may differ between ranks; this dtype and the error do not.
                result = np.result_type(self.dtype, dtype)
                result = result if self.clinear else real_of(result)
                if not np.can_cast(result, memory.dtype, "same_kind"):
                    raise UnsupportedTypeError(
                        f"{type(self).__name__} returns {result}, which does not fit into out of dtype {memory.dtype}"
                    )
            for source in x.leaves:
                if source is leaf or engine.xp.may_share_memory(memory, source.local_array):
                    raise InputError(
                        f"{type(self).__name__} cannot work in place: out must not share memory with the input"
                    )
            flags = memory.flags
            if not flags.c_contiguous or not getattr(flags, "aligned", True):
                raise LayoutError(f"{type(self).__name__} needs a contiguous out; make it contiguous")
            if not getattr(flags, "writeable", True):
                raise InputError(f"{type(self).__name__} needs a writable out, not a read-only array")
        if out is x:
            raise InputError(f"{type(self).__name__} cannot work in place: out must not share memory with the input")

    # Algebra

    @property
    def H(self) -> LinearOperator:
        """The adjoint operator; the adjoint of an adjoint is the operator itself."""
        return self.operator if isinstance(self, Adjoint) else Adjoint(self)

    @property
    def T(self) -> LinearOperator:
        """The transposed operator, without conjugation."""
        return self.conj().H

    @property
    def flat(self) -> LinearOperator:
        """The same operator on ravelled arrays (``domain.reshape(size)``), by views, so that it can be stacked.

        Raises
        ------
        LayoutError
            If domain or range cannot be ravelled without moving data between ranks.
        """
        domain, range_ = _flat_layout(self.domain), _flat_layout(self.range)
        return self if domain is self.domain and range_ is self.range else Flat(self, domain, range_)

    def conj(self) -> LinearOperator:
        """Return the operator with conjugated coefficients; a real operator is its own conjugate."""
        if isinstance(self, Conjugate):
            return self.operator
        if isinstance(self, Adjoint):
            return self.operator.conj().H
        return Conjugate(self) if is_complex(self.dtype) else self

    def astype(self, dtype: DTypeLike) -> LinearOperator:
        """Return the operator with its coefficients in another precision, to read fewer bytes. Collective.

        Results have the common type of the operator and the vector. A solver works in lower precision if its data are
        in lower precision; :func:`collops.preconditioners.inner_solve` refines its solution to full accuracy.

        Parameters
        ----------
        dtype : dtype
            ``"float32"``, ``"float64"``, ``"complex64"`` or ``"complex128"``; complex if this operator is. Or
            ``"bfloat16"``: dense local matrices are stored in bfloat16, which has eight significant bits, and
            multiplied in single precision, which becomes the dtype of the operator.

        Returns
        -------
        LinearOperator
            This operator if it has that dtype.

        Raises
        ------
        InputError
            If `dtype` is not one of these.
        UnsupportedTypeError
            On every rank, if the operator or one of its parts cannot be converted to this precision: sparse matrices
            and diagonals cannot be stored in bfloat16; Fourier transforms and modelling operators take ``dtype=``.

        Examples
        --------
        >>> import numpy as np
        >>> import collops
        >>> A = collops.VStack([np.full((2, 3), 1 / 3)])
        >>> [A.astype(dtype).forward(collops.ones(A.domain)).dtype.name for dtype in ("float32", "bfloat16")]
        ['float64', 'float64']
        >>> error = A.astype("bfloat16").forward(collops.ones(A.domain)).gather() - 1
        >>> bool(1e-4 < abs(error).max() < 2.0**-8)
        True
        """
        requested = as_dtype(dtype)
        if requested == self.dtype:
            return self
        if requested.name not in _PRECISIONS:
            raise UnsupportedTypeError(f"operators are converted to {', '.join(_PRECISIONS)}, not {requested}")
        check_holds(requested, self.dtype)
        return self._astype(requested)

    def _astype(self, dtype: np.dtype) -> LinearOperator:
        if not self._has_coefficients:
            return self._retyped(dtype)
        raise UnsupportedTypeError(f"{type(self).__name__} of {self.dtype} cannot be converted to {dtype}; {FORMS}")

    def _retyped(self, dtype: np.dtype) -> Any:
        """Return a copy whose dtype is `dtype`, or the dtype of its products; both share coefficients."""
        other = copy(self)
        other.dtype, other._allocators = accumulator(dtype), {}
        return other

    def __matmul__(self, other: Any) -> Any:
        return product(self, other) if isinstance(other, LinearOperator) else self.forward(other)

    def __mul__(self, other: Any) -> Any:
        return _combination((other, self)) if is_scalar(other) else self @ other

    def __rmul__(self, other: Any) -> Any:
        return self * other if is_scalar(other) else NotImplemented

    def __truediv__(self, other: Any) -> Any:
        if not is_scalar(other):
            return NotImplemented
        divisor = _plain_number(other)
        if isinstance(divisor, int | float | complex) and divisor == 0:
            raise InputError("an operator cannot be divided by zero")
        return self * (1 / divisor)

    def __neg__(self) -> LinearOperator:
        return self * -1

    def __add__(self, other: Any) -> Any:
        return _combination((1, self), (1, other)) if isinstance(other, LinearOperator) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return _combination((1, self), (-1, other)) if isinstance(other, LinearOperator) else NotImplemented

    def __pow__(self, exponent: int) -> LinearOperator:
        try:
            times = operator.index(exponent)
        except TypeError:
            times = 0
        if times < 1:
            raise InputError(f"an operator can be raised to the powers 1, 2, 3 and so on, not to {exponent!r}")
        if self.domain is not self.range:
            raise LayoutError(f"a power needs an operator whose domain is its range, not {self!r}")
        return product(*(self,) * times)

    def dottest(self, *, rtol: float | None = None, seed: int = 0, raises: bool = True, **options: Any) -> bool:
        """Run the dot test of forward and adjoint; see :func:`collops.operators.dottest`. Collective."""
        return dottest(self, rtol=rtol, seed=seed, raises=raises, **options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.dtype}: {self.domain} -> {self.range}>"


@cache
def _has_forms(kind: type, method: str) -> bool:
    """Return whether the newest class that defines a product of `kind` also defines its faster forms."""
    newest = next(vars(base) for base in kind.__mro__ if vars(base).keys() & {method, "_direction"})
    return "_direction" in newest


def product(*factors: LinearOperator) -> LinearOperator:
    """Return the operator that applies `factors` from right to left, with nested products merged."""
    flat: list[LinearOperator] = []
    for factor in factors:
        flat += factor.factors if isinstance(factor, Product) else (factor,)
    return flat[0] if len(flat) == 1 else Product(flat)


def _combination(*terms: tuple[Coefficient, LinearOperator]) -> LinearOperator:
    """Return the sum of operators times coefficients, with nested sums merged."""
    flat: list[tuple[Coefficient, LinearOperator]] = []
    for coefficient, term in terms:
        value = _plain_number(coefficient)
        parts = term.terms if isinstance(term, Combination) else [(1, term)]
        flat += [(value * inner, part) for inner, part in parts]
    coefficient, first = flat[0]
    # A complex 1 makes a real operator complex.
    unit = isinstance(coefficient, Number) and coefficient == 1 and _times(first.dtype, coefficient) == first.dtype
    return first if len(flat) == 1 and unit else Combination(flat)


class Combination(LinearOperator):
    """A sum of operators times coefficients, given as pairs of scalar and operator."""

    def __init__(self, terms: Sequence[tuple[Coefficient, LinearOperator]]) -> None:
        self.terms = tuple(terms)
        if not self.terms:
            raise InputError("a sum of operators needs at least one")
        check_operators(*(term for _, term in self.terms))
        for coefficient, _ in self.terms:
            if not is_scalar(coefficient):
                raise UnsupportedTypeError(f"a coefficient must be a number, not {type(coefficient).__qualname__}")
        first = self.terms[0][1]
        for _, term in self.terms[1:]:
            if term.domain is not first.domain or term.range is not first.range:
                raise LayoutError(f"operators in a sum need the same domain and range, not {first!r} and {term!r}")
        dtype = np.result_type(*(term.dtype for _, term in self.terms))
        for coefficient, _ in self.terms:
            dtype = _times(dtype, coefficient)
        super().__init__(first.domain, first.range, dtype, first.comm)
        self._inherit([term for _, term in self.terms])
        self._terms = (
            [(coefficient, term._forward) for coefficient, term in self.terms],
            [self._adjoint_term(coefficient.conjugate(), term) for coefficient, term in self.terms],
        )
        self._buffers = Buffers()

    def _astype(self, dtype: np.dtype) -> LinearOperator:
        return Combination([(coefficient, term.astype(dtype)) for coefficient, term in self.terms])

    def _adjoint_term(self, coefficient: Coefficient, term: LinearOperator) -> tuple[Coefficient, Callable[..., Array]]:
        if term.clinear or not is_complex(np.result_type(coefficient)):
            return coefficient, term._adjoint

        # An operator that takes the real part takes the real part of the whole product, not of a factor.
        def apply(y: Array, out: Array | None) -> Array:
            dtype = np.result_type(y.dtype, np.complex64)
            scaled = axpby(coefficient, y, 0.0, y, out=self._buffers.get(("scaled", term), self.range, y, dtype))
            return term._adjoint(scaled, out)

        return 1, apply

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        terms, layout = self._terms[adjoint], out.layout
        total_coefficient, apply = terms[0]
        total = apply(x, out)
        for coefficient, apply_next in terms[1:]:
            part = apply_next(x, self._buffers.get(layout, layout, x, total.dtype))
            total = axpby(coefficient, part, total_coefficient, total, out=total)
            total_coefficient = 1
        if not (isinstance(total_coefficient, Number) and total_coefficient == 1):
            total *= total_coefficient
        return total


class Product(LinearOperator):
    """A sequence of operators, applied from right to left."""

    def __init__(self, factors: Sequence[LinearOperator]) -> None:
        self.factors = tuple(factors)
        if not self.factors:
            raise InputError("a product of operators needs at least one")
        check_operators(*self.factors)
        for left, right in zip(self.factors, self.factors[1:], strict=False):
            if left.domain is not right.range:
                raise LayoutError(
                    f"a product needs the domain of the left operator to be the range of the right one: "
                    f"{left.domain} is not {right.range}"
                )
        last = self.factors[-1]
        dtype = np.result_type(*(factor.dtype for factor in self.factors))
        super().__init__(last.domain, self.factors[0].range, dtype, last.comm)
        self._inherit(self.factors)
        self._chains = (
            [(factor._forward, factor.range, factor.dtype) for factor in reversed(self.factors)],
            [(factor._adjoint, factor.domain, factor.dtype) for factor in self.factors],
        )
        self._buffers = Buffers()

    def _astype(self, dtype: np.dtype) -> LinearOperator:
        return Product([factor.astype(dtype) for factor in self.factors])

    def _forward(self, x: Array, out: Array | None) -> Array:
        return self._apply_in_turn(self._chains[0], x, out)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        return self._apply_in_turn(self._chains[1], y, out)

    def _apply_in_turn(
        self, chain: Sequence[tuple[Callable[..., Array], AnyLayout, np.dtype]], x: Array, out: Array | None
    ) -> Array:
        for number, (apply, layout, dtype) in enumerate(chain[:-1]):
            # Two buffers per layout alternate: a factor reads one while it writes the other.
            x = apply(x, self._buffers.get((layout, number % 2), layout, x, np.result_type(dtype, x.dtype)))
        return chain[-1][0](x, out)


class Adjoint(LinearOperator):
    """The adjoint of any operator."""

    def __init__(self, operator: LinearOperator) -> None:
        super().__init__(operator.range, operator.domain, operator.dtype, operator.comm)
        self.operator = operator
        self._inherit([operator])

    def _astype(self, dtype: np.dtype) -> LinearOperator:
        return Adjoint(self.operator.astype(dtype))

    def _direction(self, adjoint: bool) -> Direction:
        return self.operator._resolved(not adjoint)

    def _forward(self, x: Array, out: Array | None) -> Array:
        return self.operator._adjoint(x, out)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        return self.operator._forward(y, out)


class Conjugate(LinearOperator):
    r"""Any operator with conjugated coefficients, applied as :math:`\overline{A \overline{x}}`."""

    def __init__(self, operator: LinearOperator) -> None:
        super().__init__(operator.domain, operator.range, operator.dtype, operator.comm)
        self.operator = operator
        self._inherit([operator])
        self._buffers = Buffers()

    def _astype(self, dtype: np.dtype) -> LinearOperator:
        return Conjugate(self.operator.astype(dtype))

    def _forward(self, x: Array, out: Array | None) -> Array:
        return self._conjugated(self.operator._forward, x, out)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        return self._conjugated(self.operator._adjoint, y, out)

    def _conjugated(self, function: Callable[..., Array], x: Array, out: Array | None) -> Array:
        if x.dtype.kind == "c":
            x = _conjugate(x, self._buffers.get(x.layout, x.layout, x, x.dtype))
        result = function(x, out)
        return _conjugate(result, result)


class Flat(LinearOperator):
    """An operator whose arrays are viewed in other layouts, such as stackable vectors; see :func:`reinterpret`."""

    def __init__(
        self, operator: LinearOperator, domain: AnyLayout, range: AnyLayout, comm: Communicator | None = None
    ) -> None:
        super().__init__(domain, range, operator.dtype, operator.comm if comm is None else comm)
        self.operator = operator
        self._inherit([operator])
        # In each direction: the operator's layouts of operand and result, and this operator's layout of the result.
        self._layouts = (operator.domain, operator.range, range), (operator.range, operator.domain, domain)

    def _astype(self, dtype: np.dtype) -> LinearOperator:
        return Flat(self.operator.astype(dtype), self.domain, self.range, self.comm)

    def _direction(self, adjoint: bool) -> Direction:
        inner, layouts = self.operator._resolved(adjoint), self._layouts[adjoint]
        norm2, add = (form and partial(self._view_squared, form, layouts) for form in (inner.norm2, inner.add))
        return super()._direction(adjoint)._replace(norm2=norm2, add=add)

    def _forward(self, x: Array, out: Array | None) -> Array:
        return self._view(self.operator._forward, self._layouts[0], x, out)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        return self._view(self.operator._adjoint, self._layouts[1], y, out)

    def _view(
        self,
        function: Callable[..., Array],
        layouts: tuple[AnyLayout, AnyLayout, AnyLayout],
        x: Array,
        out: Array | None,
    ) -> Any:
        """Apply a function of the operator's arrays to views of arrays in the layouts of this operator."""
        comm = self.operator.comm
        target = None if out is None or not out.engine.mutable else reinterpret(out, layouts[1], comm)
        result = function(reinterpret(x, layouts[0], comm), target)
        return out if target is not None and result is target else reinterpret(result, layouts[2], self.comm)

    def _view_squared(
        self,
        form: Callable[..., Array],
        layouts: tuple[AnyLayout, AnyLayout, AnyLayout],
        x: Array,
        out: Array | None,
        squares: LocalPairs | None,
    ) -> Array:
        return self._view(partial(form, squares=squares), layouts, x, out)


def _conjugate(x: Array, out: Array | None) -> Array:
    """Return the conjugate of `x`, in `out` unless that is ``None`` or its engine's arrays are immutable."""
    if out is None or not x.engine.mutable:
        return x.conj()
    if isinstance(x, StackedArray):
        for part, target in zip(x.arrays, out.arrays, strict=True):
            _conjugate(part, target)
    else:
        x.engine.xp.conjugate(x.local_array, out.local_array)
    return out


def check_operators(*operators: Any) -> None:
    """Raise UnsupportedTypeError unless all are distributed operators, LayoutError unless on one communicator."""
    for op in operators:
        if not isinstance(op, LinearOperator):
            raise UnsupportedTypeError(
                f"expected a distributed operator, not {type_name(op)}; "
                "collops.operators.VStack, HStack or BlockDiag makes one from local operators"
            )
        if op.comm is not operators[0].comm:
            raise LayoutError(
                "operators on different communicators cannot be combined; make all of them with one comm="
            )


def is_complex(dtype: DTypeLike) -> bool:
    """Return whether `dtype` is a complex type."""
    return np.dtype(dtype).kind == "c"


def is_scalar(value: object) -> bool:
    """Return whether `value` is a number or a 0-D array."""
    return isinstance(value, Number | np.generic) or (
        getattr(value, "ndim", None) == 0 and not isinstance(value, DistributedArray | StackedArray)
    )


def _times(dtype: np.dtype, coefficient: Coefficient) -> np.dtype:
    """Return the dtype of an operator of `dtype` times a coefficient."""
    number: Any = coefficient if isinstance(coefficient, Number) else coefficient.dtype.type(0).item()
    return combined(dtype, dtype, type(number))


def _plain_number(value: Coefficient) -> Coefficient:
    """Return a coefficient as a Python number, which never raises the precision of arrays; keep a JAX scalar."""
    return value.item() if hasattr(value, "item") and not engine_of(value).traced else value


def _flat_layout(layout: AnyLayout) -> AnyLayout:
    if isinstance(layout, StackedLayout):
        return StackedLayout([_flat_layout(part) for part in layout.layouts])
    return layout if layout.ndim == 1 else layout.reshape(layout.size)


def reinterpret(array: Array, layout: AnyLayout, comm: Communicator | None = None) -> Array:
    """View an array in another layout with equally many elements on each rank; copy it if not contiguous. No message.

    `comm` may order the ranks differently; by default it is the communicator of `array`.
    """
    ranks: Communicator = array.comm if comm is None else comm
    if array.layout is layout and array.comm is ranks:
        return array
    if isinstance(layout, StackedLayout):
        return StackedArray([reinterpret(part, new, ranks) for part, new in zip(array.arrays, layout, strict=True)])
    return DistributedArray._uncompared(layout, ranks, array.local_array.reshape(layout.local_shape(ranks.rank)))
