"""Functions of sharded JAX arrays that send only what they need: Fourier transforms, halos, sparse products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from scipy import sparse

from collops.bridges.sharded_fft import Norm, Request, compiled, names_of
from collops.errors import InputError, LayoutError, UnsupportedTypeError, type_name

__all__ = ["fftn", "halo_exchange", "ifftn", "irfftn", "map_overlap", "rfftn", "sparse_product"]

Boundary: TypeAlias = Literal["zeros", "periodic", "edge"]
_BOUNDARIES = ("zeros", "periodic", "edge")


def fftn(
    x: jax.Array,
    axes: int | Sequence[int] | None = None,
    norm: Norm = None,
    *,
    out_spec: PartitionSpec | None = None,
    chunks: int = 1,
    sharding: NamedSharding | None = None,
) -> jax.Array:
    """Return the discrete Fourier transform of a sharded array along any of its axes, by NumPy's conventions.

    Each device transforms the axes that are not split. An all-to-all then moves a split to another axis. The plan has
    the smallest number of all-to-alls, and gathers nothing.

    Parameters
    ----------
    x : jax.Array
        Sharded by a ``NamedSharding``, over any axes. Values of other types than complex64 and complex128 are converted
        as by ``jax.numpy.fft``.
    axes : int or sequence of int, optional
        The axes to transform, each once; all by default.
    norm : {"backward", "ortho", "forward"}, optional
        As in ``numpy.fft``.
    out_spec : jax.sharding.PartitionSpec, optional
        The split of the result, over the same mesh. By default the result is sharded like `x`. The split in which the
        last transform leaves the values saves an all-to-all; see the notes.
    chunks : int, optional
        Number of pieces, of which one is transformed while another one is sent; it must divide the extents involved.
        NCCL's all-to-alls of pieces are slower than one; copies by ``XLA_FLAGS=--xla_gpu_use_memcpy_local_p2p=true``
        are not.
    sharding : jax.sharding.NamedSharding, optional
        The sharding of `x`. Needed only if `x` is traced, as under ``jax.jit``.

    Raises
    ------
    InputError
        For invalid arguments, or if `sharding` is needed.
    LayoutError
        If the array cannot be split as `out_spec` says, or an extent permits no plan. A single axis of n elements that
        is split over p devices needs an n that p**2 divides, or another axis of at least p elements.
    UnsupportedTypeError
        If `x` is not a sharded array of JAX.

    Notes
    -----
    A three-dimensional array with ``PartitionSpec("d")`` (slabs) needs two all-to-alls, or one with the ``out_spec``
    ``PartitionSpec(None, "d")``. With ``PartitionSpec("a", "b")`` (pencils) it needs three, or two with
    ``PartitionSpec(None, "a", "b")``; four, if the extents are not divisible. The inverse of such a result, with the
    first spec as its ``out_spec``, needs as many. If no other axis is long enough to be split instead, a split axis is
    transformed by the four-step algorithm [1]_, with three all-to-alls.

    References
    ----------
    .. [1] D. H. Bailey, "FFTs in external or hierarchical memory", The Journal of Supercomputing 4, 23-35, 1990.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
    >>> from collops.bridges.sharded import fftn
    >>> slabs = NamedSharding(Mesh(np.array(jax.devices()), "d"), PartitionSpec("d"))
    >>> x = jax.device_put(np.eye(16, dtype="complex64"), slabs)
    >>> bool(np.allclose(fftn(x), np.fft.fftn(np.eye(16)), atol=1e-4))
    True
    """
    return _applied(Request("fft", _axes(axes), norm, out_spec, chunks), x, sharding)


def ifftn(
    x: jax.Array,
    axes: int | Sequence[int] | None = None,
    norm: Norm = None,
    *,
    out_spec: PartitionSpec | None = None,
    chunks: int = 1,
    sharding: NamedSharding | None = None,
) -> jax.Array:
    """Return the inverse of `fftn`, which has the same parameters and raises the same errors.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
    >>> from collops.bridges.sharded import fftn, ifftn
    >>> slabs = NamedSharding(Mesh(np.array(jax.devices()), "d"), PartitionSpec("d"))
    >>> x = jax.device_put(np.eye(16, dtype="complex64"), slabs)
    >>> X = fftn(x, out_spec=PartitionSpec(None, "d"))
    >>> bool(np.allclose(ifftn(X, out_spec=slabs.spec), x, atol=1e-5))
    True
    """
    return _applied(Request("ifft", _axes(axes), norm, out_spec, chunks), x, sharding)


def rfftn(
    x: jax.Array,
    axes: int | Sequence[int] | None = None,
    norm: Norm = None,
    *,
    out_spec: PartitionSpec | None = None,
    chunks: int = 1,
    sharding: NamedSharding | None = None,
) -> jax.Array:
    """Return the half of the discrete Fourier transform of a real sharded array that determines the other half.

    Parameters and errors as for `fftn`, but `x` must be real. The last of the `axes` has n//2 + 1 elements in the
    result; if it is split in `x`, JAX can mostly not split it in the result, and `out_spec` is needed.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
    >>> from collops.bridges.sharded import rfftn
    >>> slabs = NamedSharding(Mesh(np.array(jax.devices()), "d"), PartitionSpec("d"))
    >>> x = jax.device_put(np.eye(16, dtype="float32"), slabs)
    >>> bool(np.allclose(rfftn(x), np.fft.rfftn(np.eye(16)), atol=1e-4))
    True
    """
    return _applied(Request("rfft", _axes(axes), norm, out_spec, chunks), x, sharding)


def irfftn(
    x: jax.Array,
    axes: int | Sequence[int] | None = None,
    norm: Norm = None,
    *,
    n: int | None = None,
    out_spec: PartitionSpec | None = None,
    chunks: int = 1,
    sharding: NamedSharding | None = None,
) -> jax.Array:
    """Return the inverse of `rfftn`: a real array, whose extent along the last of the `axes` is `n`.

    By default, `n` is 2 (m - 1) for m elements in `x`, as in NumPy; pass it if it is odd. Other parameters and errors
    as for `fftn`.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
    >>> from collops.bridges.sharded import irfftn, rfftn
    >>> slabs = NamedSharding(Mesh(np.array(jax.devices()), "d"), PartitionSpec("d"))
    >>> x = jax.device_put(np.eye(16, 15, dtype="float32"), slabs)
    >>> bool(np.allclose(irfftn(rfftn(x), n=15), x, atol=1e-5))
    True
    """
    return _applied(Request("irfft", _axes(axes), norm, out_spec, chunks, n), x, sharding)


def halo_exchange(
    block: jax.Array,
    depth: int | tuple[int, int],
    axis: int,
    axis_name: str | tuple[str, ...] | None,
    boundary: Boundary = "zeros",
) -> jax.Array:
    """Return the block of a device with planes of the neighbouring blocks, in a function mapped by ``jax.shard_map``.

    One permute for each side. For corners, exchange one axis after the other.

    Parameters
    ----------
    block : jax.Array
        The part of this device.
    depth : int or (int, int)
        Number of planes before and after the block; at most the extent of a block.
    axis : int
        Of the array.
    axis_name : str or tuple of str or None
        The axes of the mesh that `axis` is split over; ``None`` if it is not split.
    boundary : {"zeros", "periodic", "edge"}
        Planes outside the array: zeros, planes of the other end, or copies of the last plane.

    Raises
    ------
    InputError
        For invalid arguments.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from jax.sharding import Mesh, PartitionSpec
    >>> from collops.bridges.sharded import halo_exchange
    >>> mesh, split = Mesh(np.array(jax.devices()), "d"), PartitionSpec("d")
    >>> @jax.jit
    ... @jax.shard_map(mesh=mesh, in_specs=split, out_specs=split)
    ... def differences(block):
    ...     return block - halo_exchange(block, (1, 0), 0, "d")[:-1]
    >>> [float(value) for value in differences(np.arange(16.0))[-2:]]
    [1.0, 1.0]
    """
    if boundary not in _BOUNDARIES:
        raise InputError(f"boundary must be zeros, periodic or edge, not {boundary!r}")
    before, after = (depth, depth) if isinstance(depth, int | np.integer) else depth
    length = block.shape[axis]
    if not 0 <= min(before, after) <= max(before, after) <= length:
        raise InputError(f"the depth {depth} must be between 0 and the {length} planes of a block along axis {axis}")
    parts = 1 if not axis_name else lax.axis_size(axis_name)

    def received(planes: int, begin: int, end: int, step: int) -> jax.Array:
        """Return planes of the neighbour or beyond the boundary; planes at `begin` are sent, one at `end` is copied."""
        sent = lax.slice_in_dim(block, begin, begin + planes, axis=axis)
        if boundary == "periodic":
            ring = [(rank, (rank + step) % parts) for rank in range(parts)]
            return lax.ppermute(sent, axis_name, ring) if parts > 1 else sent
        if parts == 1:
            got = jnp.zeros_like(sent)
        else:  # zeros where nothing is received
            pairs = [(rank, rank + step) for rank in range(parts) if 0 <= rank + step < parts]
            got = lax.ppermute(sent, axis_name, pairs)
        if boundary == "zeros":
            return got
        edge = jnp.broadcast_to(lax.slice_in_dim(block, end, end + 1, axis=axis), sent.shape)
        if parts == 1:
            return edge
        outermost = lax.axis_index(axis_name) == (0 if step > 0 else parts - 1)
        return jnp.where(outermost, edge, got)

    around = [block]
    if before:
        around.insert(0, received(before, length - before, 0, 1))
    if after:
        around.append(received(after, 0, length - 1, -1))
    return jnp.concatenate(around, axis)


def map_overlap(
    function: Callable[[jax.Array], jax.Array],
    x: jax.Array,
    depth: int | Sequence[int],
    boundary: Boundary | Sequence[Boundary] = "zeros",
    *,
    sharding: NamedSharding | None = None,
) -> jax.Array:
    """Apply a function to the block of each device and its halo, as dask's ``map_overlap`` does.

    Two permutes for each split axis with a halo, of the planes of the halo alone. It can be differentiated as far as
    `function` can.

    Parameters
    ----------
    function : callable
        Gets a block with `depth` more planes on either side of each axis, and returns one without them, of any dtype.
    x : jax.Array
        Sharded by a ``NamedSharding``, and the result likewise.
    depth : int or sequence of int
        Planes on either side, for all axes or for each.
    boundary : {"zeros", "periodic", "edge"} or sequence of them
        Planes outside the array, for all axes or for each; see `halo_exchange`.
    sharding : jax.sharding.NamedSharding, optional
        The sharding of `x`. Needed only if `x` is traced, as under ``jax.jit``.

    Raises
    ------
    InputError
        For invalid arguments, or if `sharding` is needed.
    LayoutError
        If `function` does not return a block without the halo.
    UnsupportedTypeError
        If `x` is not a sharded array of JAX.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
    >>> from collops.bridges.sharded import map_overlap
    >>> split = NamedSharding(Mesh(np.array(jax.devices()), "d"), PartitionSpec("d"))
    >>> x = jax.device_put(np.arange(16.0), split)
    >>> y = map_overlap(lambda block: block[2:] - block[:-2], x, 1, "edge")
    >>> bool((y[1:-1] == 2).all()) and float(y[0]) == 1
    True
    """
    if not isinstance(x, jax.Array):
        raise UnsupportedTypeError(f"expected a sharded array of JAX, not {type_name(x)}")
    depths = (int(depth),) * x.ndim if isinstance(depth, int | np.integer) else tuple(map(int, depth))
    boundaries = (boundary,) * x.ndim if isinstance(boundary, str) else tuple(boundary)
    if not len(depths) == len(boundaries) == x.ndim:
        raise InputError(f"depth and boundary must have a value for each of {x.ndim} axes: {depths}, {boundaries}")
    sharding = _sharding_of(x, sharding)
    names_of(sharding.spec, x.shape, sharding.mesh)
    return _overlapped(function, depths, boundaries, sharding, x)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _overlapped(
    function: Callable[[jax.Array], jax.Array],
    depths: tuple[int, ...],
    boundaries: tuple[Boundary, ...],
    sharding: NamedSharding,
    x: jax.Array,
) -> jax.Array:
    names = [*sharding.spec, *[None] * (x.ndim - len(sharding.spec))]

    def on_device(block: jax.Array) -> jax.Array:
        shape = block.shape
        for axis, depth in enumerate(depths):
            if depth:
                block = halo_exchange(block, depth, axis, names[axis], boundaries[axis])
        result = function(block)
        if jnp.shape(result) != shape:
            raise LayoutError(f"the function must return a block of shape {shape}, not {jnp.shape(result)}")
        return result

    return jax.shard_map(on_device, mesh=sharding.mesh, in_specs=sharding.spec, out_specs=PartitionSpec(*names))(x)


def sparse_product(matrix: sparse.sparray | sparse.spmatrix, sharding: NamedSharding) -> jax.tree_util.Partial:
    """Return the function that multiplies sharded vectors by a sparse matrix, each device its block of rows.

    A product needs one all-to-all of the elements that the rows of other devices need, padded to the largest number
    between two devices; none on one device. The function is a pytree: pass it to functions that JAX transforms. It can
    be differentiated by the vector and by the entries.

    Parameters
    ----------
    matrix : scipy.sparse array or matrix
        The number of devices must divide both extents. All processes need the whole matrix.
    sharding : jax.sharding.NamedSharding
        Of the vectors and the products: a split of their first axis. Vectors may have further axes, as columns.

    Raises
    ------
    LayoutError
        If the sharding does not split the first axis alone, or not into equal parts.
    UnsupportedTypeError
        If `matrix` is not a sparse matrix of SciPy, or `sharding` not a ``NamedSharding``.

    Examples
    --------
    >>> import jax, numpy as np, scipy.sparse
    >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
    >>> from collops.bridges.sharded import sparse_product
    >>> split = NamedSharding(Mesh(np.array(jax.devices()), "d"), PartitionSpec("d"))
    >>> differences = sparse_product(scipy.sparse.diags_array([1.0, -1.0], offsets=[0, -1], shape=(16, 16)), split)
    >>> y = differences(jax.device_put(np.arange(16.0), split))
    >>> float(y[0]), bool((y[1:] == 1).all())
    (0.0, True)
    """
    if not sparse.issparse(matrix):
        raise UnsupportedTypeError(f"expected a sparse matrix of SciPy, not {type_name(matrix)}")
    if not isinstance(sharding, NamedSharding):
        raise UnsupportedTypeError(f"sharding must be a NamedSharding, not {type_name(sharding)}")
    (names,), _ = [names_of(sharding.spec, (extent,), sharding.mesh) for extent in matrix.shape]
    parts = math.prod(sharding.mesh.shape[name] for name in names)
    rows, columns = (extent // parts for extent in matrix.shape)
    blocks = [sparse.coo_array(sparse.csr_array(matrix)[part * rows : (part + 1) * rows]) for part in range(parts)]
    needed = [
        [
            np.unique(block.col[block.col // columns == owner]) if owner != part else block.col[:0]
            for owner in range(parts)
        ]
        for part, block in enumerate(blocks)
    ]
    most = max(len(indices) for row in needed for indices in row)
    entries = max(block.nnz for block in blocks)
    sent = np.zeros((parts, parts, most), np.int32)  # by sender and receiver: elements of the sender's part
    values, row, column = np.zeros((parts, entries), matrix.dtype), *np.zeros((2, parts, entries), np.int32)
    row[...] = rows - 1  # sorted, also behind the last entry
    for part, block in enumerate(blocks):
        values[part, : block.nnz], row[part, : block.nnz] = block.data, block.row
        for owner, indices in enumerate(needed[part]):
            sent[owner, part, : len(indices)] = indices - owner * columns
            own = block.col // columns == owner
            place = columns + owner * most + np.searchsorted(indices, block.col[own])
            column[part, : block.nnz][own] = block.col[own] - part * columns if owner == part else place
    split = NamedSharding(sharding.mesh, PartitionSpec(names or None))
    tables = [
        jax.make_array_from_callback(table.shape, split, lambda index, table=table: table[index])
        for table in (values, row, column, sent)
    ]
    return jax.tree_util.Partial(partial(_multiplied, split, matrix.shape), *tables)


@partial(jax.jit, static_argnums=(0, 1))
def _multiplied(
    split: NamedSharding,
    shape: tuple[int, int],
    values: jax.Array,
    row: jax.Array,
    column: jax.Array,
    sent: jax.Array,
    x: jax.Array,
) -> jax.Array:
    (names,) = split.spec
    if x.ndim == 0 or x.shape[0] != shape[1]:
        raise LayoutError(f"a matrix of shape {shape} cannot multiply an array of shape {x.shape}")
    rows = shape[0] // len(values)

    def on_device(values: jax.Array, row: jax.Array, column: jax.Array, sent: jax.Array, x: jax.Array) -> jax.Array:
        if sent.size:
            received = lax.all_to_all(x[sent[0]], names, 0, 0, tiled=True)
            x = jnp.concatenate([x, received.reshape(-1, *x.shape[1:])])
        terms = values[0].reshape(-1, *[1] * (x.ndim - 1)) * x[column[0]]
        return jax.ops.segment_sum(terms, row[0], rows, indices_are_sorted=True)

    return jax.shard_map(on_device, mesh=split.mesh, in_specs=split.spec, out_specs=split.spec)(
        values, row, column, sent, x
    )


def _axes(axes: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if axes is None:
        return None
    return (int(axes),) if isinstance(axes, int | np.integer) else tuple(axes)


def _applied(request: Request, x: jax.Array, sharding: NamedSharding | None) -> jax.Array:
    if not isinstance(x, jax.Array):
        raise UnsupportedTypeError(f"expected a sharded array of JAX, not {type_name(x)}")
    if isinstance(x, Tracer):
        return _differentiable(request, x, sharding)
    return _transform(request, x, sharding)  # calls of jax.custom_jvp take long in eager programs


def _transform(request: Request, x: jax.Array, sharding: NamedSharding | None) -> jax.Array:
    sharding = _sharding_of(x, sharding)
    if request.kind == "rfft" and jnp.iscomplexobj(x):
        raise UnsupportedTypeError(f"rfftn takes a real array, not {x.dtype}: use fftn")
    return compiled(request, x.shape, sharding)(x)


@partial(jax.custom_jvp, nondiff_argnums=(0, 2))
def _differentiable(request: Request, x: jax.Array, sharding: NamedSharding | None) -> jax.Array:
    """Transform an array that is traced; eager derivatives call this function with its values."""
    return _transform(request, x, sharding)


@_differentiable.defjvp
def _tangent(
    request: Request,
    sharding: NamedSharding | None,
    primals: tuple[jax.Array],
    tangents: tuple[jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Transform the tangent, which has the sharding of the array."""
    (x,), (tangent,) = primals, tangents
    return _applied(request, x, sharding), _applied(request, tangent, _sharding_of(x, sharding))


def _sharding_of(x: jax.Array, sharding: NamedSharding | None) -> NamedSharding:
    """Return the sharding of an array, which the user must pass if the array is traced."""
    if sharding is None:
        if isinstance(x, Tracer):
            raise InputError("pass sharding=, the sharding of the array, in functions that JAX traces")
        sharding = x.sharding if isinstance(x.sharding, NamedSharding) else None
        if sharding is None:
            raise UnsupportedTypeError(
                f"expected an array with a NamedSharding, but it has {x.sharding}: place it by jax.device_put"
            )
    if not isinstance(sharding, NamedSharding):
        raise UnsupportedTypeError(f"sharding must be a NamedSharding, not {type_name(sharding)}")
    return sharding
