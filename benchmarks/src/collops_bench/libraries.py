"""Collectives of ``torch.distributed``, nccl4py's high-level interface and NVSHMEM, on the buffers of ``collectives``.

``torch.distributed`` uses Gloo on hosts and NCCL on GPUs. Its allreduce and its broadcast work in place, so that their
times include a copy from the source to the target, which is what the other programs have afterwards too.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from collops_bench.peers import why_no_package

if TYPE_CHECKING:
    from collops_bench.registry import Context

__all__ = ["NVSHMEM", "further_libraries"]

_TORCH, _NCCL4PY, NVSHMEM = "torch.distributed", "nccl4py, high-level", "NVSHMEM"
_Library: TypeAlias = "_Torch | _HighLevelNccl | _Nvshmem"


def further_libraries(context: Context) -> dict[str, _Library | str]:
    """Return each library by its name, or the reason why it is not measured. Collective."""
    device = context.engine.memory == "device"
    found: dict[str, _Library | str] = {}
    on_devices = [(_NCCL4PY, "nccl.core", "nccl4py", _HighLevelNccl), (NVSHMEM, "nvshmem", "nvshmem4py-cu13", _Nvshmem)]
    for name, module, package, make in (
        (_TORCH, "torch.distributed", "torch", _Torch),
        *(on_devices if device else []),
    ):
        reason = "one rank sends no messages" if context.comm.size == 1 else None
        if reason is None:
            reason = why_no_package(context, module, package=package)
        if reason is None and device and context.comm.device_transport != "nccl":
            reason = "there is no NCCL here"
        found[name] = make(context) if reason is None else reason
    return found


class _Torch:
    """``torch.distributed`` among all ranks."""

    def __init__(self, context: Context) -> None:
        import torch
        from torch import distributed

        comm, device = context.comm, context.engine.memory == "device"
        self._torch, self._distributed, self._device = torch, distributed, device
        self._rank, self._size = comm.rank, comm.size
        if device:
            torch.cuda.set_device(context.engine.xp.cuda.Device().id)
        # The store listens on a free port of rank 0's host.
        host = "127.0.0.1" if comm.local_size == comm.size else comm.allgather_metadata(socket.gethostname())[0]
        store = distributed.TCPStore(host, 0, comm.size, True, wait_for_workers=False) if comm.rank == 0 else None
        port = comm.allgather_metadata(0 if store is None else store.port)[0]
        store = store or distributed.TCPStore(host, port, comm.size, False, wait_for_workers=False)
        backend = "nccl" if device else "gloo"
        distributed.init_process_group(backend, store=store, rank=comm.rank, world_size=comm.size)

    def program(self, operation: str, buffers: Any) -> Callable[[], Any]:
        to_tensor = self._torch.as_tensor if self._device else self._torch.from_numpy
        options = {"device": "cuda"} if self._device else {}
        source, target = (to_tensor(array, **options) for array in (buffers.source, buffers.target))
        module = self._distributed
        # PyTorch 2.13 warns of the names before.
        gather = getattr(module, "all_gather_single", module.all_gather_into_tensor)
        scatter = getattr(module, "reduce_scatter_single", module.reduce_scatter_tensor)
        after, before = (self._rank + 1) % self._size, (self._rank - 1) % self._size

        def allreduce() -> None:
            target.copy_(source)
            module.all_reduce(target)

        def bcast() -> None:
            if self._rank == 0:
                target.copy_(source)
            module.broadcast(target, 0)

        def sendrecv() -> None:
            both = [module.P2POp(module.isend, source, after), module.P2POp(module.irecv, target, before)]
            for request in module.batch_isend_irecv(both):
                request.wait()

        programs: dict[str, Callable[[], Any]] = {
            "allreduce": allreduce,
            "bcast": bcast,
            "allgather": lambda: gather(target.view(-1), source),
            "reduce_scatter": lambda: scatter(target, source.view(-1)),
            "alltoall": lambda: module.all_to_all_single(target, source),
            "sendrecv": sendrecv,
        }
        return programs[operation]

    def close(self) -> None:
        self._distributed.destroy_process_group()


class _HighLevelNccl:
    """The communicator of ``nccl.core``, which works out types and counts from arrays in every call."""

    def __init__(self, context: Context) -> None:
        from nccl import core

        comm = context.comm
        self._core: Any = core
        self._rank, self._size = comm.rank, comm.size
        name = comm.control.bcast(bytes(core.get_unique_id()) if comm.rank == 0 else None)
        self._comm = core.Communicator.init(comm.size, comm.rank, core.UniqueId.from_bytes(name))

    def program(self, operation: str, buffers: Any) -> Callable[[], Any]:
        import cupy

        core, comm = self._core, self._comm
        source, target = buffers.source.reshape(-1), buffers.target.reshape(-1)
        after, before = (self._rank + 1) % self._size, (self._rank - 1) % self._size
        stream = cupy.cuda.get_current_stream().ptr

        def sendrecv() -> None:
            with core.group():
                comm.send(source, after, stream=stream)
                comm.recv(target, before, stream=stream)

        programs: dict[str, Callable[[], Any]] = {
            "allreduce": lambda: comm.allreduce(source, target, core.SUM, stream=stream),
            "bcast": lambda: comm.broadcast(source, target, 0, stream=stream),
            "allgather": lambda: comm.allgather(source, target, stream=stream),
            "reduce_scatter": lambda: comm.reduce_scatter(source, target, core.SUM, stream=stream),
            "alltoall": lambda: comm.alltoall(source, target, stream=stream),
            "sendrecv": sendrecv,
        }
        return programs[operation]

    def close(self) -> None:
        self._comm.destroy()


class _Nvshmem:
    """NVSHMEM's collectives on a stream, among all ranks, of buffers in its heap, which collops has initialised."""

    def __init__(self, context: Context) -> None:
        from nvshmem import bindings

        self._bindings: Any = bindings

    def program(self, operation: str, buffers: Any) -> Callable[[], Any]:
        import cupy

        bindings, stream = self._bindings, cupy.cuda.get_current_stream().ptr
        addresses = buffers.target.data.ptr, buffers.source.data.ptr
        world = 0  # NVSHMEM_TEAM_WORLD
        name, count, root = {
            "allreduce": ("sum_reduce", buffers.source.size, ()),
            "bcast": ("broadcast", buffers.source.size, (0,)),
            "allgather": ("fcollect", buffers.source.size, ()),
            "reduce_scatter": ("sum_reducescatter", buffers.target.size, ()),
            "alltoall": ("alltoall", buffers.source[0].size, ()),
        }[operation]
        return partial(getattr(bindings, f"float_{name}_on_stream"), world, *addresses, count, *root, stream)

    def close(self) -> None:
        """Do nothing: collops ends NVSHMEM with the program."""
