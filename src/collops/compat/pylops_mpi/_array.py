"""PyLops-MPI's arrays: a partition along one axis or copies, and NumPy arithmetic on each rank's part."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Self, SupportsIndex

import numpy as np

from collops import array as native
from collops.array import Layout
from collops.array.halo import extended_array
from collops.array.layout_arguments import as_shape
from collops.backend import engine_of
from collops.compat.pylops_mpi._native import communicator, relabelled
from collops.errors import InputError, LayoutError, UnsupportedTypeError

__all__ = ["DistributedArray", "Partition", "local_split", "subcomm_split"]


class Partition(Enum):
    """What a rank holds: all of the array, kept equal or not, or a part of its own.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> [partition.name for partition in pylops_mpi.Partition]
    ['BROADCAST', 'UNSAFE_BROADCAST', 'SCATTER']
    """

    BROADCAST = "Broadcast"
    UNSAFE_BROADCAST = "UnsafeBroadcast"
    SCATTER = "Scatter"


_COPIES = (Partition.BROADCAST, Partition.UNSAFE_BROADCAST)


def local_split(global_shape: Sequence[int], base_comm: Any, partition: Partition, axis: int) -> tuple[int, ...]:
    """Return the shape of this rank's part."""
    comm = communicator(base_comm)
    return _layout(as_shape(global_shape), comm.size, partition, axis).local_shape(comm.rank)


def subcomm_split(mask: Sequence[SupportsIndex], comm: Any = None) -> Any:
    """Return the mpi4py communicator of the ranks with this rank's number in `mask`. Collective."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD if comm is None else comm
    return comm.Split(color=operator.index(mask[comm.Get_rank()]), key=comm.Get_rank())


class DistributedArray:
    """An array in parts along one axis, or in copies; parameters and methods are PyLops-MPI's.

    Parameters
    ----------
    global_shape : int or tuple of int
        Shape of the whole array.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks; ``MPI.COMM_WORLD`` by default.
    base_comm_nccl : object, optional
        What :func:`initialize_nccl_comm` returned, or CuPy's communicator. Device arrays go by NCCL with and without.
    partition : Partition
        ``BROADCAST`` (assignments take rank 0's values), ``UNSAFE_BROADCAST`` or ``SCATTER``.
    axis : int
        The axis in parts.
    local_array : array, optional
        This rank's part, kept; it decides about dtype and engine.
    local_shapes : list of (int or tuple), optional
        Shape of every rank's part.
    mask : list of int, optional
        Group number of each rank, for ``dot`` and ``norm``.
    engine : str
        ``"numpy"`` or ``"cupy"``.
    dtype : dtype
        Element type.

    Raises
    ------
    IndexError
        If there is no such axis.
    ValueError
        If shapes, partition, engine or NCCL do not fit each other.

    Notes
    -----
    `native` is the same array as :class:`collops.DistributedArray`.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> x = pylops_mpi.DistributedArray(global_shape=4)
    >>> x[:] = 2.0
    >>> x.asarray()
    array([2., 2., 2., 2.])
    """

    __array_ufunc__ = None  # a NumPy array or number beside this one leaves the operation to it
    partition: Partition = Partition.SCATTER
    axis: int = 0
    mask: Sequence[SupportsIndex] | None = None
    base_comm_nccl: Any = None

    def __init__(
        self,
        global_shape: SupportsIndex | Sequence[SupportsIndex],
        base_comm: Any = None,
        base_comm_nccl: Any = None,
        partition: Partition = Partition.SCATTER,
        axis: int = 0,
        local_array: Any = None,
        local_shapes: Sequence[Any] | None = None,
        mask: Sequence[SupportsIndex] | None = None,
        engine: str | None = "numpy",
        dtype: Any = np.float64,
    ) -> None:
        shape = as_shape(global_shape)
        if not isinstance(partition, Partition):
            raise InputError(f"partition must be one of {', '.join(map(str, Partition))}, not {partition!r}")
        axis = _axis(axis, shape)
        if local_array is not None:
            engine = engine_of(local_array).name
        if base_comm_nccl is not None and engine != "cupy":
            raise InputError("base_comm_nccl is for arrays of engine 'cupy'")
        comm = communicator(base_comm)
        layout = _layout(shape, comm.size, partition, axis, local_shapes, mask)
        if local_array is None:
            array = native.empty(layout, comm=comm, dtype=dtype, engine=engine or "numpy")
        elif tuple(local_array.shape) != layout.local_shape(comm.rank):
            expected = layout.local_shape(comm.rank)
            raise InputError(f"local_array has the shape {tuple(local_array.shape)}, this rank's part {expected}")
        else:
            array = native.DistributedArray(layout, comm, local_array)
        self._set(array, partition, axis, mask, base_comm, base_comm_nccl)

    def _set(self, array: Any, partition: Partition, axis: int, mask: Any, base_comm: Any, base_comm_nccl: Any) -> None:
        self.native = array
        self.partition = partition
        self.axis = axis
        self.mask = mask
        self._base_comm = base_comm
        self.base_comm_nccl = base_comm_nccl
        self._sub_comm: Any = None

    @classmethod
    def wrapped(cls, array: native.DistributedArray, like: DistributedArray, partition: Partition) -> DistributedArray:
        """Return one of this package's arrays as one of these.

        Parameters
        ----------
        array : collops.DistributedArray
            Kept, not copied.
        like : DistributedArray
            Whose communicators, and kind of copies, the result has.
        partition : Partition
            In a world of one, where copies and parts are the same.
        """
        layout = array.layout
        split = layout.split_axes
        if layout.ranks > 1:
            partition = Partition.SCATTER if split else Partition.BROADCAST
        if partition is Partition.BROADCAST and like.partition is Partition.UNSAFE_BROADCAST:
            partition = like.partition
        result = object.__new__(cls)
        mask = None if layout.mask is None else list(layout.mask)
        result._set(array, partition, split[0] if split else 0, mask, like._base_comm, like.base_comm_nccl)
        return result

    def _like(self, array: Any) -> Self:
        result = object.__new__(type(self))
        result._set(array, self.partition, self.axis, self.mask, self._base_comm, self.base_comm_nccl)
        return result

    @classmethod
    def to_dist(
        cls,
        x: Any,
        base_comm: Any = None,
        base_comm_nccl: Any = None,
        partition: Partition = Partition.SCATTER,
        axis: int = 0,
        local_shapes: Sequence[Any] | None = None,
        mask: Sequence[SupportsIndex] | None = None,
    ) -> Self:
        """Return the global array `x`, which every rank has, in parts or copies."""
        engine = engine_of(x).name
        made = cls(x.shape, base_comm, base_comm_nccl, partition, axis, None, local_shapes, mask, engine, x.dtype)
        made[:] = x[made.native.layout.slices(made.rank)]
        return made

    # What it is

    @property
    def local_array(self) -> Any:
        """What this rank has of the array."""
        return self.native.local_array

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return self.native.shape

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of this rank's part."""
        return self.native.local_array.shape

    @property
    def local_shapes(self) -> list[tuple[int, ...]]:
        """Shape of every rank's part. No message."""
        layout = self.native.layout
        return [layout.local_shape(rank) for rank in range(layout.ranks)]

    @property
    def dtype(self) -> np.dtype:
        """Element type."""
        return self.native.dtype

    @property
    def engine(self) -> str:
        """``"numpy"`` or ``"cupy"``."""
        return self.native.engine.name

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.native.ndim

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self.native.comm.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.native.comm.size

    @property
    def base_comm(self) -> Any:
        """The mpi4py communicator of the ranks."""
        if self._base_comm is None:
            from mpi4py import MPI

            return MPI.COMM_WORLD
        return self._base_comm

    @property
    def sub_comm(self) -> Any:
        """The mpi4py communicator of this rank's group. With a mask, collective when first asked for."""
        if self.mask is None:
            return self.base_comm
        if self._sub_comm is None:
            self._sub_comm = subcomm_split(self.mask, self.base_comm)
        return self._sub_comm

    def __getitem__(self, index: Any) -> Any:
        return self.local_array[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Assign to this rank's part. Collective with ``BROADCAST``, where rank 0's values reach all copies."""
        self.local_array[index] = value
        if self.partition is Partition.BROADCAST and self.size > 1:
            self.native.comm.bcast(self.local_array, root=0, out=self.local_array)

    # Arithmetic: no messages

    def _binary(self, function: Callable[[Any, Any], Any], other: Any) -> Self:
        if isinstance(other, DistributedArray):
            return self._like(function(self.native, other.native))
        # A number, or a plain array beside every rank's part.
        layout, comm = self.native.layout, self.native.comm
        return self._like(native.DistributedArray(layout, comm, function(self.local_array, other)))

    def __neg__(self) -> Self:
        return self._like(-self.native)

    def __add__(self, other: Any) -> Self:
        return self._binary(operator.add, other)

    def __iadd__(self, other: Any) -> Self:
        self.native += other.native if isinstance(other, DistributedArray) else other
        return self

    def __sub__(self, other: Any) -> Self:
        return self._binary(operator.sub, other)

    def __isub__(self, other: Any) -> Self:
        self.native -= other.native if isinstance(other, DistributedArray) else other
        return self

    def __mul__(self, other: Any) -> Self:
        return self._binary(operator.mul, other)

    __rmul__ = __mul__

    def add(self, dist_array: Any) -> Self:
        """Return the sum."""
        return self + dist_array

    def iadd(self, dist_array: Any) -> Self:
        """Add in place."""
        self += dist_array
        return self

    def multiply(self, dist_array: Any) -> Self:
        """Return the product with an array, element by element, or with a number."""
        return self * dist_array

    def conj(self) -> Self:
        """Return the complex conjugate."""
        return self._like(self.native.conj())

    def copy(self) -> Self:
        """Return a copy."""
        return self._like(self.native.copy())

    def zeros_like(self) -> Self:
        """Return zeros; the mask is kept."""
        return self._like(native.zeros_like(self.native))

    def empty_like(self) -> Self:
        """Return arbitrary values; the mask is kept."""
        return self._like(native.empty_like(self.native))

    # Reductions

    def dot(self, dist_array: Self, vdot: bool = False) -> Any:
        """Return the inner product, with this array conjugated if `vdot`. Collective: one scalar allreduce.

        Raises
        ------
        TypeError
            If `dist_array` is no DistributedArray.
        ValueError
            If its layout is another.
        """
        if not isinstance(dist_array, DistributedArray):
            raise UnsupportedTypeError(f"a DistributedArray has no inner product with {type(dist_array).__name__}")
        x, y = self.native, dist_array.native
        return (x.vdot(y) if vdot else x.dot(y)).item()

    def norm(self, ord: float | None = None, axis: int | None = None) -> Any:
        """Return a vector norm of all elements, or of those along `axis` as an array. Collective."""
        result = self.native.norm(ord, axis)
        if axis is None:
            return result.item()
        return result.gather() if isinstance(result, native.DistributedArray) else result

    def asarray(self, masked: bool = False) -> Any:
        """Return the whole array, or that of this rank's group if `masked`. Collective."""
        if self.partition in _COPIES:
            return self.local_array
        if not masked or self.native.layout.mask is None:
            return self.native.gather()
        layout, comm = self.native.layout, self.native.comm
        group = comm.subgroup(layout.mask)
        sizes = [n for n, of in zip(layout.sizes[self.axis], layout.mask, strict=True) if of == layout.mask[comm.rank]]
        shape = [sum(sizes) if a == self.axis else n for a, n in enumerate(layout.shape)]
        part = Layout.split(shape, group.size, self.axis, sizes=sizes)
        return native.DistributedArray(part, group, self.local_array).gather()

    # Other shapes and partitions

    def redistribute(self, axis: int) -> Self:
        """Return the array in parts along another axis. Collective: one exchange.

        Raises
        ------
        IndexError
            If there is no such axis.
        """
        axis = _axis(axis, self.global_shape)
        if self.partition in _COPIES or axis == self.axis:
            return self
        target = _layout(self.global_shape, self.size, self.partition, axis, None, self.mask)
        moved = self._like(self.native.redistribute(target))
        moved.axis = axis
        return moved

    def ravel(self, order: str | None = "C") -> Self:
        """Return every rank's part ravelled, the parts following each other in one vector. No message."""
        layout, local = self.native.layout, self.local_array.ravel(order)
        if self.partition in _COPIES:
            flat = Layout.replicated(layout.size, layout.ranks, mask=self.mask)
        else:
            sizes = [layout.local_size(rank) for rank in range(layout.ranks)]
            flat = Layout.split(layout.size, layout.ranks, sizes=sizes, mask=self.mask)
        made = self._like(native.DistributedArray(flat, self.native.comm, local))
        made.axis = 0
        return made

    def reshape(self, local_shape: Sequence[int], axis: int | None = 0) -> Self:
        """Return every rank's part in another shape, the parts following each other along `axis`.

        Collective: two metadata messages, since each rank names its own shape.

        Raises
        ------
        ValueError
            On every rank, if the parts do not fit together, or copies would have several shapes.
        IndexError
            If there is no such axis.
        """
        comm, shape = self.native.comm, as_shape(local_shape)
        axis = _axis(axis or 0, shape)
        wrong = math.prod(shape) != self.local_array.size
        comm.check(LayoutError(f"{self.local_shape} cannot become {shape}") if wrong else None)
        if self.partition in _COPIES:
            shapes = {tuple(other) for other in comm.allgather_metadata(list(shape))}
            if len(shapes) > 1:
                raise LayoutError(f"copies have one shape, not {' and '.join(map(str, sorted(shapes)))}")
            layout = Layout.replicated(shape, comm.size, mask=self.mask)
        else:
            layout = Layout.from_local(shape, comm, axis, mask=self.mask)
        made = self._like(relabelled(self.native, layout))
        made.axis = axis
        return made

    def add_ghost_cells(self, cells_front: int | None = None, cells_back: int | None = None) -> Any:
        """Return this rank's part with cells of its neighbours, none at the array's ends. Collective: one exchange.

        Parameters
        ----------
        cells_front, cells_back : int, optional
            How many before and after the part; they may reach over several ranks.
        """
        widths = [0] * (2 * self.ndim)
        widths[2 * self.axis], widths[2 * self.axis + 1] = cells_front or 0, cells_back or 0
        _, extended = extended_array(self.native, widths)
        begin = self.native.layout.offset(self.rank)[self.axis]
        end = begin + self.local_shape[self.axis]
        missing = max(0, widths[2 * self.axis] - begin)
        beyond = max(0, end + widths[2 * self.axis + 1] - self.global_shape[self.axis])
        inner = [slice(None)] * self.ndim
        inner[self.axis] = slice(missing, extended.shape[self.axis] - beyond)
        return extended[tuple(inner)]

    def __repr__(self) -> str:
        ranks = list(range(self.size))
        return (
            f"<DistributedArray with global shape={self.global_shape}, local shape={self.local_shape}, "
            f"dtype={self.dtype}, processes={ranks}>"
        )


def _axis(axis: int, shape: tuple[int, ...]) -> int:
    """Return the number of an axis counted from the start."""
    if not -len(shape) <= operator.index(axis) < len(shape):
        raise IndexError(f"there is no axis {axis} in an array of shape {shape}")
    return operator.index(axis) % len(shape)


def _layout(
    shape: tuple[int, ...],
    ranks: int,
    partition: Partition,
    axis: int,
    local_shapes: Sequence[Any] | None = None,
    mask: Sequence[SupportsIndex] | None = None,
) -> Layout:
    sizes = None
    if local_shapes is not None:
        parts = [as_shape(part) for part in local_shapes]
        expected = [n for a, n in enumerate(shape) if a != axis]
        if partition in _COPIES:
            fits = len(parts) == ranks and all(part == shape for part in parts)
        else:
            fits = len(parts) == ranks and all(
                len(part) == len(shape) and [n for a, n in enumerate(part) if a != axis] == expected for part in parts
            )
        if not fits:
            raise LayoutError(f"the local shapes {parts} do not make up an array of shape {shape} on {ranks} ranks")
        sizes = [part[axis] for part in parts]
    if partition in _COPIES:
        return Layout.replicated(shape, ranks, mask=mask)
    return Layout.split(shape, ranks, axis, sizes=sizes, mask=mask)
