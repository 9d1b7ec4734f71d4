"""The distributed array: a layout, a communicator, and this rank's part of the values."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

from collops.array import plot
from collops.array.array_functions import sliced, transpose
from collops.array.base import Array
from collops.array.broadcasting import broadcast
from collops.array.coefficients import Scalar
from collops.array.dtypes import as_dtype, check_byte_order
from collops.array.halo import halo_plan, halo_widths
from collops.array.layout import Layout
from collops.array.operands import check_alike, check_ranks_and_engine, check_ufunc, local_operand, way_to
from collops.array.plans import ReductionPlan, reduction_plan
from collops.array.redistribute import compare_copies, moved, on_root
from collops.backend import Engine, LocalArray, engine_of
from collops.comm import Communicator
from collops.comm.call import check_rank
from collops.errors import LayoutError, UnsupportedTypeError

_new = object.__new__


class DistributedArray(Array):
    """An array whose parts are on different ranks.

    Arithmetic, comparisons and NumPy's ufuncs work element by element, without messages, on arrays of one layout, on
    arrays that are broadcast without moving data, and on scalars, with NumPy's promotion rules. Reductions send at most
    one message and return 0-d arrays of the engine, without synchronising with the device.

    Parameters
    ----------
    layout : Layout
        The partition of the array over the ranks.
    comm : Communicator
        The ranks.
    local_array : array
        This rank's part, of shape ``layout.local_shape(comm.rank)``; not copied. Replicated parts must be equal (see
        :meth:`check_replicated`).

    Attributes
    ----------
    layout, comm, local_array
        The arguments.
    engine : Engine
        The engine of `local_array`.
    leaves : tuple of DistributedArray
        The array itself; for a stacked array, all its parts.

    Raises
    ------
    LayoutError
        If the shape of `local_array` or the number of ranks of `comm` does not fit `layout`.
    UnsupportedTypeError
        If `local_array` is not an array, its byte order is not this machine's, or, with several ranks, it is spread
        over several devices or on another GPU than the current one.

    Notes
    -----
    Collective at the first use of a process grid or mask on `comm`, which creates the communicators of reductions.
    With ``COLLOPS_CHECK`` always collective: copies on several ranks are compared, and all ranks raise a LayoutError if
    they differ.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> x = collops.from_global(np.arange(6.0).reshape(2, 3))
    >>> (2 * x + 1).gather()
    array([[ 1.,  3.,  5.],
           [ 7.,  9., 11.]])
    >>> float(x.sum())
    15.0
    """

    __slots__ = ("__weakref__", "_plan", "comm", "engine", "layout", "local_array")

    layout: Layout
    comm: Communicator
    engine: Engine
    local_array: LocalArray
    _plan: ReductionPlan

    def __init__(self, layout: Layout, comm: Communicator, local_array: LocalArray) -> None:
        self._fill(layout, comm, local_array)
        compare_copies(self, groups=True)

    @classmethod
    def _uncompared(cls, layout: Layout, comm: Communicator, local_array: LocalArray) -> Self:
        """Create an array without comparing replicas: the constructor for values that this package has computed."""
        array = _new(cls)
        array._fill(layout, comm, local_array)
        return array

    def _fill(self, layout: Layout, comm: Communicator, local_array: LocalArray) -> None:
        self.engine = engine_of(local_array)
        check_byte_order(local_array.dtype)
        if not isinstance(layout, Layout):
            raise LayoutError(f"a distributed array needs a Layout, not {type(layout).__qualname__}")
        self._plan = reduction_plan(layout, comm)
        if comm.size > 1:
            self.engine.check_devices(local_array)
        if tuple(local_array.shape) != layout.local_shape(comm.rank):
            raise LayoutError(
                f"the part of rank {comm.rank} in the layout {layout} has the shape {layout.local_shape(comm.rank)}, "
                f"but its local array has the shape {tuple(local_array.shape)}"
            )
        self.layout = layout
        self.comm = comm
        self.local_array = self.engine.adopt(local_array)

    def _like(self, local_array: LocalArray) -> Self:
        """Return an array with another local array of this layout and engine: the internal constructor, unchecked."""
        array = _new(self.__class__)
        array.layout = self.layout
        array.comm = self.comm
        array.engine = self.engine
        array._plan = self._plan
        array.local_array = local_array
        return array

    def _in_layout(self, layout: Layout, local_array: LocalArray) -> Self:
        """Return an array with another layout and local array, of this engine and these ranks; unchecked."""
        array = self._like(local_array)
        array.layout, array._plan = layout, reduction_plan(layout, self.comm)
        return array

    def _hold(self, value: LocalArray) -> Self:
        """Copy `value` to the local array; if the engine is not mutable, replace the local array by it."""
        if value is not self.local_array:
            self.local_array = self.engine.put(self.local_array, ..., value)
        return self

    @property
    def leaves(self) -> tuple[DistributedArray, ...]:
        """The array itself, in a tuple."""
        return (self,)

    @property
    def _local_block(self) -> LocalArray:
        """All elements of this rank as one array of the engine."""
        return self.local_array

    @property
    def dtype(self) -> np.dtype:
        """Element type."""
        return self.local_array.dtype

    @property
    def device(self) -> Any:
        """Device of this rank's part: ``"cpu"`` with NumPy, else a device of CuPy or JAX."""
        return self.local_array.device

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape."""
        return self.layout.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.layout.ndim

    def __len__(self) -> int:
        return self.layout.shape[0]

    def __iter__(self) -> NoReturn:
        raise UnsupportedTypeError("a distributed array cannot be iterated over; use local_array or gather()")

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise UnsupportedTypeError(
            "elements of a distributed array are not assigned; use collops.where(condition, value, x), "
            "or x.local_array for this rank's part"
        )

    def __repr__(self) -> str:
        rank = self.comm.rank
        block = self.layout.block(rank)
        transport = self.comm.host_transport if self.engine.memory == "host" else self.comm.device_transport
        return (
            f"<DistributedArray {self.dtype} {self.layout}; rank {rank} holds {block.shape} at {block.offset}; "
            f"{self.engine.name} over {transport}>"
        )

    # Element by element: no messages

    def _binary(
        self, function: Callable[[LocalArray, LocalArray], LocalArray], other: Array | Scalar, reflected: bool = False
    ) -> Self:
        if other.__class__ is DistributedArray:
            if other.layout is not self.layout or other.comm is not self.comm or other.engine is not self.engine:
                check_ranks_and_engine(self, other)
                x, y = broadcast(self, other)
                return x._like(function(x.local_array, y.local_array))
            return self._like(function(self.local_array, other.local_array))
        if other.__class__ is not float or self.comm.calls is not None:
            other = local_operand(self, other)
            if other is NotImplemented:
                return NotImplemented
        if reflected:  # the first operand determines the result type
            return self._like(function(other, self.local_array))
        return self._like(function(self.local_array, other))

    def _unary(self, function: Callable[[LocalArray], LocalArray]) -> Self:
        return self._like(function(self.local_array))

    def _map(self, function: Callable[..., LocalArray], *others: Array | Scalar) -> Self:
        x, *aligned = broadcast(self, *others)
        operands = [local_operand(x, other) for other in aligned]
        if any(operand is NotImplemented for operand in operands):
            return NotImplemented
        return x._like(function(x.local_array, *operands))

    def _in_place(self, function: Callable[[LocalArray, LocalArray], LocalArray], other: Array | Scalar) -> Self:
        if other.__class__ is DistributedArray and other.layout is not self.layout:
            wider, other = broadcast(self, other)
            check_alike(self, wider)
        if other.__class__ is not float or self.comm.calls is not None:
            other = local_operand(self, other)
            if other is NotImplemented:
                return NotImplemented
        value = function(self.local_array, other)
        if value is self.local_array:  # a mutable engine
            return self
        if not np.can_cast(value.dtype, self.dtype, "same_kind"):
            raise UnsupportedTypeError(f"a result of {value.dtype} does not fit into an array of {self.dtype}")
        return self._hold(value)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **arguments: Any) -> Any:
        """Apply a NumPy ufunc element by element: ``numpy.sin(x)``, ``numpy.add(x, y, out=z, where=mask)``.

        Raises
        ------
        UnsupportedTypeError
            For methods such as ``reduce``, for matmul, for plain arrays, and for functions that the engine lacks.
            ``where=`` is supported by the engine ``numpy`` only.
        """
        outs = arguments.pop("out", None) or (None,) * ufunc.nout
        check_ufunc(ufunc, method, outs)
        masks = [arguments.pop("where")] if "where" in arguments else []
        function = self.engine.ufunc(ufunc, bool(masks))
        operands = broadcast(*inputs, *masks)
        like = next((x for x in operands if isinstance(x, DistributedArray)), self)
        operands = [local_operand(like, value) for value in operands]
        if any(operand is NotImplemented for operand in operands):
            return NotImplemented
        if masks:
            arguments["where"] = operands.pop()
        targets = tuple(None if out is None else local_operand(like, out) for out in outs)
        if self.engine.mutable and any(out is not None for out in outs):
            arguments["out"] = targets[0] if ufunc.nout == 1 else targets
        result: LocalArray | tuple[LocalArray, ...] = function(*operands, **arguments)
        results = (result,) if ufunc.nout == 1 else result
        # A kernel may have written to the local array of `out` already.
        stored = [like._like(new) if out is None else out._hold(new) for new, out in zip(results, outs, strict=True)]
        return stored[0] if ufunc.nout == 1 else tuple(stored)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """Return the functions of the Python array API standard for these ranks and this engine."""
        bridge = importlib.import_module("collops.bridges.array_api")  # a guest, imported on request
        return bridge.namespace(self.comm, self.engine, api_version=api_version)

    def astype(self, dtype: DTypeLike, copy: bool = True) -> Self:
        """Return the array converted to `dtype`; without `copy`, itself if it has this dtype. No messages."""
        dtype = as_dtype(dtype)
        if dtype == self.dtype and not copy:
            return self
        return self._like(self.local_array.astype(self.engine.dtype(dtype)))

    # Other shapes and layouts

    __getitem__ = sliced
    transpose, T = transpose, property(transpose)

    def reshape(self, *shape: SupportsIndex | Sequence[SupportsIndex] | Layout) -> DistributedArray:
        """Return the array in another shape, in C order. No messages; a view if possible.

        Parameters
        ----------
        *shape : int, sequence of int or Layout
            The new global shape (one extent may be -1), or the layout of the result.

        Raises
        ------
        LayoutError
            If data would have to move to other ranks. Use :meth:`redistribute` first.
        """
        target = shape[0] if len(shape) == 1 else shape
        layout = self.layout.reshape(target.shape if isinstance(target, Layout) else target)  # pyright: ignore[reportArgumentType]
        if isinstance(target, Layout) and layout is not target:
            raise LayoutError(
                f"without moving data, {self.layout} is reshaped to {layout}, not to {target}; "
                + way_to(self.layout, target, layout="layout")
            )
        return self._in_layout(layout, self.local_array.reshape(layout.local_shape(self.comm.rank)))

    def ravel(self) -> DistributedArray:
        """Return the array as a vector; see :meth:`reshape`."""
        return self.reshape(math.prod(self.shape))

    def redistribute(self, layout: Layout) -> DistributedArray:
        """Return a copy in another layout of the same shape. Collective: one all-to-all-v of the overlaps.

        No message is sent if every rank already holds its new part, as with a replicated array.

        Parameters
        ----------
        layout : Layout
            The new layout, on the same ranks.

        Raises
        ------
        LayoutError
            If `layout` has another shape or number of ranks, or if it would mix independent values of the groups of a
            mask (:attr:`Layout.has_group_values`): it must have the same mask, and keep the elements of each group.
        """
        if not isinstance(layout, Layout) or layout.shape != self.shape or layout.ranks != self.layout.ranks:
            raise LayoutError(
                f"an array with the layout {self.layout} cannot be redistributed to {layout}: "
                + (way_to(self.layout, layout, layout="layout") if isinstance(layout, Layout) else "it is not a layout")
            )
        compare_copies(self)
        return self._in_layout(layout, moved(self.local_array, self.layout, layout, self.comm))

    def halo(self, halo: SupportsIndex | Sequence[SupportsIndex], boundary: str = "zero") -> DistributedArray:
        """Return a copy in which every block is extended by its neighbours' values. Collective: one exchange.

        Parameters
        ----------
        halo : int or sequence of int
            Width on all sides; or one width per axis; or, for each axis in turn, the widths before and after the block.
            A halo may be wider than a neighbour's block.
        boundary : str
            Values beyond the ends of the array: ``"zero"``, or ``"periodic"`` to wrap around.

        Returns
        -------
        DistributedArray
            On the same process grid, with every block larger by the widths.

        Raises
        ------
        InputError
            If `halo` or `boundary` is invalid.
        """
        compare_copies(self)
        plan = halo_plan(self.comm, self.layout, halo_widths(halo, self.layout.ndim), boundary)
        target = self.engine.xp.empty(plan.shape, self.local_array.dtype)
        return self._in_layout(plan.extended, plan.fill(self.local_array, target))

    def gather(self, root: int | None = None) -> LocalArray:
        """Return the global array, in the engine's memory. Collective: at most one message, none if replicated.

        If the groups of a mask have independent values (:attr:`Layout.has_group_values`), each rank gets the array of
        its group.

        Parameters
        ----------
        root : int, optional
            The rank that receives the array; all ranks by default.

        Returns
        -------
        array or None
            A new array; ``None`` on ranks other than `root`.

        Raises
        ------
        LayoutError
            If the groups of a mask have independent values, but no group holds the whole array.
        """
        layout, comm = self.layout, self.comm
        if root is not None:
            check_rank(root, comm.size, "root")
        compare_copies(self)
        if layout.has_group_values and not layout.is_replicated:
            values = moved(self.local_array, layout, Layout.replicated(layout.shape, comm.size, mask=layout.mask), comm)
            return values if root in (None, comm.rank) else None
        if layout.is_replicated:
            return self.local_array.copy() if root in (None, comm.rank) else None
        counts = layout.sizes[0]
        if layout.split_axes == (0,) and len(counts) == comm.size:
            # The parts are contiguous in memory: one collective, without packing.
            if root is None:
                return comm.allgatherv(self.local_array, counts)
            return comm.gatherv(self.local_array, counts, root)
        target = Layout.replicated(layout.shape, layout.ranks) if root is None else on_root(layout, root)
        values = moved(self.local_array, layout, target, comm)
        return values if root in (None, comm.rank) else None

    plot = plot.plot
