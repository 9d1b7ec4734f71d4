"""Symmetric memory of GPUs: NVSHMEM's heap, reached through NVIDIA's nvshmem4py.

Within a node any kernel can address the memory of every rank; between nodes NVSHMEM's calls on streams carry copies and
signals. NVSHMEM is initialised once in a process, for the ranks of the first communicator that requests memory, and
finalised when the program ends. Its heap grows collectively on all these ranks; other communicators therefore use
windows of NCCL.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType

import numpy as np

from collops._forks import register_at_exit
from collops.backend import CudaEvent, CudaModule, Engine, LocalArray
from collops.comm.agreement import collective_errors, collective_values
from collops.comm.communicator import Communicator
from collops.comm.mpi import ranks_in_world
from collops.comm.nvshmem_link import linked_with_nvshmem
from collops.comm.own_device import name_of_device, own_stream
from collops.comm.reclaim import free_when_unreachable
from collops.comm.symmetric import Symmetric, Where, nbytes_of
from collops.comm.symmetric_nccl import NcclWindow
from collops.errors import CommunicationError, InputError, TransportError

_CHUNK = 512 << 20  # bytes by which NVSHMEM's heap grows
_ADAPTERS = "/sys/class/infiniband"
_THREADS = 256  # of a block
# As in NVSHMEM's header files: teams, and the first members of a team's configuration.
_ALL_RANKS, _NO_TEAM = 0, -1
_CONFIG_VERSION, _ANY_CONTEXTS, _HAS_UNIQUE_ID = (2 << 16) + 64, -1, 2


def kind_of(comm: Communicator, registered: bool) -> type[Symmetric]:
    """Return the kind of symmetric memory for several ranks with GPUs. Collective."""
    if registered:
        return NcclWindow
    members = ranks_in_world(comm.control)
    started = comm.allgather_metadata(None if _library is None else _library.members)
    return DeviceHeap if all(members_of_rank in (None, members) for members_of_rank in started) else NcclWindow


class DeviceHeap(Symmetric):
    """Memory of NVSHMEM's symmetric heap, as CuPy arrays."""

    def _allocate(self, engine: Engine) -> None:
        self._library = library = _started_library(self.comm)
        self._wait("symmetric memory before more of it is made")
        self._pointer = self._new(max(nbytes_of(self.shape, self.dtype), 1))
        self._signal_pointer = 0
        try:
            if self.signals:
                self._signal_pointer = self._new(8 * self.signals)
        except MemoryError:
            library.bindings.free(self._pointer)
            raise
        self._views: dict[int, LocalArray] = {}
        self._teams: dict[tuple[tuple[int, ...] | None, ...], int] = {}  # by each rank's members
        releases = [partial(_free_heap, self.comm, library, self._teams, self._signal_pointer, self._pointer)]
        settle = partial(_wait_for_device, self.comm, library, "symmetric memory that nothing refers to")
        self._key = free_when_unreachable(self._owner, self.comm.ranks, releases, settle=settle, comm=self.comm)
        self.local = library.array(self._pointer, self.shape, self.dtype, self._owner)
        self.local.fill(0)
        library.array(self._signal_pointer, (self.signals,), np.dtype(np.uint64), self._owner).fill(0)
        self._barrier()

    def _new(self, size: int) -> int:
        # NVSHMEM aborts the program when it runs out of memory: check first.
        self.comm.check(self._library.lack_of(size))
        error: Exception | None = None
        pointer = 0
        try:
            pointer = self._library.bindings.malloc(size)
        except self._library.error as problem:
            error = MemoryError(f"NVSHMEM gives no {size} bytes: {problem}")
        if not pointer and error is None:
            error = MemoryError(f"NVSHMEM gives no {size} bytes")
        self.comm.check(error)
        return pointer

    def _peer(self, rank: int) -> LocalArray:
        if rank == self.comm.rank:
            return self.local
        view = self._views.get(rank)
        if view is None:
            address = self._library.bindings.ptr(self._pointer, rank)
            if not address:
                raise CommunicationError(f"the memory of rank {rank} cannot be addressed from here: use put and get")
            view = self._views[rank] = self._library.array(address, self.shape, self.dtype, self._owner)
        return view

    def _put(self, source: LocalArray, rank: int, where: Where) -> None:
        target = self.local[where]
        if source.flags.c_contiguous and target.flags.c_contiguous:
            self._library.bindings.putmem_on_stream(
                target.data.ptr, source.data.ptr, source.nbytes, rank, self._library.stream()
            )
        else:
            super()._put(source, rank, where)

    def _get(self, rank: int, where: Where, out: LocalArray) -> None:
        source = self.local[where]
        if source.flags.c_contiguous and out.flags.c_contiguous:
            self._library.bindings.getmem_on_stream(
                out.data.ptr, source.data.ptr, out.nbytes, rank, self._library.stream()
            )
        else:
            super()._get(rank, where, out)

    def _put_signal(self, source: LocalArray, rank: int, where: Where, signal: int, value: int) -> None:
        library = self._library
        target = self.local[where]
        if source.size and source.flags.c_contiguous and target.flags.c_contiguous:
            address = self._signal_pointer + 8 * signal
            library.bindings.putmem_signal_on_stream(
                target.data.ptr, source.data.ptr, source.nbytes, address, value, library.set, rank, library.stream()
            )
        else:
            super()._put_signal(source, rank, where, signal, value)

    def _set_signal(self, rank: int, signal: int, value: int) -> None:
        library = self._library
        address = self._signal_pointer + 8 * signal
        library.bindings.signal_op_on_stream(address, value, library.set, rank, library.stream())

    def _wait_signal(self, signal: int, value: int) -> None:
        library = self._library
        address = self._signal_pointer + 8 * signal
        library.bindings.signal_wait_until_on_stream(address, library.at_least, value, library.stream())

    def _fence(self) -> None:
        self._library.bindings.quiet_on_stream(self._library.stream())

    def _barrier(self) -> None:
        self._library.bindings.barrier_all_on_stream(self._library.stream())

    def _fetch_add(self, values: LocalArray, rank: int, offset: int, out: LocalArray) -> None:
        self._update("fetch_add", rank, offset, values, out=out)

    def _compare_and_swap(
        self, expected: LocalArray, values: LocalArray, rank: int, offset: int, out: LocalArray
    ) -> None:
        self._update("compare_and_swap", rank, offset, expected, values, out=out)

    def _update(self, name: str, rank: int, offset: int, *operands: LocalArray, out: LocalArray) -> None:
        if count := operands[0].size:
            kernel = self._library.module(_atomics_source(), ()).get_function(f"{name}_{8 * self.dtype.itemsize}")
            fetched = 0 if out is None else out.data.ptr
            addresses = (self._pointer + offset, *(operand.data.ptr for operand in operands), fetched)
            arguments = (*map(np.uint64, addresses), np.int64(count), np.int32(rank))
            kernel((-(-count // _THREADS),), (_THREADS,), arguments)

    def _module(self, source: str, options: tuple[str, ...]) -> CudaModule:
        with collective_errors(self.comm):
            return self._library.module(source, options)

    def _team(self, part: Communicator | None) -> int:
        self._wait("symmetric memory before a team is made")
        # NVSHMEM clears a rank's scratch memory after each team, including data of other ranks for the next team. No
        # rank completes this gather, and begins the next team, before all ranks have finished the previous one.
        proposals = collective_values(self.comm, lambda: self._proposal(part))
        groups = tuple(None if members is None else tuple(members) for members, _ in proposals)
        if any(groups[rank] != group for group in groups if group for rank in group):
            self.comm.check(InputError(f"the ranks of a team pass the same part, not parts of ranks {groups}"))
        if groups not in self._teams:
            self._teams[groups] = self._new_team(groups, [unique_id for _, unique_id in proposals])
        return self._teams[groups]

    def _proposal(self, part: Communicator | None) -> tuple[list[int] | None, int]:
        """Return the members of this rank's team, and its identifier if this rank is the first member."""
        if part is None:
            return None, 0
        if not isinstance(part, Communicator):
            raise InputError(f"a team is made of a communicator or None, not of {part!r}")
        everyone, members = self._library.members, ranks_in_world(part.control)
        if not set(members) <= set(everyone):
            raise InputError("a team has only ranks that share the memory, not other ranks of the program")
        return [everyone.index(member) for member in members], self._library.unique_id()

    def _new_team(self, groups: tuple[tuple[int, ...] | None, ...], unique_ids: list[int]) -> int:
        """Make the teams of all groups, in the same order on every rank, and return the team of this rank."""
        made, error = _NO_TEAM, None
        for members in dict.fromkeys(group for group in groups if group):
            try:
                made = max(made, self._library.new_team(members, self.comm.rank, unique_ids[members[0]]))
            except self._library.error as problem:
                error = TransportError(f"NVSHMEM cannot make another team (see NVSHMEM_MAX_TEAMS): {problem}")
        try:
            self.comm.check(error)
        except TransportError:
            self._library.bindings.team_destroy(made)
            raise
        return made

    def _wait(self, what: str) -> None:
        _wait_for_device(self.comm, self._library, what)

    def _forget(self) -> None:
        self._views.clear()


def _wait_for_device(comm: Communicator, library: _Library, what: str) -> None:
    """Wait for the work on the stream, barriers included, before NVSHMEM is called from the host.

    These calls contain barriers, and all barriers share their counters. On the device they have no deadline, and every
    rank must reach them.
    """
    comm.wait(library.event(), what)
    library.synchronize()


def _free_heap(
    comm: Communicator, library: _Library, teams: dict[tuple[tuple[int, ...] | None, ...], int], *pointers: int
) -> None:
    """Free memory of the heap with its teams. Collective."""
    _wait_for_device(comm, library, "freeing symmetric memory")
    for team in teams.values():  # NVSHMEM ignores ``NVSHMEM_TEAM_INVALID``
        library.bindings.team_destroy(team)
    for pointer in pointers:
        if pointer:
            library.bindings.free(pointer)


class _Library:
    """NVSHMEM, initialised for ranks `members` of the world: its low-level calls, and the CuPy functions they need."""

    def __init__(self, comm: Communicator, members: list[int]) -> None:
        import cupy
        import nvshmem.core
        from cuda.core import Device
        from nvshmem import bindings

        self.members = members
        self._cupy = cupy
        self._stream = own_stream()
        self.bindings: ModuleType = bindings
        self.set = int(nvshmem.core.SignalOp.SIGNAL_SET)
        self.at_least = int(nvshmem.core.ComparisonType.CMP_GE)
        self.device = cupy.cuda.Device().id
        self.error: type[Exception] = bindings.NVSHMEMError
        self._core = nvshmem.core
        self._modules: dict[tuple[str, tuple[str, ...]], CudaModule] = {}
        unique_id = nvshmem.core.get_unique_id(empty=comm.rank != 0)
        words = unique_id._data.view(np.uint8)
        comm.bcast(words, 0, out=words)
        device = Device(self.device)
        device.set_current()
        nvshmem.core.init(device=device, uid=unique_id, rank=comm.rank, nranks=comm.size, initializer_method="uid")
        # Runs before MPI is finalised, and after the arrays are freed, whose function is registered later.
        register_at_exit(self._end)

    def stream(self) -> int:
        return self._stream().ptr

    def event(self) -> CudaEvent:
        """Return an event after the work on the current stream."""
        return self._cupy.cuda.get_current_stream().record()

    def synchronize(self) -> None:
        self._cupy.cuda.Device(self.device).synchronize()

    def lack_of(self, size: int) -> MemoryError | None:
        """Return an error if this GPU lacks memory to grow the heap, in large chunks, by `size` bytes."""
        required = -(-size // _CHUNK) * _CHUNK
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        if free < required:
            self._cupy.get_default_memory_pool().free_all_blocks()
            free, _ = self._cupy.cuda.runtime.memGetInfo()
        if free < required:
            return MemoryError(
                f"symmetric memory of {size} bytes: the GPU has {free} free (the heap grows by {_CHUNK})"
            )
        return None

    def array(self, pointer: int, shape: tuple[int, ...], dtype: np.dtype, owner: object) -> LocalArray:
        """Return a CuPy array at an address; for kernels it is memory of this device, even if it belongs to another."""
        memory = self._cupy.cuda.UnownedMemory(pointer, nbytes_of(shape, dtype), owner, self.device)
        return self._cupy.ndarray(shape, dtype, self._cupy.cuda.MemoryPointer(memory, 0))

    def module(self, source: str, options: tuple[str, ...]) -> CudaModule:
        """Return kernels registered with NVSHMEM; they are cached, since NVSHMEM updates them when its heap changes."""
        key = (source, options)
        if key not in self._modules:
            processor = f"sm_{self._cupy.cuda.Device(self.device).compute_capability}"
            module = self._cupy.cuda.Module()
            module.load(linked_with_nvshmem(source, processor, options))
            self.bindings.cumodule_init(module.ptr)
            self._modules[key] = module
        return self._modules[key]

    def unique_id(self) -> int:
        """Return a new identifier of a team."""
        identifier = np.zeros(1, np.uint64)
        self.bindings.team_get_uniqueid(identifier.ctypes.data)
        return int(identifier[0])

    def new_team(self, members: Sequence[int], rank: int, unique_id: int) -> int:
        """Return the team of `members`, made by all ranks together; ``NVSHMEM_TEAM_INVALID`` if `rank` is not in it."""
        team = np.full(1, _NO_TEAM, np.int32)
        step = members[1] - members[0] if len(members) > 1 else 1
        if step > 0 and list(members) == list(range(members[0], members[-1] + 1, step)):
            # All ranks split the world. `team_init` makes such teams without their first rank, which
            # synchronisations of blocks need if the ranks have a constant positive stride.
            self.bindings.team_split_strided(_ALL_RANKS, members[0], step, len(members), 0, 0, team.ctypes.data)
        elif rank in members:
            config = self.bindings.TeamConfig()
            config.version, config.num_contexts, config.uniqueid = _CONFIG_VERSION, _ANY_CONTEXTS, unique_id
            team_rank = members.index(rank)
            self.bindings.team_init(team.ctypes.data, config.ptr, _HAS_UNIQUE_ID, len(members), team_rank)
        return int(team[0])

    def _end(self) -> None:
        self.synchronize()
        for module in self._modules.values():
            self.bindings.cumodule_finalize(module.ptr)
        self._core.finalize()


@cache
def _atomics_source() -> str:
    return Path(__file__).with_name("symmetric_atomics.cu").read_text(encoding="utf-8")


_library: _Library | None = None


def _started_library(comm: Communicator) -> _Library:
    """Return NVSHMEM, initialised for the ranks of `comm`. Collective.

    Raises `TransportError` on every rank if a rank lacks nvshmem4py, its own GPU or a network to other hosts.
    """
    global _library  # noqa: PLW0603 (there is one NVSHMEM in a process)
    with collective_errors(comm):
        if importlib.util.find_spec("nvshmem") is None:
            raise TransportError(
                "symmetric memory on GPUs needs nvshmem4py (install collops[cuda13]) or registered=True"
            )
        if comm.device_transport is None:
            raise TransportError("symmetric memory on GPUs needs a GPU on every rank")
        # NVSHMEM aborts a process that cannot reach another host.
        named = "NVSHMEM_REMOTE_TRANSPORT" in os.environ
        if len(set(comm.nodes)) > 1 and not named and not os.path.isdir(_ADAPTERS):
            raise TransportError(
                f"NVSHMEM reaches other hosts by InfiniBand, but {_ADAPTERS} does not exist here; "
                "NVSHMEM_REMOTE_TRANSPORT names another way"
            )
    if _library is None:
        devices = comm.allgather_metadata(name_of_device())
        if len(set(devices)) < len(devices):
            comm.check(TransportError("symmetric memory on GPUs needs a GPU for each rank, but some share one"))
        _library = _Library(comm, ranks_in_world(comm.control))
    return _library
