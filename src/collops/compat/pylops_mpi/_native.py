"""From PyLops-MPI's conventions to the native ones: communicators, layouts, and operators on other layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import collops
from collops.array import DistributedArray, Layout, StackedArray, StackedLayout
from collops.comm import Communicator
from collops.comm.mpi import mpi4py_module
from collops.operators import LinearOperator
from collops.operators.algebra import product
from collops.operators.base import AnyLayout
from collops.operators.local import lift_local
from collops.operators.memory import store

__all__ = [
    "FromFunctions",
    "OnCopies",
    "Reinterpreted",
    "communicator",
    "mpi_comm",
    "reinterpret",
    "to_layout",
    "vector_layout",
    "with_layouts",
]


def mpi_comm(base_comm: Any) -> Any:
    """Return the mpi4py communicator that ``base_comm`` stands for: ``MPI.COMM_WORLD`` for ``None``."""
    if base_comm is None:
        MPI = mpi4py_module()

        return MPI.COMM_WORLD
    return base_comm


def communicator(base_comm: Any) -> Communicator:
    """Return the native communicator of an mpi4py one; the world for ``None``. Collective when first called with it.

    A communicator of all ranks in their order, such as that of a process grid, is the world: PyLops-MPI's programs
    combine objects made on either.
    """
    if base_comm is None:
        return collops.world()
    MPI = mpi4py_module()

    alike = MPI.Comm.Compare(base_comm, MPI.COMM_WORLD) in (MPI.IDENT, MPI.CONGRUENT)
    return collops.world() if alike else collops.from_mpi4py(base_comm)


def vector_layout(layout: Any, ranks: Any = None, mask: Any = None) -> Layout:
    """Return the layout of PyLops-MPI's vector of an array: every rank's ravelled part, one after the other.

    `ranks` are the numbers of the ranks in `layout`, if they are in another order there.
    """
    sizes = [layout.local_size(rank) for rank in (range(layout.ranks) if ranks is None else ranks)]
    return Layout.split(sum(sizes), layout.ranks, sizes=sizes, mask=mask)


def reinterpret(array: Any, layout: AnyLayout, comm: Communicator | None = None) -> Any:
    """Return an array on the same memory in another layout, which has as many elements on each rank. No message.

    `comm` has the same ranks in another order; by default it is the communicator of `array`.
    """
    ranks: Communicator = array.comm if comm is None else comm
    if array.layout is layout and array.comm is ranks:
        return array
    if isinstance(layout, StackedLayout):
        return StackedArray([reinterpret(part, one) for part, one in zip(array.arrays, layout.layouts, strict=True)])
    return DistributedArray(layout, ranks, array.local_array.reshape(layout.local_shape(ranks.rank)))


def to_layout(array: Any, layout: AnyLayout) -> Any:
    """Return an array in the layout that an operator takes. Collective: one exchange where the parts differ."""
    if array.layout is layout:
        return array
    if isinstance(layout, StackedLayout):
        return StackedArray([to_layout(part, one) for part, one in zip(array.arrays, layout.layouts, strict=True)])
    # Layouts that differ in their mask only, which affects reductions, have the same parts.
    return reinterpret(array, layout) if _parts(array.layout) == _parts(layout) else array.redistribute(layout)


def _parts(layout: Layout) -> tuple[Any, ...]:
    return layout.shape, layout.process_grid, layout.axes, layout.sizes


def with_layouts(operator: LinearOperator, domain: AnyLayout, range: AnyLayout) -> LinearOperator:
    """Return an operator on arrays of other layouts, which are redistributed to its own."""

    def redistribution(source: AnyLayout, target: AnyLayout) -> list[LinearOperator]:
        if source is target:
            return []
        made = FromFunctions(lambda x: x, lambda y: y, source, target, operator.dtype, operator.comm)
        made.capturable = True
        return [made]

    return product(*redistribution(operator.range, range), operator, *redistribution(domain, operator.domain))


class OnCopies(LinearOperator):
    """A local operator that every rank applies to its own copy of one vector."""

    def __init__(self, op: Any, comm: Communicator) -> None:
        self.local = lift_local(op)
        rows, columns = self.local.shape
        layouts = (Layout.replicated(columns, comm.size), Layout.replicated(rows, comm.size))
        super().__init__(*layouts, self.local.dtype, comm)
        self.capturable = getattr(self.local, "capturable", True)
        self.clinear = getattr(self.local, "clinear", True)

    def _forward(self, x: Any, out: Any) -> Any:
        out = self._new(self.range, x) if out is None else out
        self.local.forward_local(x.local_array, out.local_array)
        return out

    def _adjoint(self, y: Any, out: Any) -> Any:
        out = self._new(self.domain, y) if out is None else out
        self.local.adjoint_local(y.local_array, out.local_array)
        return out


class Reinterpreted(LinearOperator):
    """An operator on the same memory in other layouts, such as PyLops-MPI's vectors; see :func:`reinterpret`."""

    def __init__(
        self, operator: LinearOperator, domain: AnyLayout, range: AnyLayout, comm: Communicator | None = None
    ) -> None:
        super().__init__(domain, range, operator.dtype, operator.comm if comm is None else comm)
        self.operator = operator
        self.capturable = operator.capturable
        self.clinear = operator.clinear

    def _forward(self, x: Any, out: Any) -> Any:
        out = self._new(self.range, x) if out is None else out
        inner = self.operator
        inner._forward(reinterpret(x, inner.domain, inner.comm), reinterpret(out, inner.range, inner.comm))
        return out

    def _adjoint(self, y: Any, out: Any) -> Any:
        out = self._new(self.domain, y) if out is None else out
        inner = self.operator
        inner._adjoint(reinterpret(y, inner.range, inner.comm), reinterpret(out, inner.domain, inner.comm))
        return out


class FromFunctions(LinearOperator):
    """An operator given by two functions of native arrays, whose results are redistributed to `range` or `domain`."""

    capturable = False  # foreign code may read values on the host

    def __init__(
        self,
        matvec: Callable[[Any], Any],
        rmatvec: Callable[[Any], Any],
        domain: AnyLayout,
        range: AnyLayout,
        dtype: Any,
        comm: Communicator,
    ) -> None:
        super().__init__(domain, range, dtype, comm)
        self._matvec, self._rmatvec = matvec, rmatvec

    def _forward(self, x: Any, out: Any) -> Any:
        return _filled(to_layout(self._matvec(x), self.range), x, out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return _filled(to_layout(self._rmatvec(y), self.domain), y, out)


def _filled(result: Any, given: Any, out: Any) -> Any:
    """Return a result, in `out` if that is given, and never in the memory of the input."""
    if out is None:
        shared = {id(leaf.local_array) for leaf in given.leaves}
        return result.copy() if any(id(leaf.local_array) in shared for leaf in result.leaves) else result
    for target, part in zip(out.leaves, result.leaves, strict=True):
        store(part.local_array, target.local_array)
    return out
