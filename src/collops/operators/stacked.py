"""Stacks of distributed operators: vertical, horizontal and diagonal, over stacked arrays, nested if need be."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from collops.array import StackedLayout, axpby
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators.algebra import check_together
from collops.operators.base import AnyLayout, Buffers, LinearOperator

__all__ = ["StackedBlockDiag", "StackedHStack", "StackedVStack"]


class _Stack(LinearOperator):
    """The base of all stacks: the operators, their common type, and how results are collected."""

    def __init__(self, operators: Sequence[LinearOperator], domain: AnyLayout, range: AnyLayout) -> None:
        dtype = np.result_type(*(op.dtype for op in operators))
        super().__init__(domain, range, dtype, operators[0].comm)
        self.operators = tuple(operators)
        self.capturable = all(op.capturable for op in operators)
        self.clinear = all(op.clinear for op in operators)
        self._forwards = [op._forward for op in operators]
        self._adjoints = [op._adjoint for op in operators]
        self._added_forwards = [op._add_forward for op in operators]
        self._added_adjoints = [op._add_adjoint for op in operators]
        self._buffers = Buffers()

    def _each(self, applies: Sequence[Any], sources: Sequence[Any], layout: AnyLayout, like: Any, out: Any) -> Any:
        """Apply each operator to its source, and return the stack of the results."""
        out = self._new(layout, like) if out is None else out
        parts = [apply(source, target) for apply, source, target in zip(applies, sources, out.arrays, strict=True)]
        return out if all(map(operator.is_, parts, out.arrays)) else out._like(parts)

    def _total(
        self,
        applies: Sequence[Any],
        adds: Sequence[Any],
        sources: Sequence[Any],
        layout: AnyLayout,
        like: Any,
        out: Any,
    ) -> Any:
        """Apply each operator to its source, and return the sum of the results."""
        out = self._new(layout, like) if out is None else out
        total = applies[0](sources[0], out)
        for apply, add, source in zip(applies[1:], adds[1:], sources[1:], strict=True):
            if add is not None and total.engine.mutable:
                add(source, total)
                continue
            part = apply(source, self._buffers.get(layout, layout, like, total.dtype))
            total = axpby(1, part, 1, total, out=total)
        return total


class StackedVStack(_Stack):
    """Distributed operators on top of each other: :math:`[y_0; y_1; …] = [A_0 x; A_1 x; …]`.

    Parameters
    ----------
    operators : sequence of LinearOperator
        All with the same domain, which is that of the stack. The range is the stack of their ranges.

    Raises
    ------
    LayoutError
        If their domains differ.
    UnsupportedTypeError
        If one is no distributed operator.

    Examples
    --------
    >>> import collops
    >>> D = collops.FirstDerivative(4)
    >>> A = collops.StackedVStack([collops.Identity(4), 0.1 * D])
    >>> y = A @ collops.ones(4)
    >>> y[0].gather(), y[1].gather()
    (array([1., 1., 1., 1.]), array([0., 0., 0., 0.]))
    """

    def __init__(self, operators: Sequence[LinearOperator]) -> None:
        operators = _checked(operators, "StackedVStack")
        domain = _common([op.domain for op in operators], "StackedVStack", "domain")
        super().__init__(operators, domain, StackedLayout([op.range for op in operators]))

    def _forward(self, x: Any, out: Any) -> Any:
        return self._each(self._forwards, [x] * len(self.operators), self.range, x, out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return self._total(self._adjoints, self._added_adjoints, y.arrays, self.domain, y, out)


class StackedHStack(_Stack):
    """Distributed operators side by side: :math:`y = A_0 x_0 + A_1 x_1 + …`.

    Parameters
    ----------
    operators : sequence of LinearOperator
        All with the same range, which is that of the stack. The domain is the stack of their domains.

    Raises
    ------
    LayoutError
        If their ranges differ.
    UnsupportedTypeError
        If one is no distributed operator.

    Examples
    --------
    >>> import collops
    >>> D = collops.FirstDerivative(4)
    >>> A = collops.StackedHStack([D, 2 * D])
    >>> A.shape, A.dottest()
    ((4, 8), True)
    """

    def __init__(self, operators: Sequence[LinearOperator]) -> None:
        operators = _checked(operators, "StackedHStack")
        range_ = _common([op.range for op in operators], "StackedHStack", "range")
        super().__init__(operators, StackedLayout([op.domain for op in operators]), range_)

    def _forward(self, x: Any, out: Any) -> Any:
        return self._total(self._forwards, self._added_forwards, x.arrays, self.range, x, out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return self._each(self._adjoints, [y] * len(self.operators), self.domain, y, out)


class StackedBlockDiag(_Stack):
    """Distributed operators along the diagonal: :math:`[y_0; y_1; …] = [A_0 x_0; A_1 x_1; …]`.

    Parameters
    ----------
    operators : sequence of LinearOperator
        Domain and range are the stacks of theirs.

    Raises
    ------
    UnsupportedTypeError
        If one is no distributed operator.

    Examples
    --------
    >>> import collops
    >>> D = collops.FirstDerivative(4)
    >>> A = collops.StackedBlockDiag([D, 2 * D])
    >>> A.shape, A.dottest()
    ((8, 8), True)
    """

    def __init__(self, operators: Sequence[LinearOperator]) -> None:
        operators = _checked(operators, "StackedBlockDiag")
        domain = StackedLayout([op.domain for op in operators])
        super().__init__(operators, domain, StackedLayout([op.range for op in operators]))

    def _forward(self, x: Any, out: Any) -> Any:
        return self._each(self._forwards, x.arrays, self.range, x, out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return self._each(self._adjoints, y.arrays, self.domain, y, out)


def _checked(operators: Sequence[LinearOperator], name: str) -> tuple[LinearOperator, ...]:
    operators = tuple(operators)
    if not operators:
        raise InputError(f"{name} needs at least one operator")
    for op in operators:
        if not isinstance(op, LinearOperator):
            raise UnsupportedTypeError(
                f"{name} stacks distributed operators, not {type(op).__module__}.{type(op).__qualname__}; "
                "local ones are stacked by VStack, HStack and BlockDiag"
            )
    check_together(*operators)
    return operators


def _common(layouts: Sequence[AnyLayout], name: str, side: str) -> AnyLayout:
    for layout in layouts[1:]:
        if layout is not layouts[0]:
            raise LayoutError(f"{name} needs operators with one {side}, not {layouts[0]} and {layout}")
    return layouts[0]
