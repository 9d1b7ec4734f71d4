"""Jacobi's method with many multi-GPU programming models, written like a program of a collops user.

Each model is a short file that shows its sweep, its exchange and its norm from top to bottom. The table `MODELS` lists
them. ``collops jacobi`` runs and times them, and compares the values of each with a run on one rank, point by point.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from collops import Communicator, from_mpi4py
from collops.errors import InputError, TransportError
from collops.extend.communication import missing_for_nccl, missing_for_nvshmem
from collops.extend.engines import Engine
from collops.jacobi.blocked import Blocked
from collops.jacobi.device_puts import BlockPuts, ElementPuts, WarpPuts
from collops.jacobi.graphs import Graphs
from collops.jacobi.measure import Run, run
from collops.jacobi.messages import Messages
from collops.jacobi.nccl_device import NcclDevice
from collops.jacobi.one_process import (
    Copies,
    OneProcess,
    ThreadsCopies,
    ThreadsManaged,
    ThreadsOverlap,
    ThreadsPeer,
    chosen_devices,
)
from collops.jacobi.one_sided import OneSided
from collops.jacobi.overlap import Overlap
from collops.jacobi.peer import Peer
from collops.jacobi.persistent import Persistent
from collops.jacobi.problem import Grid, Problem
from collops.jacobi.variant import Single, Variant

__all__ = ["MODELS", "Grid", "Model", "Problem", "Run", "Variant", "make", "obstacle", "run"]


class Model(NamedTuple):
    """A programming model."""

    summary: str  # how halos are exchanged, in a few words
    variant: type[Variant]  # the class that iterates
    memory: tuple[str, ...]  # possible memories of its grids
    transport: str | None = None  # required for its messages of device arrays
    symmetric: bool = False  # whether it needs memory that all ranks can address
    missing: Callable[[], str | None] | None = None  # for kernels that call a library: returns the missing component


_BOTH, _HOST, _DEVICE = ("host", "device"), ("host",), ("device",)
_puts = partial(Model, memory=_DEVICE, symmetric=True, missing=missing_for_nvshmem)

MODELS = {
    "single": Model("one rank alone", Single, _BOTH),
    "copies": Model("one process, one thread: copies between its devices", Copies, _BOTH),
    "threads_copies": Model("the same with a thread for each device", ThreadsCopies, _BOTH),
    "threads_overlap": Model("boundary first, copies while the inner points are swept", ThreadsOverlap, _BOTH),
    "threads_peer": Model("kernels of one process store into other devices' memory", ThreadsPeer, _BOTH),
    "threads_managed": Model("one array in managed memory for all devices", ThreadsManaged, _BOTH),
    "staged": Model("halos through pinned host memory", Messages, _DEVICE, "staged"),
    "mpi": Model("halos by MPI, GPU-aware on GPUs", Messages, _BOTH, "mpi"),
    "mpi_overlap": Model("halos by MPI, while the inner points are swept", Overlap, _BOTH, "mpi"),
    "nccl": Model("halos by NCCL, in stream order", Messages, _DEVICE, "nccl"),
    "nccl_overlap": Model("boundary first, NCCL while the inner points are swept", Overlap, _DEVICE, "nccl"),
    "nccl_graphs": Model("nccl_overlap, replayed from CUDA graphs", Graphs, _DEVICE, "nccl"),
    "peer": Model("kernels store into the neighbours' memory", Peer, _DEVICE, symmetric=True),
    "nvshmem": Model("puts with signals on streams", OneSided, _DEVICE, symmetric=True),
    "nvshmem_element": _puts("kernels put single elements by NVSHMEM", ElementPuts),
    "nvshmem_warp": _puts("kernels put a strip by NVSHMEM, a warp at a time", WarpPuts),
    "nvshmem_block": _puts("kernels put with signals by NVSHMEM, a block at a time", BlockPuts),
    "nccl_device": Model(
        "kernels store at addresses from NCCL's device functions",
        NcclDevice,
        _DEVICE,
        "nccl",
        symmetric=True,
        missing=missing_for_nccl,
    ),
    "persistent": Model("the whole loop in one kernel", Persistent, _DEVICE, symmetric=True),
    "blocked": Model("several sweeps between two passages through memory", Blocked, _DEVICE),
    "shared": Model("puts with signals in a shared window of MPI", OneSided, _HOST, symmetric=True),
}
"""All programming models by name, in the order of NVIDIA's course."""


def obstacle(name: str, comm: Communicator, engine: Engine, devices: Sequence[int] | None = None) -> str | None:
    """Return why these ranks cannot run a programming model on `engine`, or ``None``. Collective.

    `devices` are as for :func:`make`.

    Raises
    ------
    InputError
        If there is no such model or device.
    """
    if name not in MODELS:
        raise InputError(f"there is no variant {name!r}: choose one of {', '.join(MODELS)}")
    model = MODELS[name]
    if not engine.mutable or engine.memory not in model.memory:
        arrays = " and ".join({"host": "numpy", "device": "cupy"}[memory] for memory in model.memory)
        return f"{name} is for {arrays} arrays"
    if devices is not None and not issubclass(model.variant, OneProcess):
        return f"{name} has one device for each rank: leave out devices"
    if comm.size > 1 and issubclass(model.variant, (Single, OneProcess)):
        return f"{name} runs on one rank"
    if issubclass(model.variant, OneProcess):
        chosen = chosen_devices(engine, devices)
        return model.variant.refusal(engine, chosen) if engine.memory == "device" else None
    if model.missing is not None and comm.size == 1:
        return f"{name} needs several ranks"
    if comm.size == 1:
        return None
    if model.symmetric and comm.local_size != comm.size:
        return f"{name} needs all ranks on one node"
    if model.symmetric and engine.memory == "host" and comm.host_transport == "tcp":
        return f"{name} needs MPI"
    heap = model.symmetric and engine.memory == "device" and model.transport is None
    if heap and importlib.util.find_spec("nvshmem") is None:
        return f"{name} needs nvshmem4py"
    if model.missing is not None and (reasons := [*filter(None, comm.allgather_metadata(model.missing()))]):
        return f"{name} {reasons[0]}"
    try:
        _connected(model, comm, engine)
    except TransportError as error:
        return str(error)
    return None


def make(
    name: str,
    problem: Problem,
    comm: Communicator,
    engine: Engine,
    process_grid: Sequence[int] | None = None,
    devices: Sequence[int] | None = None,
) -> Variant:
    """Make a programming model, a key of `MODELS`, ready to iterate with grids of `engine`. Collective.

    `process_grid` is the number of blocks along rows and columns, by default blocks of whole rows.
    `devices` are the numbers of the GPUs for a model in which one process drives several, by default all that it sees;
    a GPU may be listed several times. On hosts each number stands for a thread, by default one for each core.

    Raises
    ------
    InputError
        If there is no such model or device, or these ranks cannot run it.
    LayoutError
        If there are more `devices` than rows, or if ranks would have no points where the model requires some.
    """
    reason = obstacle(name, comm, engine, devices)
    if reason is not None:
        raise InputError(f"variant {name}: {reason}")
    model = MODELS[name]
    if issubclass(model.variant, OneProcess):
        return model.variant(problem, comm, engine, process_grid, devices)
    return model.variant(problem, _connected(model, comm, engine), engine, process_grid)


def _connected(model: Model, comm: Communicator, engine: Engine) -> Communicator:
    """Return a communicator of the same ranks that sends device arrays by the model's transport."""
    if model.transport in (None, comm.device_transport) or comm.size == 1 or engine.memory == "host":
        return comm
    return from_mpi4py(comm.control, model.transport)
