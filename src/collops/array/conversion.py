"""Distributed arrays from existing values: from a global array, or from the ranks' local arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from collops.array.distributed import DistributedArray
from collops.array.dtypes import as_dtype, check_byte_order
from collops.array.layout import Layout
from collops.array.plans import check_ranks
from collops.array.redistribute import agree_on_values, compare_copies, moved, on_root
from collops.backend import Engine, LocalArray, engine_of
from collops.backend import engine as find_engine
from collops.comm import Communicator
from collops.comm.agreement import collective_values, raised_together, table
from collops.comm.arguments import communicator_or_world
from collops.comm.call import check_rank
from collops.errors import LayoutError, UnsupportedTypeError, type_name


def from_global(
    values: ArrayLike | LocalArray,
    layout: Layout | None = None,
    *,
    comm: Communicator | None = None,
    root: int | None = None,
    dtype: DTypeLike | None = None,
    engine: Engine | str | None = None,
) -> DistributedArray:
    """Distribute a copy of a global array. Without `root` no message is sent.

    Parameters
    ----------
    values : array_like
        The whole array, equal on every rank. With `root`, only the root's values are used.
    layout : Layout, optional
        By default split along axis 0.
    comm : Communicator, optional
        The ranks; the world by default.
    root : int, optional
        The rank that has `values`. Collective in that case: one metadata message, and one exchange of the parts.
    dtype : dtype, optional
        By default the dtype of `values`.
    engine : str or Engine, optional
        By default the engine of `values`.

    Raises
    ------
    LayoutError
        If `layout` has another shape, or is for another number of ranks.
    InputError
        If `values` are not numbers, or there is no such dtype, engine or `root`.
    UnsupportedTypeError
        If `values` have masked elements or, with several ranks, are spread over several devices of a rank. On one rank
        an array of JAX stays on its devices.

    Notes
    -----
    The copy has separate memory on every engine: the memory of `values` can be reused at once. With
    ``COLLOPS_CHECK`` the values of all ranks are compared, and all ranks raise an InputError if they differ.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> x = collops.from_global(np.arange(4))
    >>> x.gather()
    array([0, 1, 2, 3])
    """
    comm = communicator_or_world(comm)
    if root is not None:
        check_rank(root, comm.size, "root")
    element = None if dtype is None else as_dtype(dtype)
    if root is not None:
        return _from_root(values, layout, comm, root, element, engine)
    layout, part = _fitting(layout, np.shape(values), comm), _array(values)
    agree_on_values(comm, "the array that each rank passes to from_global", part)
    if layout.local_shape(comm.rank) != layout.shape:  # otherwise an array over several devices of a rank stays on them
        current = engine_of(part)
        if engine is None or find_engine(engine) is current:
            current.check_devices(part)
        else:
            part = current.to_host(part)
        part = part[layout.slices(comm.rank)]
    return DistributedArray._uncompared(layout, comm, _copied(part, element, engine))


def _from_root(
    values: ArrayLike | LocalArray | None,
    layout: Layout | None,
    comm: Communicator,
    root: int,
    dtype: np.dtype | None,
    engine: Engine | str | None,
) -> DistributedArray:
    """Distribute a copy of the array of `root`; all ranks raise the error of the root."""
    global_array = None

    def describe() -> list[object] | None:
        nonlocal global_array
        if comm.rank != root:
            return None
        global_array = _copied(_array(values), dtype, engine)
        if comm.size > 1:
            engine_of(global_array).check_devices(global_array)
        _fitting(layout, global_array.shape, comm)
        return [list(global_array.shape), global_array.dtype.name, engine_of(global_array).name]

    # All ranks first get the description of the root's array, or its error.
    shape, name, engine_name = collective_values(comm, describe)[root]
    layout = _fitting(layout, shape, comm)
    source = on_root(layout, root)
    if global_array is None:
        root_engine = find_engine(engine_name)
        global_array = root_engine.xp.empty(source.local_shape(comm.rank), root_engine.dtype(as_dtype(name)))
    return DistributedArray._uncompared(layout, comm, moved(global_array, source, layout, comm))


def _fitting(layout: Layout | None, shape: tuple[int, ...], comm: Communicator) -> Layout:
    if layout is None:
        return Layout.split(shape, comm.size)
    if not isinstance(layout, Layout):
        raise LayoutError(f"expected a layout, not {type_name(layout)}")
    if layout.shape != tuple(shape):
        raise LayoutError(f"an array of shape {tuple(shape)} does not fit the layout {layout}")
    check_ranks(layout, comm)
    return layout


def _array(values: ArrayLike | LocalArray) -> LocalArray:
    """Return array-like values as an array, without the different semantics of NumPy's subclasses."""
    if hasattr(values, "dtype") and not isinstance(values, np.ndarray):
        return values
    return find_engine("numpy").adopt(np.asanyarray(values))


def _copied(part: LocalArray, dtype: np.dtype | None, engine: Engine | str | None) -> LocalArray:
    """Return a contiguous copy of an array of `engine`, or of its own engine."""
    current = engine_of(part)
    target = current if engine is None else find_engine(engine)
    own_dtype = as_dtype(part.dtype)  # also with a dtype: a rank without elements converts nothing and cannot fail
    kind = own_dtype if dtype is None else dtype
    if target is current and not target.mutable:
        return target.xp.array(part, target.dtype(kind), copy=True)  # the caller may donate its array to a program
    if target is current:
        return target.xp.array(part, dtype=kind, copy=True, order="C")
    return target.from_host(np.array(current.to_host(part), kind, order="C"))


def from_local(
    local_array: LocalArray,
    layout: Layout | None = None,
    *,
    comm: Communicator | None = None,
    axis: int = 0,
    mask: Sequence[SupportsIndex] | None = None,
) -> DistributedArray:
    """Make a distributed array from the ranks' local arrays. Collective: one metadata message.

    Parameters
    ----------
    local_array : array
        This rank's part; not copied.
    layout : Layout, optional
        By default the parts are concatenated along `axis`, where their extents may differ.
    comm
        As for :func:`from_global`.
    axis : int, optional
        See `layout`.
    mask : sequence of int, optional
        As for :class:`Layout`; not together with `layout`.

    Raises
    ------
    LayoutError
        On every rank, if the parts do not fit together or do not fit `layout`.
    UnsupportedTypeError
        On every rank, if one of them is not an array, its byte order is not this machine's, or, with several ranks, it
        is spread over several devices or on another GPU than the current one; or if the parts, also those without
        elements, have different dtypes or engines.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> comm = collops.world()
    >>> x = collops.from_local(np.full(2, comm.rank))
    >>> x.shape == (2 * comm.size,)
    True
    """
    comm = communicator_or_world(comm)
    if layout is not None and mask is not None:
        raise LayoutError("from_local takes a layout or a mask; pass the mask to the layout")

    def describe() -> list[object]:
        engine = _checked_engine(local_array, comm)
        if layout is not None:
            DistributedArray._uncompared(layout, comm, local_array)
        return [list(local_array.shape), f"{local_array.dtype.name} of {engine.name}"]

    shapes, types = zip(*collective_values(comm, describe), strict=True)
    if len(set(types)) > 1:
        with raised_together():
            lines = table(dict(enumerate(types)), comm.size, "")
            raise UnsupportedTypeError(
                f"the local arrays must have one dtype and engine, also those without elements:\n{lines}"
            )
    if layout is None:
        joined = Layout._of_parts([tuple(shape) for shape in shapes], axis, mask)
        return DistributedArray(joined, comm, local_array)
    x = DistributedArray._uncompared(layout, comm, local_array)
    compare_copies(x, groups=True)
    return x


def _checked_engine(local_array: LocalArray, comm: Communicator) -> Engine:
    """Return the engine of a local array after checking that messages can carry it."""
    engine = engine_of(local_array)
    array = engine.adopt(local_array)
    if comm.size > 1:
        engine.check_devices(array)
    as_dtype(array.dtype)
    check_byte_order(array.dtype)
    return engine
