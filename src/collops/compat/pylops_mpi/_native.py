"""What stands between PyLops-MPI's conventions and this package: communicators, layouts, and arrays seen in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import collops
from collops.array import DistributedArray, Layout, StackedArray, StackedLayout
from collops.comm import Communicator
from collops.operators import LinearOperator
from collops.operators.algebra import product
from collops.operators.base import AnyLayout
from collops.operators.local import lift_local
from collops.operators.memory import store

__all__ = ["Moved", "OnCopies", "Relabelled", "Translated", "between", "brought", "communicator", "relabelled"]


def communicator(base_comm: Any) -> Communicator:
    """Return the communicator of an mpi4py one; the world for ``None``. Collective when first called with it.

    A communicator of all ranks in their order, such as that of a process grid, is the world: what is made on either
    meets without a thought in PyLops-MPI's programs.
    """
    if base_comm is None:
        return collops.world()
    from mpi4py import MPI

    alike = MPI.Comm.Compare(base_comm, MPI.COMM_WORLD) in (MPI.IDENT, MPI.CONGRUENT)
    return collops.world() if alike else collops.from_mpi4py(base_comm)


def relabelled(array: Any, layout: AnyLayout, comm: Communicator | None = None) -> Any:
    """Return an array whose local parts are seen in another layout: the same memory, whatever the layouts mean.

    Parameters
    ----------
    array : DistributedArray or StackedArray
        What is seen.
    layout : Layout or StackedLayout
        With as many elements on each rank.
    comm : Communicator, optional
        The same ranks in another order; by default those of `array`.
    """
    ranks: Communicator = array.comm if comm is None else comm
    if array.layout is layout and array.comm is ranks:
        return array
    if isinstance(layout, StackedLayout):
        return StackedArray([relabelled(part, one) for part, one in zip(array.arrays, layout.layouts, strict=True)])
    return DistributedArray(layout, ranks, array.local_array.reshape(layout.local_shape(ranks.rank)))


def brought(array: Any, layout: AnyLayout) -> Any:
    """Return an array in the layout that an operator wants; a message is sent only where a rank lacks something."""
    if array.layout is layout:
        return array
    if isinstance(layout, StackedLayout):
        return StackedArray([brought(part, one) for part, one in zip(array.arrays, layout.layouts, strict=True)])
    # Layouts that differ in their mask only, which decides about reductions, are views of each other.
    return relabelled(array, layout) if _held_alike(array.layout, layout) else array.redistribute(layout)


def _held_alike(one: Layout, other: Layout) -> bool:
    return (one.shape, one.process_grid, one.axes, one.sizes) == (
        other.shape,
        other.process_grid,
        other.axes,
        other.sizes,
    )


def between(operator: LinearOperator, domain: AnyLayout, range: AnyLayout) -> LinearOperator:
    """Return an operator on arrays of other layouts, which are brought to its own."""
    factors = [operator]
    if operator.range is not range:
        factors.insert(0, Moved(operator.range, range, operator))
    if operator.domain is not domain:
        factors.append(Moved(domain, operator.domain, operator))
    return product(*factors)


class Moved(LinearOperator):
    """The identity between two layouts of one array.

    Parameters
    ----------
    domain, range : Layout or StackedLayout
        Of one shape.
    like : LinearOperator
        Gives dtype and communicator.
    """

    def __init__(self, domain: AnyLayout, range: AnyLayout, like: LinearOperator) -> None:
        super().__init__(domain, range, like.dtype, like.comm)

    def _forward(self, x: Any, out: Any) -> Any:
        return _filled(brought(x, self.range), x, out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return _filled(brought(y, self.domain), y, out)


class Relabelled(LinearOperator):
    """An operator on the same memory in other layouts: PyLops-MPI's vectors of ravelled blocks.

    Parameters
    ----------
    operator : LinearOperator
        What is applied.
    domain, range : Layout or StackedLayout
        With as many elements on each rank as its own.
    comm : Communicator, optional
        The ranks of these layouts, if the operator has them in another order.
    """

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
        inner._forward(relabelled(x, inner.domain, inner.comm), relabelled(out, inner.range, inner.comm))
        return out

    def _adjoint(self, y: Any, out: Any) -> Any:
        out = self._new(self.domain, y) if out is None else out
        inner = self.operator
        inner._adjoint(relabelled(y, inner.range, inner.comm), relabelled(out, inner.domain, inner.comm))
        return out


class OnCopies(LinearOperator):
    """A local operator that every rank applies to its own copy of one vector.

    Parameters
    ----------
    op : operator
        What :func:`collops.operators.lift_local` takes; equal on all ranks.
    comm : Communicator
        The ranks.
    """

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


class Translated(LinearOperator):
    """An operator that is known by what its ``matvec`` and ``rmatvec`` do to arrays of this package.

    Parameters
    ----------
    matvec, rmatvec : callable
        From an array to a new one.
    domain, range : Layout or StackedLayout
        In which the solver holds its arrays; results are brought to them.
    dtype : dtype
        Of the coefficients.
    comm : Communicator
        The ranks.
    """

    capturable = False  # nobody knows what foreign code does

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
        return _filled(brought(self._matvec(x), self.range), x, out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return _filled(brought(self._rmatvec(y), self.domain), y, out)


def _filled(result: Any, given: Any, out: Any) -> Any:
    """Return a result in `out` where that is wanted, and never the input's own memory."""
    if out is None:
        shared = {id(leaf.local_array) for leaf in given.leaves}
        return result.copy() if any(id(leaf.local_array) in shared for leaf in result.leaves) else result
    for target, part in zip(out.leaves, result.leaves, strict=True):
        store(part.local_array, target.local_array)
    return out
