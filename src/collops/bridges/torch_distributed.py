"""DTensors of PyTorch as distributed arrays, and back; placements as layouts; ranks that ``torchrun`` has started."""

from __future__ import annotations

import math
import os
import secrets
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from collops import Communicator, DistributedArray, Layout
from collops import world as launched_world
from collops.bridges.torch import from_torch, to_torch
from collops.errors import LayoutError, UnsupportedTypeError, type_name
from collops.extend.arrays import as_shape
from collops.extend.communication import collective_values, communicator_or_world

if TYPE_CHECKING:  # builds without torch.distributed have all but DTensors
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement

__all__ = ["from_dtensor", "placements_to_layout", "to_dtensor", "world"]


def world() -> Communicator:
    """Return :func:`collops.world`, also in processes that ``torchrun`` has started. Collective at its first call.

    Under ``torchrun`` the ranks connect without MPI, at the host of rank 0: it puts a free port and a secret into the
    store of ``torchrun``, from which the others read them. The function sets ``COLLOPS_BOOTSTRAP`` and
    ``COLLOPS_SECRET`` in the environment of this process, unless ``COLLOPS_BOOTSTRAP`` is set. Call it before
    :func:`collops.world`, before or after ``torch.distributed.init_process_group``, which it does not need.

    Notes
    -----
    Until all ranks are connected, any program that can connect to the store of ``torchrun`` can read the secret:
    ``torch.distributed`` itself trusts the network. If yours is shared, set both variables as described in the page on
    clusters.

    Examples
    --------
    >>> from collops.bridges.torch_distributed import world
    >>> comm = world()
    >>> 0 <= comm.rank < comm.size
    True
    """
    torchrun = torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()
    if not torchrun or os.environ.get("COLLOPS_BOOTSTRAP"):
        return launched_world()
    store, rank, _ = next(torch.distributed.rendezvous("env://"))
    key = f"collops {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"  # one store serves the ranks of all restarts
    if rank == 0:
        with socket.socket() as unused:
            unused.bind(("", 0))
            port = unused.getsockname()[1]
        store.set(key, f"{port} {secrets.token_hex(32)}")
    port, secret = store.get(key).decode().split()
    os.environ["COLLOPS_BOOTSTRAP"] = f"tcp://{os.environ['MASTER_ADDR']}:{port}"
    os.environ["COLLOPS_SECRET"] = secret
    comm = launched_world()
    if rank == 0:
        store.delete_key(key)  # all ranks have read it
    return comm


def placements_to_layout(
    placements: Sequence[Placement], mesh_shape: Sequence[int], shape: int | Sequence[int]
) -> Layout:
    """Return the layout that holds the parts of a DTensor on the same ranks. No messages.

    Parameters
    ----------
    placements : sequence of Placement
        ``Shard(axis)`` or ``Replicate()`` for each axis of the mesh. Uneven parts have the sizes of ``torch.chunk``:
        7 elements on 3 ranks are 3, 3 and 1.
    mesh_shape : sequence of int
        Shape of the mesh, ``mesh.shape``; its devices belong to the ranks in C order.
    shape : int or sequence of int
        Global shape.

    Raises
    ------
    LayoutError
        If a number of axes does not fit, or if axes of the mesh that are not neighbours shard one axis.
    UnsupportedTypeError
        If a placement is ``Partial``, whose ranks hold terms of a sum, or of another class.

    Examples
    --------
    >>> from torch.distributed.tensor import Shard
    >>> from collops.bridges.torch_distributed import placements_to_layout
    >>> placements_to_layout([Shard(0)], (3,), (7, 2)).sizes[0]
    (3, 3, 1)
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    shape = as_shape(shape)
    if len(placements) != len(mesh_shape):
        raise LayoutError(f"a mesh of the shape {mesh_shape} needs a placement per axis, not {list(placements)}")
    grid: list[int] = []
    axes: list[int | None] = [None] * len(shape)
    sizes = [[extent] for extent in shape]
    for placement, ranks in zip(placements, mesh_shape, strict=True):
        if isinstance(placement, Partial):
            raise UnsupportedTypeError(
                f"the ranks hold terms of a sum, {placement}: first call x.redistribute(placements=...) with Shard or "
                "Replicate"
            )
        if type(placement) not in (Shard, Replicate):
            raise UnsupportedTypeError(f"a placement must be Shard or Replicate, not {placement!r}")
        if ranks == 1:
            continue
        if isinstance(placement, Replicate):
            grid.append(ranks)
            continue
        if not -len(shape) <= placement.dim < len(shape):
            raise LayoutError(f"{placement!r} is for an array with more axes than {shape}")
        axis = placement.dim % len(shape)
        sizes[axis] = [size for block in sizes[axis] for size in _chunks(block, ranks)]
        if axes[axis] is None:
            axes[axis] = len(grid)
            grid.append(ranks)
        elif axes[axis] == len(grid) - 1:
            grid[-1] *= ranks
        else:
            raise LayoutError(
                f"no layout splits axis {axis} over axes of the mesh that are not neighbours: {placements}"
            )
    return Layout(shape, math.prod(mesh_shape), grid, axes, sizes)


def from_dtensor(x: DTensor, layout: Layout | None = None, comm: Communicator | None = None) -> DistributedArray:
    """Return a DTensor as a distributed array, which shares its memory. Collective: three metadata messages.

    Parameters
    ----------
    x : DTensor
        On the CPU or on CUDA devices; its mesh has all ranks, in their order.
    layout : Layout, optional
        By default the layout of `x`, :func:`placements_to_layout`. Another one takes one redistribution, and the result
        has its own memory.
    comm : Communicator, optional
        The ranks; the world by default. Their numbers in ``torch.distributed`` may differ.

    Raises
    ------
    LayoutError
        On every rank, if no layout has the parts of `x`, or the mesh has other ranks or another order.
    UnsupportedTypeError
        On every rank, if `x` is not a DTensor, is ``Partial``, requires gradients, or as for :func:`from_torch`. For
        derivatives apply operators to ``x.to_local()`` by :func:`apply`.

    Examples
    --------
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> from torch.distributed.tensor import Shard, zeros
    >>> from collops.bridges.torch_distributed import from_dtensor, world
    >>> comm = world()
    >>> mesh = init_device_mesh("cpu", (comm.size,))  # doctest: +SKIP
    >>> x = zeros(7, device_mesh=mesh, placements=[Shard(0)])  # doctest: +SKIP
    >>> array = from_dtensor(x)  # doctest: +SKIP
    >>> array += 1  # also the elements of x  # doctest: +SKIP
    """
    from torch.distributed.tensor import DTensor

    comm = communicator_or_world(comm)

    def described() -> list[int]:
        if not isinstance(x, DTensor):
            raise UnsupportedTypeError(f"from_dtensor takes a DTensor, not {type_name(x)}; see from_torch")
        placements_to_layout(x.placements, x.device_mesh.shape, x.shape)
        return _numbers(x.device_mesh)

    _check_order(collective_values(comm, described))
    tensor: Any = x.to_local()
    if hasattr(tensor, "wait"):  # an AsyncCollectiveTensor, whose values may not have arrived
        tensor = tensor.wait()
    array = from_torch(tensor, placements_to_layout(x.placements, x.device_mesh.shape, x.shape), comm=comm)
    return array if layout is None or layout is array.layout else array.redistribute(layout)


def to_dtensor(x: DistributedArray, mesh: DeviceMesh, placements: Sequence[Placement] | None = None) -> DTensor:
    """Return a distributed array as a DTensor. Collective: one metadata message, and one redistribution if needed.

    Parameters
    ----------
    x : DistributedArray
        Of NumPy for a mesh of the CPU, of CuPy for a mesh of CUDA devices.
    mesh : DeviceMesh
        All ranks, in their order.
    placements : sequence of Placement, optional
        ``Shard(axis)`` or ``Replicate()`` for each axis of the mesh; by default as `x` is split. The result shares the
        memory of `x` if the parts are the same. Otherwise `x` is redistributed once: layouts of collops split 7
        elements into 3, 2 and 2, unlike ``torch.chunk``.

    Raises
    ------
    LayoutError
        On every rank, if the mesh has other ranks or another order, its shape does not fit the process grid and
        `placements` is missing, or no layout has the parts.
    UnsupportedTypeError
        As for :func:`to_torch`, if a placement is ``Partial``, or the devices of the mesh are not where `x` is.

    Examples
    --------
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> from collops.bridges.torch_distributed import to_dtensor, world
    >>> comm = world()
    >>> mesh = init_device_mesh("cpu", (comm.size,))  # doctest: +SKIP
    >>> to_dtensor(collops.ones((8, 3)), mesh).full_tensor().sum()  # doctest: +SKIP
    tensor(24., dtype=torch.float64)
    """
    from torch.distributed.tensor import DTensor

    if not isinstance(x, DistributedArray):
        raise UnsupportedTypeError(f"to_dtensor takes a distributed array, not {type_name(x)}")

    def described() -> list[int]:
        device = "cpu" if x.engine.memory == "host" else "cuda"
        if mesh.device_type != device:
            raise UnsupportedTypeError(f"the array is on {device}, the mesh has devices of {mesh.device_type}")
        placements_to_layout(chosen(), mesh.shape, x.shape)
        return _numbers(mesh)

    def chosen() -> Sequence[Placement]:
        return _placements(x.layout, mesh) if placements is None else placements

    _check_order(collective_values(x.comm, described))
    layout = placements_to_layout(chosen(), mesh.shape, x.shape)
    if layout is not x.layout:
        x = x.redistribute(layout)
    stride = torch.empty(x.shape, device="meta").stride()
    return DTensor.from_local(to_torch(x), mesh, chosen(), shape=torch.Size(x.shape), stride=stride)


def _chunks(extent: int, ranks: int) -> list[int]:
    """Return the sizes of the parts of ``torch.chunk``, with empty ones for the last ranks."""
    size = -(-extent // ranks)
    return [max(0, min(size, extent - size * rank)) for rank in range(ranks)]


def _placements(layout: Layout, mesh: DeviceMesh) -> list[Placement]:
    """Return placements that split the axes of an array over the ranks like a layout, with parts of other sizes."""
    from torch.distributed.tensor import Replicate, Shard

    placements: list[Placement] = []
    grid = iter(enumerate(layout.process_grid))
    number, left = next(grid)
    for ranks in mesh.shape:
        if left == 1 and ranks > 1:
            number, left = next(grid, (number, 1))
        if left % ranks:
            raise LayoutError(
                f"the mesh of the shape {mesh.shape} does not fit the process grid {layout.process_grid} of the array: "
                "give placements"
            )
        left //= ranks
        axis = layout.axes.index(number) if number in layout.axes and ranks > 1 else None
        placements.append(Replicate() if axis is None else Shard(axis))
    return placements


def _numbers(mesh: DeviceMesh) -> list[int]:
    """Return the number of this rank in the default process group, followed by the numbers of the mesh."""
    return [torch.distributed.get_rank(), *mesh.mesh.flatten().tolist()]


def _check_order(numbers: Sequence[list[int]]) -> None:
    """Raise LayoutError unless the meshes of all ranks have the numbers of the ranks in their order."""
    ranks = [own for own, *_ in numbers]
    for _, *of_mesh in numbers:
        if of_mesh != ranks:
            raise LayoutError(
                f"the mesh must have the ranks of the communicator in their order, {ranks} in torch.distributed, not "
                f"{of_mesh}"
            )
