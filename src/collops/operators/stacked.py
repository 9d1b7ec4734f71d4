"""Stacks of distributed operators: vertical, horizontal and diagonal, over stacked arrays, nested if need be."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from collops.array import StackedLayout, axpby
from collops.errors import InputError, LayoutError
from collops.operators.base import AnyLayout, Buffers, LinearOperator, check_operators

__all__ = ["StackedBlockDiag", "StackedHStack", "StackedVStack"]


class _Stack(LinearOperator):
    """The base of all stacks: which sides the operators share, and how results are collected."""

    shares_domain = shares_range = False

    def __init__(self, operators: Sequence[LinearOperator]) -> None:
        self.operators = operators = tuple(operators)
        name = type(self).__name__
        if not operators:
            raise InputError(f"{name} needs at least one operator")
        check_operators(*operators)
        super().__init__(
            _layout([op.domain for op in operators], self.shares_domain, f"{name} needs operators with one domain"),
            _layout([op.range for op in operators], self.shares_range, f"{name} needs operators with one range"),
            np.result_type(*(op.dtype for op in operators)),
            operators[0].comm,
        )
        self._inherit(operators)
        self._forwards = [op._forward for op in operators]
        self._adjoints = [op._adjoint for op in operators]
        self._added_forwards = [op._add_forward for op in operators]
        self._added_adjoints = [op._add_adjoint for op in operators]
        self._buffers = Buffers()

    def _forward(self, x: Any, out: Any) -> Any:
        out = self._new(self.range, x) if out is None else out
        sources = [x] * len(self.operators) if self.shares_domain else x.arrays
        if self.shares_range:
            return self._total(self._forwards, self._added_forwards, sources, out)
        return self._each(self._forwards, sources, out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        out = self._new(self.domain, y) if out is None else out
        sources = [y] * len(self.operators) if self.shares_range else y.arrays
        if self.shares_domain:
            return self._total(self._adjoints, self._added_adjoints, sources, out)
        return self._each(self._adjoints, sources, out)

    @staticmethod
    def _each(applies: Sequence[Any], sources: Sequence[Any], out: Any) -> Any:
        """Apply each operator to its source, and return the stack of the results."""
        parts = [apply(source, target) for apply, source, target in zip(applies, sources, out.arrays, strict=True)]
        return out if all(map(operator.is_, parts, out.arrays)) else out._like(parts)

    def _total(self, applies: Sequence[Any], adds: Sequence[Any], sources: Sequence[Any], out: Any) -> Any:
        """Apply each operator to its source, and return the sum of the results."""
        total = applies[0](sources[0], out)
        for apply, add, source in zip(applies[1:], adds[1:], sources[1:], strict=True):
            if add is not None and total.engine.mutable:
                add(source, total)
            else:
                part = apply(source, self._buffers.get(total.layout, total.layout, source, total.dtype))
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
        If their domains or communicators differ.
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

    shares_domain = True


class StackedHStack(_Stack):
    """Distributed operators side by side: :math:`y = A_0 x_0 + A_1 x_1 + …`.

    Parameters
    ----------
    operators : sequence of LinearOperator
        All with the same range, which is that of the stack. The domain is the stack of their domains.

    Raises
    ------
    LayoutError, UnsupportedTypeError
        As for :class:`StackedVStack`.

    Examples
    --------
    >>> import collops
    >>> D = collops.FirstDerivative(4)
    >>> A = collops.StackedHStack([D, 2 * D])
    >>> A.shape, A.dottest()
    ((4, 8), True)
    """

    shares_range = True


class StackedBlockDiag(_Stack):
    """Distributed operators along the diagonal: :math:`[y_0; y_1; …] = [A_0 x_0; A_1 x_1; …]`.

    Parameters
    ----------
    operators : sequence of LinearOperator
        Domain and range are the stacks of theirs.

    Raises
    ------
    LayoutError, UnsupportedTypeError
        As for :class:`StackedVStack`.

    Examples
    --------
    >>> import collops
    >>> D = collops.FirstDerivative(4)
    >>> A = collops.StackedBlockDiag([D, 2 * D])
    >>> A.shape, A.dottest()
    ((8, 8), True)
    """


def _layout(layouts: Sequence[AnyLayout], shared: bool, need: str) -> AnyLayout:
    """Return the layout of one side of a stack: that of all operators where they share it, else theirs stacked."""
    if not shared:
        return StackedLayout(layouts)
    for layout in layouts[1:]:
        if layout is not layouts[0]:
            raise LayoutError(f"{need}, not {layouts[0]} and {layout}")
    return layouts[0]
