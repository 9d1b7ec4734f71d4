"""Short sums, all-to-alls and exchanges between GPUs of one host, by kernels that store into each other's memory.

NCCL takes 7 to 11 µs for a few numbers between such GPUs, and an iteration of CGLS waits for up to three sums and two
exchanges of halos, one after another. `peer_stores.cu` explains the kernels. Every rank allocates memory for the
communicator, which the other ranks map by CUDA's interprocess handles. The handles need only the control plane, and
work for any ranks of a host, whereas NVSHMEM's heap serves the ranks of one communicator only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

import cupy
import numpy as np

from collops._nvrtc import cuda_module
from collops.backend import CudaKernel, CudaStream, LocalArray
from collops.comm.agreement import MpiComm
from collops.comm.device_launch import Launch
from collops.comm.device_wait import wait_while_source
from collops.comm.nccl import NO_P2P, p2p_is_off
from collops.comm.own_device import own_stream
from collops.comm.transport import KnownExchange

__all__ = ["kernel_source", "map_memory", "unmap_memory"]

LIMIT = 128 << 10
"""Maximum size of an array, or of its part for each rank, in bytes. Two H100 are faster than NCCL even at eight times
this size, but every rank sends twice its values to every other rank."""
MESSAGE_LIMIT = 32 << 10
"""Maximum size of a message of an exchange between two ranks, in bytes."""
_CHUNK = 256  # packets of a block
_WARP, _MAX_THREADS = 32, _CHUNK
_MAX_RANKS, _PACKET, _WORD = 8, 16, 4  # as in peer_stores.cu, and the bytes of a packet and of a word
_VALUES = _PACKET // 2  # bytes of values in a packet
_SUM_BLOCKS, _PAIR_BLOCKS = (limit // (_VALUES * _CHUNK) for limit in (LIMIT, MESSAGE_LIMIT))  # of an inbox
_GRANULE = 2 << 20  # bytes; the smallest size that the driver maps into another process
_TYPES = {2: 2, 3: 2, 4: 3, 5: 3, 7: 0, 8: 1}  # the kernel's numbers of NCCL's types
_FLOAT, _ALLTOALL = 7, 4
_LEGACY = 1  # largest handle of the legacy default stream, which cannot be recorded
Message: TypeAlias = tuple[int, int, int]
_retained: list[object] = []
"""Memory that kernels of any rank may still use after the last reference to it is gone."""


class PeerStores:
    """Launches the short calls of one communicator. All ranks launch the same calls, in the same order.

    Only the ranks that have messages launch an exchange.

    On each device the calls run in this order, whatever the stream. The program must order a CUDA graph that contains
    calls with calls launched on other streams at the same time.

    Parameters
    ----------
    rank : int
        This rank.
    memory : sequence of int
        The addresses of :func:`memory_bytes` zeros of each rank.
    """

    message_limit = MESSAGE_LIMIT

    def __init__(self, rank: int, memory: Sequence[int]) -> None:
        self._size = size = len(memory)
        self._abort_memory = cupy.cuda.alloc_pinned_memory(4)
        self._flag = np.frombuffer(self._abort_memory, np.int32, 1)
        self._flag[0] = 0
        addresses = [*memory, *[0] * (_MAX_RANKS - size)]
        self._rank, capacity = rank, (_SUM_BLOCKS + _PAIR_BLOCKS) * _CHUNK
        epochs = [0] * (_SUM_BLOCKS + _PAIR_BLOCKS * _MAX_RANKS)
        self._link = cupy.asarray(
            np.array([size, rank, capacity, self._abort_memory.ptr, *addresses, *epochs], np.uint64)
        )
        self._kernel, self._pairs_kernel = _kernels(cupy.cuda.Device().id)
        self._launches: dict[tuple[int, int | None], Launch] = {}
        self._one = cupy.zeros(1, np.float32)
        self._barrier_launch = self._prepared(1, _TYPES[_FLOAT])
        self._current = own_stream()
        self._event = cupy.cuda.Event(disable_timing=True)
        self._last = self._current()
        self._stream: int = self._last.ptr
        self._memory = memory
        _retained.append(self._link)
        _retained.append(self._abort_memory)

    def release(self, control: MpiComm) -> None:
        """Free the memory, which no rank uses any more. Collective."""
        _forget(self._link, self._abort_memory)
        unmap_memory(control, self._memory)

    def add_up(self, source: LocalArray, target: LocalArray, nccl_type: int, stream: int) -> bool:
        """Add up contiguous arrays of all ranks on the current stream, whose handle is `stream`.

        Returns whether the kernel takes arrays of this size and NCCL's type.
        """
        return self._launch(source, target, source.nbytes, _TYPES.get(nccl_type), stream)

    def alltoall(self, source: LocalArray, target: LocalArray, stream: int) -> bool:
        """Send each rank its block of a contiguous array; see :meth:`add_up`."""
        return self._launch(source, target, source.nbytes // self._size, _ALLTOALL, stream)

    def _launch(self, source: LocalArray, target: LocalArray, nbytes: int, kind: int | None, stream: int) -> bool:
        launch = self._launches.get((nbytes, kind))
        if launch is None:
            if kind is None or nbytes % _WORD or not 0 < nbytes <= LIMIT:
                return False
            launch = self._launches[nbytes, kind] = self._prepared(nbytes // _WORD, kind)
        if stream != self._stream:
            self._follow(self._current())
        launch(source, target)
        return True

    def exchange(
        self, sends: Sequence[Message], receives: Sequence[Message], stream: CudaStream, known: KnownExchange
    ) -> tuple[Sequence[Message], Sequence[Message]]:
        """Send and receive the short messages of an exchange on `stream`, and return the remaining messages.

        Messages are the other rank, an address and a number of bytes; see :class:`~collops.exchange.ExchangePlan`.
        """
        prepared = known.short
        if prepared is None:
            prepared = known.short = self._prepared_exchange(sends, receives)
        launch, indices, remaining = prepared
        if launch is None:
            return sends, receives
        if stream.ptr != self._stream:
            self._follow(stream)
        messages = (*sends, *receives)
        launch.launch_at([messages[index][1] for index in indices], stream.ptr)
        if remaining is None:
            return (), ()
        return [sends[index] for index in remaining[0]], [receives[index] for index in remaining[1]]

    def join(self) -> int:
        """Order the current stream after earlier calls, for a kernel that ends with a sum, and return its `link`."""
        if self._current().ptr != self._stream:
            self._follow(self._current())
        return self._link.data.ptr

    def barrier(self) -> None:
        """Order later work on the current stream after earlier work on the current streams of all ranks. Collective."""
        stream = self._current()
        if stream.ptr != self._stream:
            self._follow(stream)
        self._barrier_launch.launch_at([self._one.data.ptr] * 2, stream.ptr)

    def abort(self) -> None:
        """End all kernels that wait for other ranks, now and later; their results are undefined."""
        self._flag[0] = 1

    def _prepared(self, words: int, kind: int) -> Launch:
        packets = -(-words // 2)
        threads = min(_MAX_THREADS, -(-packets // _WARP) * _WARP)
        return Launch(self._kernel, -(-packets // _CHUNK), threads, 2, self._link, words, kind)

    def _prepared_exchange(
        self, sends: Sequence[Message], receives: Sequence[Message]
    ) -> tuple[Launch | None, list[int], list[list[int]] | None]:
        """Return the launch of an exchange, the indices of its messages, and the indices of all other messages.

        Both ranks of a pair select the same short messages: by their numbers and lengths, not by addresses.
        """
        short_peers: set[int] = set()
        indices: list[int] = []
        facts: list[int] = []
        packets = 1
        for peer in sorted({rank for rank, *_ in (*sends, *receives)} - {self._rank}):
            ends = [[index for index, (rank, *_) in enumerate(part) if rank == peer] for part in (sends, receives)]
            lengths = [sum(part[index][2] for index in end) for part, end in zip((sends, receives), ends, strict=True)]
            if max(map(len, ends)) == 1 and max(lengths) <= MESSAGE_LIMIT:
                short_peers.add(peer)
                # A missing message of a pair is an empty one, at any address.
                indices += [ends[0][0] if ends[0] else 0, len(sends) + ends[1][0] if ends[1] else 0]
                facts += [peer, *lengths]
                packets = max(packets, -(-max(lengths) // _VALUES))
        launch = None
        if short_peers:
            threads = min(_MAX_THREADS, -(-packets // _WARP) * _WARP)
            blocks = len(short_peers) * -(-packets // _CHUNK)
            padding = [0] * (3 * (_MAX_RANKS - 1) - len(facts))
            arrays = 2 * (_MAX_RANKS - 1)
            launch = Launch(self._pairs_kernel, blocks, threads, arrays, self._link, len(short_peers), *facts, *padding)
        remaining = [
            [index for index, (rank, *_) in enumerate(part) if rank not in short_peers] for part in (sends, receives)
        ]
        return launch, indices, remaining if any(remaining) else None

    def _follow(self, stream: CudaStream) -> None:
        """Order a stream after the stream of the last launch, unless only one of them is being recorded."""
        if _recorded(stream) == _recorded(self._last):
            self._event.record(self._last)
            stream.wait_event(self._event)
        self._last, self._stream = stream, stream.ptr


def memory_bytes(size: int) -> int:
    """Return how many bytes each of `size` ranks needs: two inboxes from each rank."""
    return 2 * size * (_SUM_BLOCKS + _PAIR_BLOCKS) * _CHUNK * _PACKET


def connected(control: MpiComm, nodes: Sequence[int]) -> tuple[PeerStores | None, str]:
    """Return the launcher of short calls for the ranks of `control`, or ``None`` if NCCL runs them, and the reason.

    `nodes` has the first rank of each rank's node. Collective; the result is the same on all ranks.
    """
    if len(set(nodes)) > 1:
        return None, "NCCL, since the ranks are on several hosts"
    if control.size > _MAX_RANKS:
        return None, f"NCCL, since there are more than {_MAX_RANKS} ranks"
    runtime = cupy.cuda.runtime
    if runtime.is_hip:
        return None, "RCCL, since AMD's GPUs read stores of others into ordinary memory late"
    local_device = cupy.cuda.Device().pci_bus_id, p2p_is_off()
    devices, refusals = zip(*control.allgather(local_device), strict=True)
    if any(refusals):
        return None, f"NCCL, since {NO_P2P} turns access to other GPUs off"
    if len(set(devices)) < control.size:
        return None, "NCCL, since ranks share a GPU"
    addresses, problem = map_memory(control, memory_bytes(control.size))
    if problem:
        return None, f"NCCL, since not every GPU can address the memory of the others ({problem})"
    limits = f"up to {LIMIT >> 10} KiB, of exchanges up to {MESSAGE_LIMIT >> 10} KiB"
    return PeerStores(control.rank, addresses), f"{limits}, by stores into each other's memory"


def map_memory(control: MpiComm, nbytes: int) -> tuple[list[int], str]:
    """Allocate zeros on every rank, map them, and return their addresses on this rank, or a problem. Collective.

    Once all ranks have mapped the memory, it is kept until :func:`unmap_memory`, since other ranks may access it. If
    mapping fails on a rank, it is freed. The result is the same on all ranks.
    """
    runtime = cupy.cuda.runtime
    addresses, handle, problem, memory = [], "", "", None
    try:
        memory = cupy.cuda.Memory(-(-nbytes // _GRANULE) * _GRANULE)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            runtime.memsetAsync(memory.ptr, 0, memory.size, stream.ptr)
            stream.synchronize()
        handle = runtime.ipcGetMemHandle(memory.ptr).hex()
    except runtime.CUDARuntimeError as error:
        problem = str(error)
    handles, problems = zip(*control.allgather((handle, problem)), strict=True)
    if memory is not None and not any(problems):
        _retained.append(memory)
        try:
            for rank, remote_handle in enumerate(handles):
                is_local = rank == control.rank
                addresses.append(memory.ptr if is_local else runtime.ipcOpenMemHandle(bytes.fromhex(remote_handle)))
        except runtime.CUDARuntimeError as error:
            problem = str(error)
        problems = control.allgather(problem)
    return addresses, next((f"rank {rank}: {text}" for rank, text in enumerate(problems) if text), "")


def unmap_memory(control: MpiComm, addresses: Sequence[int]) -> None:
    """Free the memory of :func:`map_memory`, which no rank uses any more. Collective."""
    for rank, address in enumerate(addresses):
        if rank != control.rank:
            cupy.cuda.runtime.ipcCloseMemHandle(address)
    control.allgather(None)  # memory is freed when no rank maps it any more
    _forget(*(retained for retained in _retained if getattr(retained, "ptr", None) == addresses[control.rank]))


def _forget(*objects: object) -> None:
    _retained[:] = [retained for retained in _retained if not any(retained is dropped for dropped in objects)]


def _recorded(stream: CudaStream) -> bool:
    """Return whether a CUDA graph is recording a stream."""
    return stream.ptr > _LEGACY and stream.is_capturing()


def kernel_source() -> str:
    """Return the text of ``peer_stores.cu``, also for other kernels that end with a sum over the ranks."""
    text = Path(__file__).with_name("peer_stores.cu").read_text(encoding="utf-8")
    return f"{wait_while_source()}#define CHUNK {_CHUNK}\n#define SUM_BLOCKS {_SUM_BLOCKS}\n{text}"


@cache
def _kernels(device: int) -> tuple[CudaKernel, CudaKernel]:
    module = cuda_module(kernel_source())
    return module.get_function("call_collective"), module.get_function("exchange_pairs")
