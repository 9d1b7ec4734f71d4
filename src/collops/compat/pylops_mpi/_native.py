"""Conversion from PyLops-MPI's conventions to native communicators, layouts, and operators."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsIndex, TypeAlias

from numpy.typing import DTypeLike

import collops
from collops import BlockDiag, Communicator, Layout, LinearOperator, StackedArray, StackedLayout
from collops.extend.arrays import Array
from collops.extend.communication import alone, mpi4py_module
from collops.extend.operators import AnyLayout, product, reinterpret, store

MpiComm: TypeAlias = Any
"""A communicator of mpi4py; ``None`` for ``MPI.COMM_WORLD``."""


def mpi_comm(base_comm: MpiComm) -> MpiComm:
    """Return an mpi4py communicator: `base_comm`, or ``MPI.COMM_WORLD`` for ``None``."""
    return mpi4py_module().COMM_WORLD if base_comm is None else base_comm


def kind_of(value: object) -> str:
    """Return the name of a value's type for an error, with a remedy for objects of the real PyLops-MPI."""
    kind = type(value)
    if kind.__module__.partition(".")[0] != "pylops_mpi":
        return kind.__name__
    return f"a {kind.__name__} of the real PyLops-MPI (call install() before the program imports pylops_mpi)"


def communicator(base_comm: MpiComm) -> Communicator:
    """Return the native communicator of an mpi4py communicator, or the world for ``None``. First call collective.

    A communicator of all ranks in their order is mapped to the world, since programs combine objects on both.
    """
    if base_comm is None:
        return collops.world()
    MPI = mpi4py_module()
    known = isinstance(base_comm, MPI.Intracomm)  # otherwise from_mpi4py raises an error
    alike = known and MPI.Comm.Compare(base_comm, MPI.COMM_WORLD) in (MPI.IDENT, MPI.CONGRUENT)
    return collops.world() if alike else collops.from_mpi4py(base_comm)


def vector_layout(
    layout: Any, ranks: Iterable[int] | None = None, mask: Sequence[SupportsIndex] | None = None
) -> Layout:
    """Return the layout of PyLops-MPI's vector of an array: the ravelled parts of all ranks in order.

    `ranks` has each rank's number in `layout`, if `layout` orders the ranks differently.
    """
    sizes = [layout.local_size(rank) for rank in (range(layout.ranks) if ranks is None else ranks)]
    return Layout.split(sum(sizes), layout.ranks, sizes=sizes, mask=mask)


def to_layout(array: Array, layout: AnyLayout) -> Any:
    """Redistribute an array to `layout`. Collective: one exchange if the parts differ."""
    if array.layout is layout:
        return array
    if isinstance(layout, StackedLayout):
        return StackedArray(
            [to_layout(part, target) for part, target in zip(array.arrays, layout.layouts, strict=True)]
        )
    # Layouts that differ only in their mask, which affects reductions, have the same parts.
    parts = operator.attrgetter("shape", "process_grid", "axes", "sizes")
    return reinterpret(array, layout) if parts(array.layout) == parts(layout) else array.redistribute(layout)


def with_layouts(op: LinearOperator, domain: AnyLayout, range: AnyLayout) -> LinearOperator:
    """Return `op` with another domain and range; it redistributes its input and its result."""

    def redistribution(source: AnyLayout, target: AnyLayout) -> list[LinearOperator]:
        if source is target:
            return []
        return [FromFunctions(lambda x: x, lambda y: y, source, target, op.dtype, op.comm, capturable=True)]

    return product(*redistribution(op.range, range), op, *redistribution(domain, op.domain))


class OnCopies(BlockDiag):
    """A local operator that every rank applies to its copy of a replicated vector."""

    def __init__(self, op: object, comm: Communicator) -> None:
        super().__init__([op], alone())
        rows, columns = (Layout.replicated(extent, comm.size) for extent in self.shape)
        LinearOperator.__init__(self, columns, rows, self.dtype, comm)  # the same work on all ranks


class FromFunctions(LinearOperator):
    """An operator defined by two functions of native arrays, whose results are redistributed to `range` or `domain`.

    It is not capturable by default, since a user's function may read values on the host.
    """

    def __init__(
        self,
        matvec: Callable[[Array], Array],
        rmatvec: Callable[[Array], Array],
        domain: AnyLayout,
        range: AnyLayout,
        dtype: DTypeLike,
        comm: Communicator,
        capturable: bool = False,
    ) -> None:
        super().__init__(domain, range, dtype, comm)
        self._matvec, self._rmatvec, self.capturable = matvec, rmatvec, capturable

    def _forward(self, x: Array, out: Array | None) -> Array:
        return filled(to_layout(self._matvec(x), self.range), x, out)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        return filled(to_layout(self._rmatvec(y), self.domain), y, out)


def filled(result: Array, source: Array, out: Array | None) -> Array:
    """Return a result that does not share memory with the input, in `out` if it is not None."""
    if out is None:
        shared = {id(leaf.local_array) for leaf in source.leaves}
        return result.copy() if any(id(leaf.local_array) in shared for leaf in result.leaves) else result
    for target, part in zip(out.leaves, result.leaves, strict=True):
        store(part.local_array, target.local_array)
    return out
