"""Symmetric memory of GPUs in windows of NCCL, whose collectives read and write it without copies.

Unlike NVSHMEM, which has one heap for all ranks of the program, NCCL has windows for each communicator. Kernels store
into the memory of other ranks at the addresses that NCCL's device functions return.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import numpy as np

from collops._nvrtc import cuda_module
from collops.backend import CudaModule, Engine, LocalArray
from collops.comm.agreement import AnyCommunicator, collective_errors
from collops.comm.device_wait import wait_while_source
from collops.comm.nccl import NcclHandle, NcclTransport, missing_for_windows
from collops.comm.nccl_link import compiled_with_nccl
from collops.comm.reclaim import free_when_unreachable
from collops.comm.symmetric import Symmetric, nbytes_of
from collops.errors import CommunicationError, TransportError

_PAGE = 4096  # bytes; windows consist of whole pages
_THREADS = 256  # of a block
_ADDRESSES = """
extern "C" __global__ void addresses(collops::WindowHandle window, void** found) {
    found[threadIdx.x] = collops::window_of(window, threadIdx.x);
}
"""


class NcclWindow(Symmetric):
    """Memory in a window of NCCL; the signals are at its end.

    Attributes
    ----------
    window : int
        The handle that kernels take as ``ncclWindow_t``.
    """

    def _allocate(self, engine: Engine) -> None:
        comm, self._cupy = self.comm, engine.xp
        with collective_errors(comm):
            if comm.device_transport != "nccl":
                raise TransportError(f"windows of NCCL are not for device arrays by {comm.device_transport}")
            if (reason := missing_for_windows()) is not None:
                raise TransportError(f"memory in windows of NCCL {reason}")
        self._token = engine.xp.zeros(1, np.uint8)
        self._transport = comm.transport_of(self._token)
        self._signals_at = -(-nbytes_of(self.shape, self.dtype) // 8) * 8
        size = -(-max(self._signals_at + 8 * self.signals, 1) // _PAGE) * _PAGE
        with collective_errors(comm, MemoryError):
            if engine.xp.cuda.runtime.memGetInfo()[0] < size:
                engine.xp.get_default_memory_pool().free_all_blocks()
            self._memory = self._transport.allocate(size)
        with collective_errors(comm):
            self._window = self._transport.new_window(self._memory, size)
        self.window = int(self._window.handle)
        releases = [partial(_free_window, comm, self._transport, self._window, self._memory)]
        settle = partial(_wait_for_device, comm, "symmetric memory that nothing refers to")
        self._key = free_when_unreachable(self._owner, comm.ranks, releases, settle=settle, comm=comm)
        self._peer_addresses: list[int] = []
        self.local = self._array(self._memory, self.shape, self.dtype)
        self._array(self._memory, (size,), np.dtype(np.uint8)).fill(0)
        self._barrier()

    def _array(self, address: int, shape: tuple[int, ...], dtype: np.dtype) -> LocalArray:
        device = self._cupy.cuda.Device().id
        memory = self._cupy.cuda.UnownedMemory(address, nbytes_of(shape, dtype), self._owner, device)
        return self._cupy.ndarray(shape, dtype, self._cupy.cuda.MemoryPointer(memory, 0))

    def _base(self, rank: int) -> int:
        """Return the address of the window of `rank` on this rank."""
        if rank == self.comm.rank:
            return self._memory
        if self.comm.nodes[rank] != self.comm.nodes[self.comm.rank]:
            raise CommunicationError(f"the memory of rank {rank} cannot be addressed from here: it is on another node")
        if not self._peer_addresses:
            addresses = self._cupy.empty(self.comm.size, np.uint64)
            kernel = _module(_ADDRESSES, (), self._processor()).get_function("addresses")
            kernel((1,), (self.comm.size,), (np.uint64(self.window), addresses))
            self._peer_addresses = [int(address) for address in addresses.get()]
        return self._peer_addresses[rank]

    def _peer(self, rank: int) -> LocalArray:
        return self.local if rank == self.comm.rank else self._array(self._base(rank), self.shape, self.dtype)

    def _set_signal(self, rank: int, signal: int, value: int) -> None:
        self._launch("set_signal", 1, self._base(rank) + self._signals_at + 8 * signal, value)

    def _wait_signal(self, signal: int, value: int) -> None:
        self._launch("wait_signal", 1, self._memory + self._signals_at + 8 * signal, value)

    def _fetch_add(self, values: LocalArray, rank: int, offset: int, out: LocalArray) -> None:
        self._update("fetch_add", rank, offset, values, out=out)

    def _compare_and_swap(
        self, expected: LocalArray, values: LocalArray, rank: int, offset: int, out: LocalArray
    ) -> None:
        self._update("compare_and_swap", rank, offset, expected, values, out=out)

    def _update(self, name: str, rank: int, offset: int, *operands: LocalArray, out: LocalArray) -> None:
        count = operands[0].size
        target = self._base(rank) + offset
        addresses = (*(operand.data.ptr for operand in operands), 0 if out is None else out.data.ptr)
        self._launch(f"{name}_{8 * self.dtype.itemsize}", count, target, *addresses, count)

    def _launch(self, name: str, threads: int, *arguments: int) -> None:
        """Launch a kernel whose arguments all have 64 bits."""
        if threads:
            kernel = _kernels(self._processor()).get_function(name)
            kernel((-(-threads // _THREADS),), (min(threads, _THREADS),), tuple(map(np.uint64, arguments)))

    def _module(self, source: str, options: tuple[str, ...]) -> CudaModule:
        with collective_errors(self.comm):
            return _module(source, options, self._processor())

    def _processor(self) -> str:
        return f"sm_{self._cupy.cuda.Device().compute_capability}"

    def _barrier(self) -> None:
        self.comm.allreduce(self._token, out=self._token)

    def _wait(self, what: str) -> None:
        _wait_for_device(self.comm, what)

    def _forget(self) -> None:
        self._peer_addresses = []


def _wait_for_device(comm: AnyCommunicator, what: str) -> None:
    import cupy

    comm.wait(cupy.cuda.get_current_stream().record(), what)
    cupy.cuda.Device().synchronize()


def _free_window(comm: AnyCommunicator, transport: NcclTransport, window: NcclHandle, memory: int) -> None:
    _wait_for_device(comm, "freeing symmetric memory")
    transport.free_window(window, memory)


@cache
def _module(source: str, options: tuple[str, ...], processor: str) -> CudaModule:
    """Return kernels that call NCCL's device functions."""
    import cupy

    module = cupy.cuda.Module()
    module.load(compiled_with_nccl(source, processor, options))
    return module


@cache
def _kernels(processor: str) -> CudaModule:
    """Return the kernels of signals and atomic operations for the processor of this device."""
    source = Path(__file__).with_name("symmetric_nccl.cu").read_text(encoding="utf-8")
    return cuda_module(wait_while_source() + source)
