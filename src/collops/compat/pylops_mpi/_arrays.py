"""PyLops-MPI's arrays, split along one axis or replicated, and stacked arrays."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import Any, Self, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

import collops
from collops import Communicator, Layout
from collops.compat.pylops_mpi._messages import DistributedMixIn
from collops.compat.pylops_mpi._native import MpiComm, communicator, kind_of, mpi_comm, to_layout, vector_layout
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.extend.arrays import Array, LocalArray, as_shape, check_engine
from collops.extend.communication import mpi4py_module
from collops.extend.engines import engine_of
from collops.extend.operators import AnyLayout, reinterpret


class Partition(Enum):
    """Replicated, with or without a broadcast on assignment, or split; natively see :class:`collops.Layout`."""

    BROADCAST = "Broadcast"
    UNSAFE_BROADCAST = "UnsafeBroadcast"
    SCATTER = "Scatter"


AnyArray: TypeAlias = Any
"""A :class:`DistributedArray` or a :class:`StackedDistributedArray`."""

_COPIES = (Partition.BROADCAST, Partition.UNSAFE_BROADCAST)


def local_split(
    global_shape: Sequence[SupportsIndex] | SupportsIndex, base_comm: MpiComm, partition: Partition, axis: int
) -> tuple[int, ...]:
    """Return the shape of this rank's part."""
    comm = communicator(base_comm)
    return _layout(as_shape(global_shape), comm.size, _as_partition(partition), axis).local_shape(comm.rank)


def subcomm_split(mask: Sequence[SupportsIndex], comm: Any = None) -> Communicator | MpiComm:
    """Return a new mpi4py communicator of the ranks with the same entry in `mask` as this one. Collective.

    The caller frees it. If `comm` is from ``initialize_nccl_comm``, the result is such a communicator, too.
    """
    if isinstance(comm, Communicator):
        return comm.subgroup(tuple(map(operator.index, mask)))
    comm = mpi_comm(comm)
    return comm.Split(color=operator.index(mask[comm.Get_rank()]), key=comm.Get_rank())


@cache
def _key_of_groups() -> int:
    """Return the attribute key for the groups, by mask, that are cached on an mpi4py communicator and freed with it."""

    def free(comm: MpiComm, key: int, groups: dict[tuple[int, ...], MpiComm]) -> None:
        for group in groups.values():
            if group != mpi4py_module().COMM_NULL:
                group.Free()

    return mpi4py_module().Comm.Create_keyval(delete_fn=free)


def _cached_group(mask: Sequence[SupportsIndex], comm: MpiComm) -> MpiComm:
    """Return :func:`subcomm_split` of `comm` from a cache. The first call with a mask is collective."""
    groups: dict[tuple[int, ...], MpiComm] | None = comm.Get_attr(_key_of_groups())
    if groups is None:
        groups = {}
        comm.Set_attr(_key_of_groups(), groups)
    group = groups.get(key := tuple(map(operator.index, mask)))
    if group is None or group == mpi4py_module().COMM_NULL:  # the program has freed it
        group = groups[key] = subcomm_split(mask, comm)
    return group


def _forwarded(path: str, doc: str) -> Any:
    return property(operator.attrgetter(path), doc=doc)


def _unary(function: Callable[[Array], Array], doc: str) -> Any:
    def method(self: _Array) -> _Array:
        return self._map(function)

    method.__doc__ = doc
    return method


def _binary(function: Callable[[Array, Array], Array]) -> Any:
    return lambda self, other: self._map(function, other)


class _Array:
    """Arithmetic and reductions of single and stacked arrays, implemented by their native arrays.

    ``_map(function, *other)`` applies a function to the native array, and to another operand if any, and returns a new
    array; ``_in_place(function, other)`` changes this array. Neither communicates.
    """

    __array_ufunc__ = None  # makes NumPy call the methods of this class
    native: Any
    _map: Any
    _in_place: Any
    _check_alike: Any  # raises unless the argument, an array of the same class, can be combined with this one

    dtype = _forwarded("native.dtype", "Element type.")
    base_comm = property(lambda self: mpi_comm(self._base_comm), doc="The mpi4py communicator of the ranks.")

    __neg__ = _unary(operator.neg, "Return the negative.")
    __add__ = _binary(operator.add)
    __sub__ = _binary(operator.sub)
    __mul__ = __rmul__ = _binary(operator.mul)
    conj = _unary(operator.methodcaller("conj"), "Return the complex conjugate.")
    copy = _unary(operator.methodcaller("copy"), "Return a copy.")
    zeros_like = _unary(collops.zeros_like, "Return zeros with the same layout and mask.")
    empty_like = _unary(collops.empty_like, "Return an uninitialised array with the same layout and mask.")

    def __iadd__(self, other: AnyArray) -> Self:
        return self._in_place(operator.iadd, other)

    def __isub__(self, other: AnyArray) -> Self:
        return self._in_place(operator.isub, other)

    def _inner(self, other: AnyArray, vdot: bool) -> complex:
        if not isinstance(other, DistributedArray if isinstance(self, DistributedArray) else StackedDistributedArray):
            raise UnsupportedTypeError(
                f"an inner product needs two arrays of one class, not {type(self).__name__} and {type(other).__name__}"
            )
        self._check_alike(other)
        x, y = _shares(self), _shares(other)
        value = (x.vdot(y) if vdot else x.dot(y)).item()
        return complex(value) if np.result_type(self.dtype, other.dtype).kind == "c" else value

    def _vector_norm(self, ord: float | None, *axis: int) -> Any:
        if ord in ("fro", "nuc"):
            raise InputError(f"norm-{ord} not possible for vectors")
        return self.native.norm(ord, *axis)


class DistributedArray(DistributedMixIn, _Array):
    """An array split along one axis, or replicated; see PyLops-MPI for the parameters and methods.

    It wraps `native`, a :class:`collops.DistributedArray` on the same memory. With ``BROADCAST``, an assignment
    broadcasts rank 0's values; with ``UNSAFE_BROADCAST`` it does not communicate. `local_array` is not copied; it
    determines dtype and engine. Device arrays use NCCL with or without `base_comm_nccl`.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> x = pylops_mpi.DistributedArray(global_shape=4)
    >>> x[:] = 2.0
    >>> x.asarray()
    array([2., 2., 2., 2.])
    """

    partition = Partition.SCATTER
    axis = 0
    mask: Sequence[SupportsIndex] | None = None
    base_comm_nccl: Communicator | None = None

    def __init__(
        self,
        global_shape: Sequence[SupportsIndex] | SupportsIndex,
        base_comm: MpiComm = None,
        base_comm_nccl: Communicator | None = None,
        partition: Partition = Partition.SCATTER,
        axis: int = 0,
        local_array: LocalArray | None = None,
        local_shapes: Sequence[Sequence[SupportsIndex] | SupportsIndex] | None = None,
        mask: Sequence[SupportsIndex] | None = None,
        engine: str | None = "numpy",
        dtype: DTypeLike = np.float64,
    ) -> None:
        shape, partition = as_shape(global_shape), _as_partition(partition)
        axis = _axis(axis, shape)
        if local_array is not None:
            engine = engine_of(local_array).name
        if base_comm_nccl is not None and engine != "cupy":
            raise InputError(f"NCCL Communicator only works with engine `cupy`, not with {engine!r}")
        comm = communicator(base_comm)
        layout = _layout(shape, comm.size, partition, axis, local_shapes, mask)
        expected = layout.local_shape(comm.rank)
        if local_array is None:
            self.native = collops.empty(layout, comm=comm, dtype=dtype, engine=engine or "numpy")
        elif tuple(local_array.shape) != expected:
            raise InputError(f"local_array has shape {tuple(local_array.shape)}, expected {expected}")
        else:
            self.native = collops.DistributedArray(layout, comm, local_array)
        self.partition, self.axis, self.mask = partition, axis, mask
        self._base_comm, self.base_comm_nccl = base_comm, base_comm_nccl
        self._engine = self.native.engine.name

    def _like(self, array: Array, **changes: object) -> Self:
        """Wrap another native array with the attributes of this array, except for `changes`."""
        result = object.__new__(type(self))
        vars(result).update(vars(self), native=array, **changes)
        return result

    @classmethod
    def to_dist(
        cls,
        x: LocalArray,
        base_comm: MpiComm = None,
        base_comm_nccl: Communicator | None = None,
        partition: Partition = Partition.SCATTER,
        axis: int = 0,
        local_shapes: Sequence[Sequence[SupportsIndex] | SupportsIndex] | None = None,
        mask: Sequence[SupportsIndex] | None = None,
    ) -> Self:
        """Distribute or replicate the global array `x`, which every rank passes."""
        engine = engine_of(x).name
        result = cls(x.shape, base_comm, base_comm_nccl, partition, axis, None, local_shapes, mask, engine, x.dtype)
        result[:] = x[result.native.layout.slices(result.rank)]
        return result

    global_shape = _forwarded("native.shape", "Shape of the global array.")
    engine = _forwarded("_engine", '``"numpy"`` or ``"cupy"``.')
    local_array = _forwarded("native.local_array", "This rank's part.")
    local_shape = _forwarded("native.local_array.shape", "Shape of this rank's part.")
    ndim = _forwarded("native.ndim", "Number of axes.")
    rank = _forwarded("native.comm.rank", "Number of this rank.")
    size = _forwarded("native.comm.size", "Number of ranks.")

    @property
    def local_shapes(self) -> list[tuple[int, ...]]:
        """Shape of every rank's part. No communication."""
        layout = self.native.layout
        return [layout.local_shape(rank) for rank in range(layout.ranks)]

    @property
    def sub_comm(self) -> MpiComm:
        """The mpi4py communicator of this rank's group.

        With a mask, the first access is collective. All arrays on `base_comm` with this mask share the communicator,
        which is freed with `base_comm`.
        """
        return self.base_comm if self.mask is None else _cached_group(self.mask, self.base_comm)

    def __getitem__(self, index: Any) -> LocalArray:
        return self.local_array[index]

    def __setitem__(self, index: Any, value: LocalArray) -> None:
        """Assign to this rank's part. With ``BROADCAST`` collective: broadcasts the values of rank 0.

        Other ranks may then pass ``None``.
        """
        shared = self.partition is Partition.BROADCAST and self.size > 1
        if value is not None or not shared or self.rank == 0:
            self.local_array[index] = value
        if shared:
            part = self.native.engine.xp.asarray(self.local_array[index])
            self.local_array[index] = self.native.comm.bcast(part, root=0, out=part)

    def _map(self, function: Callable[..., Array], *other: AnyArray | complex) -> Self:
        if not other:
            return self._like(function(self.native))
        if isinstance(other[0], DistributedArray):
            self._check_alike(other[0])
            return self._like(function(self.native, other[0].native))
        # A number, or a NumPy array that is combined with this rank's part. Double-precision NumPy scalars, unlike
        # Python numbers, would promote single precision.
        operand = other[0].item() if isinstance(other[0], np.generic) else other[0]
        if hasattr(operand, "dtype"):
            check_engine(self.native, operand)
        local = function(self.local_array, operand)
        return self._like(collops.DistributedArray(self.native.layout, self.native.comm, local))

    def _in_place(self, function: Callable[[Array, Any], Array], other: AnyArray | complex) -> Self:
        if isinstance(other, DistributedArray):
            self._check_alike(other)
            other = other.native
        self.native = function(self.native, other)
        return self

    def _check_alike(self, other: Any) -> None:
        if self.partition is not other.partition:
            raise LayoutError(
                f"Partition of both the arrays must be same: {self.partition} and {other.partition} cannot be combined"
            )
        layout, other_layout = self.native.layout, other.native.layout
        if layout is not other_layout and layout.without_mask() is other_layout.without_mask():
            raise LayoutError(f"Mask of both the arrays must be same: {self.mask} and {other.mask} cannot be combined")
        if layout is not other_layout:
            raise LayoutError(
                f"Local Array Shape Mismatch - {self.local_shape} != {other.local_shape} on rank {self.rank}; "
                f"the arrays have different layouts:\n  {layout}\n  {other_layout}"
            )

    def add(self, dist_array: AnyArray | complex) -> Self:
        """Return the sum."""
        return self + dist_array

    def iadd(self, dist_array: AnyArray | complex) -> Self:
        """Add in place."""
        return self.__iadd__(dist_array)

    def multiply(self, dist_array: AnyArray | complex) -> Self:
        """Return the elementwise product with an array or a number."""
        return self * dist_array

    def dot(self, dist_array: AnyArray | complex, vdot: bool = False) -> complex:
        """Return the inner product, with this array conjugated if `vdot`. Collective: one scalar allreduce."""
        return self._inner(dist_array, vdot)

    def norm(self, ord: float | None = None, axis: int | None = None) -> float | LocalArray:
        """Return a vector norm of all elements, or an array of norms along `axis`. Collective."""
        if axis is None:
            return self._vector_norm(ord).item()
        if axis >= self.ndim:
            raise InputError(f"axis={axis} is out of range for array of dimension {self.ndim}")
        result = self._vector_norm(ord, axis)
        return result.gather() if isinstance(result, collops.DistributedArray) else result

    def asarray(self, masked: bool = False) -> LocalArray:
        """Gather the global array, or the part of this rank's group if `masked`. Collective."""
        if self.partition in _COPIES:
            return self.local_array
        layout, comm = self.native.layout, self.native.comm
        if not masked or layout.mask is None:
            return self.native.gather()
        group = comm.subgroup(layout.mask)
        sizes = [
            n for n, id_ in zip(layout.sizes[self.axis], layout.mask, strict=True) if id_ == layout.mask[comm.rank]
        ]
        shape = [sum(sizes) if a == self.axis else n for a, n in enumerate(layout.shape)]
        part = Layout.split(shape, group.size, self.axis, sizes=sizes)
        return collops.DistributedArray(part, group, self.local_array).gather()

    def redistribute(self, axis: int) -> Self:
        """Return the array split along another axis. Collective: one exchange."""
        axis = _axis(axis, self.global_shape)
        if self.partition in _COPIES or axis == self.axis:
            return self
        target = _layout(self.global_shape, self.size, self.partition, axis, None, self.mask)
        return self._like(self.native.redistribute(target), axis=axis)

    def ravel(self, order: Any = "C") -> Self:
        """Return the vector of the ravelled parts of all ranks. No communication."""
        layout, local = self.native.layout, self.local_array.ravel(order)
        if self.partition in _COPIES:
            flat = Layout.replicated(layout.size, layout.ranks, mask=self.mask)
        else:
            flat = vector_layout(layout, mask=self.mask)
        return self._like(collops.DistributedArray(flat, self.native.comm, local), axis=0)

    def reshape(self, local_shape: Sequence[SupportsIndex] | SupportsIndex, axis: int | None = 0) -> Self:
        """Reshape this rank's part; the parts are joined along `axis`.

        Collective: two metadata messages, since each rank passes its own shape. If the parts do not fit together, all
        ranks raise a ValueError.
        """
        comm, shape = self.native.comm, as_shape(local_shape)
        axis = _axis(axis or 0, shape)
        wrong = math.prod(shape) != self.local_array.size
        comm.check(LayoutError(f"cannot reshape {self.local_shape} to {shape}") if wrong else None)
        shapes = [tuple(part) for part in comm.allgather_metadata(list(shape))]
        copies = self.partition in _COPIES
        cross_sections = set(shapes) if copies else {part[:axis] + part[axis + 1 :] for part in shapes}
        if len(cross_sections) > 1:
            rule = (
                f"be identical for {_COPIES[0]} and {_COPIES[1]}" if copies else f"match on every axis except {axis=}"
            )
            listing = " and ".join(map(str, sorted(set(shapes))))
            raise LayoutError(f"All local shapes must {rule}, not {listing}")
        if copies:
            layout = Layout.replicated(shape, comm.size, mask=self.mask)
        else:
            sizes = [part[axis] for part in shapes]
            global_shape = (*shape[:axis], sum(sizes), *shape[axis + 1 :])
            layout = Layout.split(global_shape, comm.size, axis, sizes=sizes, mask=self.mask)
        return self._like(reinterpret(self.native, layout), axis=axis)

    def add_ghost_cells(self, cells_front: int | None = None, cells_back: int | None = None) -> LocalArray:
        """Return this rank's part extended by its neighbours' cells. Collective: one exchange, one metadata message.

        Each rank chooses its numbers of cells. Cells are not added at the ends of the array, and may come from several
        ranks.
        """
        requested, widths = [(0, 0)] * self.ndim, [(0, 0)] * self.ndim
        requested[self.axis] = cells_front or 0, cells_back or 0
        front, back = zip(*self.native.comm.allgather_metadata(list(requested[self.axis])), strict=True)
        widths[self.axis] = max(front), max(back)
        extended = self.native.halo([width for pair in widths for width in pair])
        return extended.local_array[halo_region(self.native.layout, self.rank, requested, widths)]

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self.copy()

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        placed = self._base_comm, self.base_comm_nccl, self.partition, self.axis
        return type(self), (self.global_shape, *placed, self.local_array, self.local_shapes, self.mask)

    def __repr__(self) -> str:
        return (
            f"<DistributedArray with global shape={self.global_shape}, local shape={self.local_shape}, "
            f"dtype={self.dtype}, processes={list(range(self.size))}>"
        )


class StackedDistributedArray(_Array):
    """Several arrays, possibly stacked themselves, as one vector, see :class:`collops.StackedArray`.

    `native` is a stacked array of the same parts, which are not copied.
    """

    def __init__(self, distarrays: Sequence[AnyArray], base_comm: MpiComm = None) -> None:
        self.distarrays = [checked_array(part) for part in distarrays]
        self.narrays = len(self.distarrays)
        if not self.distarrays:
            raise InputError("a stacked array must have at least one part")
        engines = [part.engine for part in self.distarrays]
        if len(set(engines)) > 1:
            raise InputError(f"Stacked arrays have mismatching engines: {engines}")
        self._base_comm = self.distarrays[0]._base_comm if base_comm is None else base_comm

    engine = property(lambda self: self.distarrays[0].engine, doc='``"numpy"`` or ``"cupy"``.')
    rank = property(lambda self: self.base_comm.Get_rank(), doc="Number of this rank.")
    size = property(lambda self: self.base_comm.Get_size(), doc="Number of ranks.")

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Sum of the parts' shapes, axis by axis: the number of elements only if all parts are vectors."""
        return tuple(map(sum, zip(*(part.global_shape for part in self.distarrays), strict=False)))

    @property
    def native(self) -> collops.StackedArray:
        """The same parts as :class:`collops.StackedArray`."""
        return collops.StackedArray([part.native for part in self.distarrays])

    def __getitem__(self, index: Any) -> AnyArray:
        return self.distarrays[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        part = self.distarrays[index]
        if isinstance(part, StackedDistributedArray):
            for number in range(part.narrays):
                part[number] = value[number]
        else:
            part[:] = value[:] if isinstance(value, DistributedArray) else value

    def asarray(self) -> LocalArray:
        """Gather the elements of all parts in one vector. Collective."""
        xp = self.native.engine.xp
        return xp.hstack([part.asarray().ravel() for part in self.distarrays])

    def _pairs(self, other: AnyArray | complex) -> zip[tuple[AnyArray, AnyArray | complex]]:
        """Pair each part with the part of another stacked array, or with a number."""
        if not isinstance(other, StackedDistributedArray):
            return zip(self.distarrays, [other] * self.narrays, strict=True)
        self._check_alike(other)
        return zip(self.distarrays, other.distarrays, strict=True)

    def _check_alike(self, other: StackedDistributedArray) -> None:
        if other.narrays != self.narrays:
            raise LayoutError(f"Stacked arrays must be composed of as many arrays: {self.narrays} and {other.narrays}")
        for number, (a, b) in enumerate(zip(self.distarrays, other.distarrays, strict=True)):
            if a.global_shape != b.global_shape:
                raise LayoutError(
                    f"Stacked arrays {number} have different global shape: {a.global_shape} / {b.global_shape}"
                )
            a._check_alike(b)

    def _map(self, function: Callable[..., Array], *other: AnyArray | complex) -> Self:
        if not other:
            return type(self)([part._map(function) for part in self.distarrays], self._base_comm)
        return type(self)([part._map(function, value) for part, value in self._pairs(other[0])], self._base_comm)

    def _in_place(self, function: Callable[[Array, Any], Array], other: AnyArray | complex) -> Self:
        for part, value in self._pairs(other):
            part._in_place(function, value)
        return self

    def add(self, stacked_array: AnyArray | complex) -> Self:
        """Return the sum."""
        return self + stacked_array

    def iadd(self, stacked_array: AnyArray | complex) -> Self:
        """Add in place."""
        return self.__iadd__(stacked_array)

    def multiply(self, stacked_array: AnyArray | complex) -> Self:
        """Return the elementwise product with a stacked array or a number."""
        return self * stacked_array

    def dot(self, stacked_array: AnyArray | complex, vdot: bool = False) -> complex:
        """Return the inner product, with this array conjugated if `vdot`. Collective: one scalar allreduce."""
        return 0.0 + self._inner(stacked_array, vdot)  # a float also for integers

    def norm(self, ord: float | None = None) -> float:
        """Return a norm of the vector of all elements. Collective: one scalar allreduce."""
        return self._vector_norm(ord).item()

    def __repr__(self) -> str:
        parts = "".join(f"\n{part!r}" for part in self.distarrays)
        return f"<StackedDistributedArray with {self.narrays} distributed arrays: {parts}>"


def checked_array(x: object) -> AnyArray:
    """Return `x`; raise an UnsupportedTypeError unless it is a PyLops-MPI array."""
    if isinstance(x, _Array):
        return x
    raise UnsupportedTypeError(f"expected a DistributedArray or a StackedDistributedArray, not {kind_of(x)}")


def _shares(x: AnyArray) -> Array:
    """Return the native array for inner products; for masked replicas, this rank's share of the first axis.

    As in PyLops-MPI, each group adds up the shares of its ranks. No communication.
    """
    if isinstance(x, StackedDistributedArray):
        return collops.StackedArray([_shares(part) for part in x.distarrays])
    if x.mask is None or x.partition not in _COPIES:
        return x.native
    layout = Layout.split(x.global_shape, x.size, mask=x.mask)
    return collops.DistributedArray(layout, x.native.comm, x.local_array[layout.slices(x.rank)])


def leaves(x: AnyArray) -> list[DistributedArray]:
    """Return the arrays that `x` consists of, in order."""
    return [leaf for part in x.distarrays for leaf in leaves(part)] if isinstance(x, StackedDistributedArray) else [x]


def as_native(x: AnyArray | None, layout: AnyLayout | None = None) -> Any:
    """Return the native array of `x`, redistributed to `layout` if it is not None; ``None`` for ``None``."""
    if x is None:
        return None
    array = checked_array(x).native
    return array if layout is None else to_layout(array, layout)


def wrap(array: Array, like: AnyArray, partition: Partition = Partition.SCATTER) -> AnyArray:
    """Wrap a native array, stacked or not, as a PyLops-MPI array with the communicators of `like`, without a copy.

    `partition` is used with a single rank, where split and replicated layouts are the same.
    """
    if isinstance(array, collops.StackedArray):
        return StackedDistributedArray([wrap(part, like, partition) for part in array.arrays])
    like, layout = leaves(like)[0], array.layout
    split = layout.split_axes
    if layout.ranks > 1:
        partition = Partition.SCATTER if split else Partition.BROADCAST
    if partition is Partition.BROADCAST and like.partition is Partition.UNSAFE_BROADCAST:
        partition = like.partition
    mask = None if layout.mask is None else list(layout.mask)
    return like._like(array, partition=partition, mask=mask, axis=split[0] if split else 0)


def wrap_like(array: Array, like: AnyArray) -> AnyArray:
    """Wrap a native array, redistributed to the layout of `like`, with its partition. Collective."""
    return wrap(to_layout(array, like.native.layout), like, leaves(like)[0].partition)


def halo_region(
    layout: Layout, rank: int, own: Sequence[tuple[int, int]], widths: Sequence[tuple[int, int]], beyond: bool = False
) -> tuple[slice, ...]:
    """Return the slices of the block of `rank` with its `own` halo, within the block with a halo of `widths`.

    Without `beyond`, only cells inside the array.
    """
    block, box = layout.block(rank), []
    for n, offset, extent, (before, after), (start, _) in zip(
        block.shape, block.offset, layout.shape, own, widths, strict=True
    ):
        first, last = (before, after) if beyond else (min(before, offset), min(after, extent - offset - n))
        box.append(slice(start - first, start + n + last))
    return tuple(box)


def _as_partition(value: Any) -> Partition:
    """Return the partition for a member of this enumeration, or of the enumeration in the real PyLops-MPI."""
    named = isinstance(value, Enum) and type(value).__name__ == "Partition"
    if not named or value.name not in Partition.__members__:
        raise InputError(f"partition: Should be either {', '.join(map(str, Partition))}, not {value!r}")
    return Partition[value.name]


def _axis(axis: int, shape: tuple[int, ...]) -> int:
    """Return `axis` counted from the first axis."""
    if not -len(shape) <= operator.index(axis) < len(shape):
        raise IndexError(f"Axis {axis} out of range for DistributedArray of shape {shape}")
    return operator.index(axis) % len(shape)


def _layout(
    shape: tuple[int, ...],
    ranks: int,
    partition: Partition,
    axis: int,
    local_shapes: Sequence[Sequence[SupportsIndex] | SupportsIndex] | None = None,
    mask: Sequence[SupportsIndex] | None = None,
) -> Layout:
    sizes = None
    if local_shapes is not None:
        parts = [as_shape(part) for part in local_shapes]
        if len(parts) != ranks:
            raise LayoutError(f"Length of local shapes is not equal to number of processes; {len(parts)} != {ranks}")
        if partition in _COPIES and set(parts) != {shape}:
            raise LayoutError(f"Local shape is not equal to global shape {shape}: {parts}")
        sizes = [part[axis] if len(part) == len(shape) else -1 for part in parts]
        sections = {part[:axis] + part[axis + 1 :] for part in parts}
        if partition not in _COPIES and (sum(sizes) != shape[axis] or sections != {shape[:axis] + shape[axis + 1 :]}):
            raise LayoutError(f"Local shapes don't align with the global shape; {parts} != {shape}")
    if partition in _COPIES:
        return Layout.replicated(shape, ranks, mask=mask)
    return Layout.split(shape, ranks, axis, sizes=sizes, mask=mask)
