"""Operators on ravelled arrays, so that N-dimensional operators stand in stacks beside those whose layouts are flat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collops.array import DistributedArray, StackedArray, StackedLayout
from collops.operators.base import AnyLayout, LinearOperator

__all__ = ["Flat", "flattened"]


def flattened(op: LinearOperator) -> LinearOperator:
    """Return the operator between ravelled arrays; the operator itself if its layouts are flat already.

    Parameters
    ----------
    op : LinearOperator
        Of any layouts.

    Raises
    ------
    LayoutError
        If its domain or range cannot be ravelled without moving data between ranks.
    """
    domain, range_ = _flat_layout(op.domain), _flat_layout(op.range)
    return op if domain is op.domain and range_ is op.range else Flat(op, domain, range_)


class Flat(LinearOperator):
    """An operator whose arrays are seen as vectors. Views only: nothing is copied and no message is sent.

    Parameters
    ----------
    operator : LinearOperator
        What is applied.
    domain, range : Layout or StackedLayout
        Its own layouts with every array ravelled in C order.
    """

    def __init__(self, operator: LinearOperator, domain: AnyLayout, range: AnyLayout) -> None:
        super().__init__(domain, range, operator.dtype, operator.comm)
        self.operator = operator
        self.capturable = operator.capturable
        self.clinear = operator.clinear
        if operator._add_forward is not None:
            self._add_forward = self._adding(operator._add_forward, operator.domain, operator.range)
        if operator._add_adjoint is not None:
            self._add_adjoint = self._adding(operator._add_adjoint, operator.range, operator.domain)

    def _forward(self, x: Any, out: Any) -> Any:
        inner = self.operator
        target = _writable_view(out, inner.range)
        result = inner._forward(_seen_in(x, inner.domain), target)
        return out if target is not None else _seen_in(result, self.range)

    def _adjoint(self, y: Any, out: Any) -> Any:
        inner = self.operator
        target = _writable_view(out, inner.domain)
        result = inner._adjoint(_seen_in(y, inner.range), target)
        return out if target is not None else _seen_in(result, self.domain)

    @staticmethod
    def _adding(add: Callable[[Any, Any], None], given: AnyLayout, wanted: AnyLayout) -> Callable[[Any, Any], None]:
        return lambda source, target: add(_seen_in(source, given), _seen_in(target, wanted))


def _flat_layout(layout: AnyLayout) -> AnyLayout:
    if isinstance(layout, StackedLayout):
        return StackedLayout([_flat_layout(part) for part in layout.layouts])
    return layout if layout.ndim == 1 else layout.reshape(layout.size)


def _writable_view(out: Any, layout: AnyLayout) -> Any:
    """Return `out` in another layout; ``None`` where nothing is to be written."""
    return None if out is None else _seen_in(out, layout)


def _seen_in(array: Any, layout: AnyLayout) -> Any:
    """Return an array in a layout that differs from its own in shape only; contiguous memory is shared."""
    if array.layout is layout:
        return array
    if isinstance(layout, StackedLayout):
        return StackedArray([_seen_in(part, wanted) for part, wanted in zip(array.arrays, layout.layouts, strict=True)])
    return DistributedArray(layout, array.comm, array.local_array.reshape(layout.local_shape(array.comm.rank)))
