"""Operators made from operators: sums with coefficients, products, powers, adjoints, conjugates and flat forms."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

import numpy as np

from collops.array import DistributedArray, StackedArray, StackedLayout, axpby
from collops.array.dtypes import combined
from collops.backend import engine_of
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators.base import AnyLayout, Buffers, LinearOperator, check_operators, is_complex, is_scalar

__all__ = ["Adjoint", "Combination", "Conjugate", "Product", "product"]


def combination(terms: Sequence[tuple[Any, LinearOperator]]) -> LinearOperator:
    """Return the sum of operators times coefficients, with nested sums merged."""
    flat: list[tuple[Any, LinearOperator]] = []
    for coefficient, term in terms:
        value = plain_number(coefficient)
        if isinstance(term, Combination):
            flat += [(value * inner, part) for inner, part in term.terms]
        else:
            flat.append((value, term))
    if len(flat) == 1:
        coefficient, only = flat[0]
        # A complex 1 makes a real operator complex.
        if isinstance(coefficient, Number) and coefficient == 1 and _times(only.dtype, coefficient) == only.dtype:
            return only
    return Combination(flat)


def product(*factors: LinearOperator) -> LinearOperator:
    """Return the operator that applies `factors` from right to left, with nested products merged."""
    flat: list[LinearOperator] = []
    for factor in factors:
        flat += factor.factors if isinstance(factor, Product) else (factor,)
    return flat[0] if len(flat) == 1 else Product(flat)


def power(base: LinearOperator, exponent: int) -> LinearOperator:
    """Return `base` applied `exponent` times.

    Raises
    ------
    InputError
        If `exponent` is not an integer of at least 1.
    LayoutError
        If domain and range differ.
    """
    try:
        times = operator.index(exponent)
    except TypeError:
        times = 0
    if times < 1:
        raise InputError(f"an operator can be raised to the powers 1, 2, 3 and so on, not to {exponent!r}")
    if base.domain is not base.range:
        raise LayoutError(f"only an operator with one layout on both sides has powers; {base!r} has two")
    return product(*(base,) * times)


def adjoint_of(op: LinearOperator) -> LinearOperator:
    """Return the adjoint operator; that of an adjoint is the operator itself."""
    return op.operator if isinstance(op, Adjoint) else Adjoint(op)


def conjugate_of(op: LinearOperator) -> LinearOperator:
    """Return the operator with conjugated coefficients; a real operator is its own conjugate."""
    if isinstance(op, Conjugate):
        return op.operator
    if isinstance(op, Adjoint):
        return adjoint_of(conjugate_of(op.operator))
    return Conjugate(op) if is_complex(op.dtype) else op


def flattened(op: LinearOperator) -> LinearOperator:
    """Return the operator between ravelled arrays; the operator itself if its layouts are one-dimensional."""
    domain, range_ = _flat_layout(op.domain), _flat_layout(op.range)
    return op if domain is op.domain and range_ is op.range else Flat(op, domain, range_)


class Combination(LinearOperator):
    """A sum of operators times coefficients.

    Parameters
    ----------
    terms : sequence of (scalar, LinearOperator)
        At least one; all with the same domain and range.

    Raises
    ------
    LayoutError
        If domains, ranges or communicators differ.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = 2 * collops.Identity(3) + collops.Diagonal(np.arange(3.0))
    >>> type(A).__name__, (A @ collops.ones(3)).gather()
    ('Combination', array([2., 3., 4.]))
    """

    def __init__(self, terms: Sequence[tuple[Any, LinearOperator]]) -> None:
        self.terms = tuple(terms)
        if not self.terms:
            raise InputError("a sum of operators needs at least one")
        check_operators(*(term for _, term in self.terms))
        for coefficient, _ in self.terms:
            if not is_scalar(coefficient):
                raise UnsupportedTypeError(f"a coefficient is a number, not {type(coefficient).__qualname__}")
        first = self.terms[0][1]
        for _, term in self.terms[1:]:
            if term.domain is not first.domain or term.range is not first.range:
                raise LayoutError(f"operators can be added when their layouts are the same, not {first!r} and {term!r}")
        dtype = np.result_type(*(term.dtype for _, term in self.terms))
        for coefficient, _ in self.terms:
            dtype = _times(dtype, coefficient)
        super().__init__(first.domain, first.range, dtype, first.comm)
        self._inherit([term for _, term in self.terms])
        self._forward_terms = [(coefficient, term._forward) for coefficient, term in self.terms]
        self._adjoint_terms = [self._adjoint_term(coefficient.conjugate(), term) for coefficient, term in self.terms]
        self._buffers = Buffers()

    def _adjoint_term(self, coefficient: Any, term: LinearOperator) -> tuple[Any, Any]:
        if term.clinear or not is_complex(np.result_type(coefficient)):
            return coefficient, term._adjoint

        # An operator that takes the real part must take the real part of the product.
        def apply(y: Any, out: Any) -> Any:
            dtype = np.result_type(y.dtype, np.complex64)
            product = axpby(coefficient, y, 0.0, y, out=self._buffers.get(("product", term), self.range, y, dtype))
            return term._adjoint(product, out)

        return 1, apply

    def _forward(self, x: Any, out: Any) -> Any:
        return self._apply(self._forward_terms, self.range, x, out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return self._apply(self._adjoint_terms, self.domain, y, out)

    def _apply(self, terms: Sequence[tuple[Any, Any]], layout: Any, x: Any, out: Any) -> Any:
        if out is None:
            out = self._new(layout, x)
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
    """Operators applied from right to left.

    Parameters
    ----------
    factors : sequence of LinearOperator
        At least one; the domain of each is the range of the next.

    Raises
    ------
    LayoutError
        If the layouts do not match, or communicators differ.

    Examples
    --------
    >>> import collops
    >>> D = collops.FirstDerivative(5)
    >>> type(D.H @ D).__name__
    'Product'
    """

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
        self._forward_chain = [(factor._forward, factor.range, factor.dtype) for factor in reversed(self.factors)]
        self._adjoint_chain = [(factor._adjoint, factor.domain, factor.dtype) for factor in self.factors]
        self._buffers = Buffers()

    def _forward(self, x: Any, out: Any) -> Any:
        return self._apply(self._forward_chain, x, out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return self._apply(self._adjoint_chain, y, out)

    def _apply(self, chain: Sequence[tuple[Any, Any, np.dtype]], x: Any, out: Any) -> Any:
        for number, (apply, layout, dtype) in enumerate(chain[:-1]):
            # Two buffers per layout alternate: a factor reads one while it writes the other.
            x = apply(x, self._buffers.get((layout, number % 2), layout, x, np.result_type(dtype, x.dtype)))
        return chain[-1][0](x, out)


class Adjoint(LinearOperator):
    """The adjoint of an operator.

    Parameters
    ----------
    operator : LinearOperator
        Any operator.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.VStack([np.eye(3)[:2]])
    >>> type(A.H).__name__, A.H.shape
    ('Adjoint', (3, 2))
    """

    def __init__(self, operator: LinearOperator) -> None:
        check_operators(operator)
        super().__init__(operator.range, operator.domain, operator.dtype, operator.comm)
        self.operator = operator
        self._inherit([operator])

    def _forward(self, x: Any, out: Any) -> Any:
        return self.operator._adjoint(x, out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return self.operator._forward(y, out)


class Conjugate(LinearOperator):
    r"""An operator with conjugated coefficients.

    Parameters
    ----------
    operator : LinearOperator
        Any operator.

    Notes
    -----
    Computed as :math:`\overline{A \overline{x}}`, which needs no coefficients but those of A.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.Diagonal(np.array([1j, 2.0]), dtype=complex).conj()
    >>> (A @ collops.ones(2)).gather()
    array([0.-1.j, 2.-0.j])
    """

    def __init__(self, operator: LinearOperator) -> None:
        check_operators(operator)
        super().__init__(operator.domain, operator.range, operator.dtype, operator.comm)
        self.operator = operator
        self._inherit([operator])
        self._buffers = Buffers()

    def _forward(self, x: Any, out: Any) -> Any:
        if x.dtype.kind == "c":
            x = _conjugate(x, self._buffers.get(self.domain, self.domain, x, x.dtype))
        result = self.operator._forward(x, out)
        return _conjugate(result, result)

    def _adjoint(self, y: Any, out: Any) -> Any:
        if y.dtype.kind == "c":
            y = _conjugate(y, self._buffers.get(self.range, self.range, y, y.dtype))
        result = self.operator._adjoint(y, out)
        return _conjugate(result, result)


class Flat(LinearOperator):
    """An operator on its arrays ravelled in C order, so that it can be stacked with others. Views only, no messages."""

    def __init__(self, operator: LinearOperator, domain: AnyLayout, range: AnyLayout) -> None:
        super().__init__(domain, range, operator.dtype, operator.comm)
        self.operator = operator
        self._inherit([operator])
        if operator._add_forward is not None:
            self._add_forward = self._adding(operator._add_forward, operator.domain, operator.range)
        if operator._add_adjoint is not None:
            self._add_adjoint = self._adding(operator._add_adjoint, operator.range, operator.domain)

    def _forward(self, x: Any, out: Any) -> Any:
        return self._apply(self.operator._forward, x, self.operator.domain, out, self.operator.range, self.range)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return self._apply(self.operator._adjoint, y, self.operator.range, out, self.operator.domain, self.domain)

    @staticmethod
    def _apply(function: Any, x: Any, given: AnyLayout, out: Any, wanted: AnyLayout, flat: AnyLayout) -> Any:
        target = None if out is None or not out.engine.mutable else _seen_in(out, wanted)
        result = function(_seen_in(x, given), target)
        return out if target is not None and result is target else _seen_in(result, flat)

    @staticmethod
    def _adding(add: Callable[[Any, Any], None], given: AnyLayout, wanted: AnyLayout) -> Callable[[Any, Any], None]:
        return lambda source, target: add(_seen_in(source, given), _seen_in(target, wanted))


def _conjugate(x: Any, out: Any) -> Any:
    """Return the conjugate of `x`, in `out` where that is given."""
    if out is None:
        return x.conj()
    if isinstance(x, StackedArray):
        for part, target in zip(x.arrays, out.arrays, strict=True):
            _conjugate(part, target)
    elif x.engine.mutable:
        x.engine.xp.conjugate(x.local_array, out.local_array)
    else:
        out.local_array = x.engine.xp.conjugate(x.local_array)
    return out


def _times(dtype: np.dtype, coefficient: Any) -> np.dtype:
    """Return the dtype of an operator of `dtype` times a coefficient."""
    number: Any = coefficient if isinstance(coefficient, Number) else coefficient.dtype.type(0).item()
    return combined(dtype, dtype, type(number))


def plain_number(value: Any) -> Any:
    """Return a coefficient as a Python number, which never raises the precision of arrays; a JAX scalar unchanged."""
    return value.item() if hasattr(value, "item") and not engine_of(value).traced else value


def _flat_layout(layout: AnyLayout) -> AnyLayout:
    if isinstance(layout, StackedLayout):
        return StackedLayout([_flat_layout(part) for part in layout.layouts])
    return layout if layout.ndim == 1 else layout.reshape(layout.size)


def _seen_in(array: Any, layout: AnyLayout) -> Any:
    """Return an array in a layout that differs from its own only in shape; contiguous memory is shared."""
    if array.layout is layout:
        return array
    if isinstance(layout, StackedLayout):
        return StackedArray([_seen_in(part, wanted) for part, wanted in zip(array.arrays, layout.layouts, strict=True)])
    return DistributedArray(layout, array.comm, array.local_array.reshape(layout.local_shape(array.comm.rank)))
