"""Symmetric memory: an array that every rank of a node can address, with one-sided copies and signals.

The same program runs on hosts and on GPUs. :class:`Symmetric` is the memory of a single rank,
:class:`SharedWindow` the memory of several ranks on a host; :mod:`collops.comm.symmetric_device` and
:mod:`collops.comm.symmetric_nccl` have the classes for GPUs.
"""

from __future__ import annotations

import atexit
import math
import operator
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from collops._forks import at_fork
from collops.backend import CudaModule, Engine, LocalArray, engine, memory_of
from collops.comm.agreement import AnyCommunicator, collective_errors
from collops.comm.ending import wait_for_ends
from collops.comm.mpi import running_mpi_or_tcp
from collops.comm.mpi_exchanges import SharedSegments
from collops.comm.reclaim import free, in_use, is_owned, owned, reclaim, unreachable
from collops.comm.reductions import check_dtype
from collops.errors import CommunicationError, InputError, LayoutError, TransportError, UnsupportedTypeError

Where: TypeAlias = Any
"""An index of an array: slices, integers, or ``...`` for all of it."""

_VALUES = 1 << 64  # of a signal
_PAGE = 4096
_ATOMIC_SIZES = (4, 8)
_SHARED_FILES = "/dev/shm"  # Linux's file system for shared memory
_MAX_IN_USE = 1024  # windows and communicators of this process: MPICH aborts programs that need more than 2048


class _Owner:
    """The owner of memory: arrays refer to it, and it has no references."""


class Symmetric:
    """An array on every rank of a communicator, of one shape, that all of them can address.

    Made by :meth:`Communicator.symmetric`. Memory is initialised to zeros and lives until :meth:`free` or the end of a
    ``with`` block. Freeing is collective: memory that has no references on any rank, neither from this object nor from
    an array of it, is freed when these ranks next make symmetric memory or a communicator, or at the end of the
    program. Methods are ordered on the caller's current stream; on hosts, by the program.

    Attributes
    ----------
    comm : Communicator
        The ranks.
    local : array
        This rank's memory.
    shape, dtype
        Shape and element type of every rank's array.
    signals : int
        Number of signals on every rank: unsigned 64-bit numbers, 0 at first, that other ranks set.
    """

    def __init__(
        self, comm: AnyCommunicator, shape: tuple[int, ...], dtype: np.dtype, signals: int, engine: Engine
    ) -> None:
        self.comm = comm
        self.shape = shape
        self.dtype = dtype
        self.signals = signals
        self.local: LocalArray = None
        self._owner = _Owner()
        self._key: str | None = None  # of several ranks' memory
        self._allocate(engine)
        # Registered last, and therefore run before the functions that end MPI and the GPU libraries.
        atexit.unregister(_free_all)
        atexit.register(_free_all)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # If only this rank has an error, the others would not take part; the end of the program then frees the memory.
        if kind is None or getattr(error, "on_all_ranks", False):
            self.free()

    def __repr__(self) -> str:
        return f"<symmetric {self.dtype} {self.shape} on {self.comm.size} ranks>"

    def peer(self, rank: int) -> LocalArray:
        """Return the memory of `rank` as an array that this rank can read and write. Not collective.

        On GPUs any kernel can use it. The program orders reads and writes.

        Raises
        ------
        InputError
            If there is no such rank, or the memory has been freed.
        CommunicationError
            If the rank is on another node, so that its memory has no address here: use :meth:`put` and :meth:`get`.
        """
        self._check_rank(rank)
        return self._peer(rank)

    def put(self, source: LocalArray, rank: int, where: Where = ...) -> None:
        """Copy `source` into the part `where` of the memory of `rank`. Not collective.

        `rank` sees it after a :meth:`fence` and a signal, or after a :meth:`barrier`.

        Parameters
        ----------
        source : array
            The new values, with the shape and dtype of the part.
        rank : int
            Whose memory.
        where : index
            As in ``peer(rank)[where]``: slices, or integers.

        Raises
        ------
        InputError
            If there is no such rank, or the memory has been freed.
        LayoutError, UnsupportedTypeError
            If `source` has not the shape, or not the dtype and engine of the part.
        """
        self._check_rank(rank)
        self._put(self._checked(source, where), rank, where)

    def get(self, rank: int, where: Where = ..., *, out: LocalArray) -> LocalArray:
        """Copy the part `where` of the memory of `rank` into `out`, and return it. Not collective."""
        self._check_rank(rank)
        self._get(rank, where, self._checked(out, where))
        return out

    def put_signal(self, source: LocalArray, rank: int, where: Where, signal: int, value: int) -> None:
        """Copy as :meth:`put` does, then set a signal of `rank`, which sees the signal only after the values.

        Not collective.

        Parameters
        ----------
        source, rank, where
            As for :meth:`put`.
        signal : int
            Which of the signals of `rank`.
        value : int
            Its new value, of 64 bits and not negative; programs count up.
        """
        self._check_rank(rank)
        self._check_signal(signal, value)
        self._put_signal(self._checked(source, where), rank, where, signal, value)

    def atomic_add(self, values: LocalArray, rank: int, where: Where = ...) -> None:
        """Add `values` atomically to the part `where` of the memory of `rank`. Not collective.

        Concurrent additions of several ranks to an element are all counted. They are atomic among each other, not with
        :meth:`put` or plain stores. They become visible to `rank` like a :meth:`put`.

        Parameters
        ----------
        values : array
            The addends, with the shape and dtype of the part: integers of 32 or 64 bits, which wrap around.
        rank : int
            Whose memory.
        where : index
            As for :meth:`put`. The part must be contiguous in memory.

        Raises
        ------
        InputError
            If there is no such rank, or the memory has been freed.
        LayoutError
            If `values` do not have the shape of the part, or the part is not contiguous.
        UnsupportedTypeError
            If `values` do not have its dtype and engine, or are not integers of 32 or 64 bits.
        """
        self._check_rank(rank)
        values, offset = self._atomic(values, where)
        self._fetch_add(values, rank, offset, None)

    def fetch_add(self, values: LocalArray, rank: int, where: Where = ..., *, out: LocalArray) -> LocalArray:
        """Add as :meth:`atomic_add` does, and return the previous elements in `out`. Not collective.

        Parameters
        ----------
        values, rank, where
            As for :meth:`atomic_add`, which lists the errors.
        out : array
            Memory for the result, in the shape and dtype of `values`.

        Returns
        -------
        array
            `out`. On GPUs it is complete in the order of the stream.

        Examples
        --------
        >>> import collops, numpy as np
        >>> with collops.world().symmetric(1, "int64", engine="numpy") as tickets:
        ...     mine = tickets.fetch_add(np.ones(1, "int64"), 0, out=np.empty(1, "int64"))  # no rank gets the same
        ...     tickets.barrier()
        >>> bool(0 <= mine[0] < collops.world().size)
        True
        """
        self._check_rank(rank)
        self._checked(out, where)
        values, offset = self._atomic(values, where)
        with self._contiguous(out) as fetched:
            self._fetch_add(values, rank, offset, fetched)
        return out

    def compare_and_swap(
        self, expected: LocalArray, values: LocalArray, rank: int, where: Where = ..., *, out: LocalArray
    ) -> LocalArray:
        """Replace the elements of `rank` that equal `expected`, and return the previous ones. Not collective.

        Atomic for each element, but only among calls of this method: do not add to the same elements concurrently.

        Parameters
        ----------
        expected, values : array
            Elements to compare with, and new ones; both are as `values` of :meth:`atomic_add`, which lists the errors.
        rank, where
            As for :meth:`atomic_add`.
        out : array
            The previous elements, in the shape and dtype of `values`. An element was replaced if it equals `expected`.

        Returns
        -------
        array
            `out`. On GPUs it is complete in the order of the stream.

        Examples
        --------
        >>> import collops, numpy as np
        >>> comm = collops.world()
        >>> with comm.symmetric(1, "int64", engine="numpy") as owner:  # 0 means nobody
        ...     before = owner.compare_and_swap(
        ...         np.zeros(1, "int64"), np.full(1, comm.rank + 1), 0, out=np.empty(1, "int64")
        ...     )
        ...     owner.barrier()
        >>> int(comm.allreduce(np.array(int(before[0] == 0))))  # one rank owns it
        1
        """
        self._check_rank(rank)
        self._checked(out, where)
        expected, offset = self._atomic(expected, where)
        values, _ = self._atomic(values, where)
        with self._contiguous(out) as fetched:
            self._compare_and_swap(expected, values, rank, offset, fetched)
        return out

    def module(self, source: str, options: Sequence[str] = ()) -> CudaModule:
        """Compile kernels that call device functions of NVSHMEM, or of NCCL for registered memory. Collective.

        Parameters
        ----------
        source : str
            CUDA C++ that includes ``nvshmem.h`` and ``nvshmemx.h``, or parts of them. NVSHMEM's functions take
            addresses in :attr:`local` on the calling rank, and ranks of `comm`. For registered memory NCCL's headers
            are included before the source; NCCL's functions take ``window``, an attribute of this object, and the
            offset in bytes from the beginning of :attr:`local`. (NCCL maps it at another address.)
        options : sequence of str
            Options of NVRTC.

        Returns
        -------
        cupy.cuda.Module
            Its ``get_function(name)`` returns a kernel. It is compiled once and kept until the program ends.

        Raises
        ------
        UnsupportedTypeError
            If this is not the memory of several GPUs.
        InputError
            If the source does not compile.
        TransportError
            If nvJitLink, NVSHMEM's device library or NCCL's headers are missing, or linking fails.
        """
        self._check_allocated()
        return self._module(source, tuple(options))

    def team(self, part: AnyCommunicator) -> int:
        """Make a team of NVSHMEM of the ranks of a subcommunicator, for kernels of :meth:`module`. Collective.

        All ranks of `comm` call it, each with its own subcommunicator. Kernels translate ranks by
        ``nvshmem_team_translate_pe`` and call NVSHMEM's collectives on the team, with addresses in :attr:`local`.

        Parameters
        ----------
        part : Communicator or None
            The result of :meth:`Communicator.split` on this rank. The team has its ranks, in its order.

        Returns
        -------
        int
            The handle, a ``nvshmem_team_t`` of 32 bits. ``NVSHMEM_TEAM_INVALID`` (-1) for ``None``. Calls with the same
            parts return the same team, which is freed with this memory.

        Raises
        ------
        UnsupportedTypeError
            If this memory is not in NVSHMEM's heap: on hosts, on a single rank, or in a window of NCCL.
        InputError
            If `part` has ranks that are not in `comm`, or its ranks pass different parts.
        TransportError
            If NVSHMEM cannot make the team. It supports ``NVSHMEM_MAX_TEAMS``, 32 by default, including its own.
        """
        self._check_allocated()
        return self._team(part)

    def wait_signal(self, signal: int, value: int) -> None:
        """Wait until this rank's signal is at least `value`. Not collective.

        On GPUs the stream waits, not the host.

        Raises
        ------
        CommunicationTimeout
            On hosts, if the deadline passes (``COLLOPS_TIMEOUT``).
        """
        self._check_signal(signal, value)
        self._wait_signal(signal, value)

    def fence(self) -> None:
        """Complete all copies made so far before anything that follows. Not collective."""
        self._check_allocated()
        self._fence()

    def barrier(self) -> None:
        """Wait until all copies of all ranks are complete. Collective."""
        self._check_allocated()
        self._fence()
        self._barrier()

    def free(self) -> None:
        """Free the memory, whose views must not be used any more. Collective. Does nothing the second time."""
        if self.local is None:
            return
        self.local = None
        if self._key is None:
            self._peers, self._signals = [], []
        elif is_owned(self._key):
            self._barrier()
            self._forget()
            free(self._key)

    def _check_allocated(self) -> None:
        if self.local is None:
            raise InputError("this symmetric memory has been freed")
        failures = self.comm.failures
        if failures is not None and failures.failure:
            failures.check_open()

    def _check_rank(self, rank: int) -> None:
        self._check_allocated()
        if not 0 <= rank < self.comm.size:
            raise InputError(f"there is no rank {rank} among {self.comm.size}")

    def _check_signal(self, signal: int, value: int) -> None:
        self._check_allocated()
        if not 0 <= signal < self.signals:
            raise InputError(f"there is no signal {signal}: the array was made with signals={self.signals}")
        if not 0 <= value < _VALUES:
            raise InputError(f"a signal has values of 0 to 2^64 - 1, not {value}")

    def _checked(self, array: LocalArray, where: Where) -> LocalArray:
        if not isinstance(array, type(self.local)):
            raise UnsupportedTypeError(
                f"symmetric memory of {type(self.local).__module__} takes and gives arrays of it, not {type(array)}"
            )
        part = self.local[where]
        if array.dtype != self.dtype:
            raise UnsupportedTypeError(f"an array of dtype {array.dtype} cannot be copied to one of {self.dtype}")
        if array.shape != part.shape:
            raise LayoutError(f"an array of shape {array.shape} cannot be copied to a part of shape {part.shape}")
        return array

    def _atomic(self, values: LocalArray, where: Where) -> tuple[LocalArray, int]:
        """Return contiguous values, and the offset of the part in the memory, in bytes."""
        if self.dtype.kind not in "iu" or self.dtype.itemsize not in _ATOMIC_SIZES:
            raise UnsupportedTypeError(f"atomic operations are for integers of 32 or 64 bits, not {self.dtype}")
        values = self._checked(values, where)
        index = where if isinstance(where, tuple) else (where,)
        part = self.local[index if any(entry is ... for entry in index) else (*index, ...)]
        offset = self._address(part) - self._address(self.local) if part.size else 0
        if not part.flags.c_contiguous or not 0 <= offset <= self.local.nbytes - part.nbytes:
            raise LayoutError(f"atomic operations need a contiguous part of the memory, which {where!r} is not")
        return values if values.flags.c_contiguous else values.copy("C"), offset

    @contextmanager
    def _contiguous(self, out: LocalArray) -> Iterator[LocalArray]:
        """Yield contiguous memory, which is then copied to `out`."""
        fetched = out if out.flags.c_contiguous else out.copy("C")
        yield fetched
        if fetched is not out:
            out[...] = fetched

    # The methods below are for a single rank, on any engine. Subclasses override them for several ranks.

    def _allocate(self, engine: Engine) -> None:
        self.local = engine.xp.zeros(self.shape, self.dtype)
        self._peers: list[LocalArray] = [self.local]  # by rank
        self._signals = [np.zeros(self.signals, np.uint64)]

    def _peer(self, rank: int) -> LocalArray:
        return self._peers[rank]

    def _put(self, source: LocalArray, rank: int, where: Where) -> None:
        self._peer(rank)[where] = source

    def _get(self, rank: int, where: Where, out: LocalArray) -> None:
        out[...] = self._peer(rank)[where]

    def _put_signal(self, source: LocalArray, rank: int, where: Where, signal: int, value: int) -> None:
        self._put(source, rank, where)
        self._fence()
        self._set_signal(rank, signal, value)

    def _set_signal(self, rank: int, signal: int, value: int) -> None:
        self._signals[rank][signal] = value

    def _wait_signal(self, signal: int, value: int) -> None:
        if (now := int(self._signals[0][signal])) < value:
            raise CommunicationError(f"signal {signal} is {now}, and there is no other rank to set it to {value}")

    def _fetch_add(self, values: LocalArray, rank: int, offset: int, out: LocalArray) -> None:
        part = self._part(values, rank, offset)
        if out is not None:
            out[...] = part
        part += values

    def _compare_and_swap(
        self, expected: LocalArray, values: LocalArray, rank: int, offset: int, out: LocalArray
    ) -> None:
        part = self._part(values, rank, offset)
        out[...] = part
        chosen = out == expected
        part[chosen] = values[chosen]

    def _part(self, like: LocalArray, rank: int, offset: int) -> LocalArray:
        """Return the memory of a rank from an offset in bytes, with the shape of `like`."""
        begin = offset // self.dtype.itemsize
        return self._peer(rank).reshape(-1)[begin : begin + like.size].reshape(like.shape)

    def _address(self, array: LocalArray) -> int:
        return array.data.ptr if hasattr(array.data, "ptr") else array.ctypes.data

    def _module(self, source: str, options: tuple[str, ...]) -> CudaModule:
        raise UnsupportedTypeError("kernels that call NVSHMEM or NCCL need the memory of several GPUs")

    def _team(self, part: AnyCommunicator) -> int:
        raise UnsupportedTypeError("teams of NVSHMEM need memory of several GPUs in its heap, not in a window of NCCL")

    def _fence(self) -> None:
        pass

    def _barrier(self) -> None:
        pass

    def _wait(self, what: str) -> None:
        """Wait on the host for this rank's work on the memory, which is called `what` in errors."""

    def _forget(self) -> None:
        """Drop the views of memory that is being freed."""
        self._peers, self._signals = [], []


class SharedWindow(Symmetric):
    """Memory that MPI maps into every process of one node. A rank's segment begins with its signals."""

    def _allocate(self, engine: Engine) -> None:
        comm = self.comm
        if comm.local_size != comm.size:
            comm.check(
                TransportError(f"ranks on several nodes share no memory: symmetric memory needs all {comm.size} on one")
            )
        self._offset = -(-8 * self.signals // _PAGE) * _PAGE
        size = max(_PAGE, self._offset + -(-nbytes_of(self.shape, self.dtype) // _PAGE) * _PAGE)
        comm.check(_lack_of(size * comm.size))
        with collective_errors(comm):
            self._segments = SharedSegments(comm, size)
        self._key = self._segments.free_when_unreachable(comm)
        views = [self._views(rank) for rank in range(comm.size)]
        self._peers = [array for array, _ in views]
        self._signals = [values for _, values in views]
        self.local = self._peers[comm.rank]
        self.local[...] = np.zeros((), self.dtype)
        self._signals[comm.rank][...] = 0
        self._barrier()

    def _views(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the array and the signals of a rank."""
        segment = self._segments.segment(rank)
        stop = self._offset + nbytes_of(self.shape, self.dtype)
        array = segment[self._offset : stop].view(self.dtype).reshape(self.shape)
        return array, segment[: 8 * self.signals].view(np.uint64)

    def _get(self, rank: int, where: Where, out: LocalArray) -> None:
        self._segments.sync()
        super()._get(rank, where, out)

    def _wait_signal(self, signal: int, value: int) -> None:
        signals = self._signals[self.comm.rank]

        def arrived() -> bool:
            self._segments.sync()
            return bool(signals[signal] >= value)

        self.comm.wait_until(arrived, f"signal {signal}")

    def _fetch_add(self, values: LocalArray, rank: int, offset: int, out: LocalArray) -> None:
        fetched = np.empty_like(values) if out is None else out
        request = self._segments.start_fetch_add(values, fetched, rank, self._offset + offset)
        self.comm.wait_until(request.Test, "an atomic addition")

    def _compare_and_swap(
        self, expected: LocalArray, values: LocalArray, rank: int, offset: int, out: LocalArray
    ) -> None:
        self._segments.compare_and_swap(expected, values, out, rank, self._offset + offset)

    def _fence(self) -> None:
        self._segments.sync()

    def _barrier(self) -> None:
        self._segments.sync()
        self.comm.barrier()
        self._segments.sync()


def _lack_of(size: int) -> MemoryError | None:
    """Return an error if this machine has too little shared memory, or MPI may run out of communicators.

    Containers often have little memory. MPI would allocate it nevertheless, and the system would kill the program that
    writes to it. MPICH aborts the program if no communicator is available for a window.
    """
    if (count := in_use()) >= _MAX_IN_USE:
        return MemoryError(
            f"this process has {count} shared windows and communicators, and MPI cannot make many more: free symmetric "
            "memory and star forests that are not needed, or delete all references to them"
        )
    free = shutil.disk_usage(_SHARED_FILES).free if os.path.isdir(_SHARED_FILES) else size
    if free >= size:
        return None
    return MemoryError(f"symmetric memory of {size} bytes on all ranks: {_SHARED_FILES} has {free} free")


def validated_memory(
    comm: AnyCommunicator,
    shape: int | Sequence[int],
    dtype: DTypeLike,
    engine_name: str | None,
    signals: int,
    registered: bool,
) -> tuple[tuple[int, ...], np.dtype, Engine]:
    """Return shape, dtype and engine of symmetric memory, which must be equal on all ranks. Collective."""
    with collective_errors(comm):
        if isinstance(shape, Mapping | Set | str | bytes):  # an empty one would look like the shape of a scalar
            raise InputError(f"the shape of symmetric memory is an integer or a sequence of them, not {shape!r}")
        shape = (shape,) if isinstance(shape, int | np.integer) else shape
        shape = tuple(operator.index(extent) for extent in shape)
        dtype = np.dtype(dtype)
        if any(extent < 0 for extent in shape) or operator.index(signals) < 0:
            raise InputError(f"symmetric memory needs a shape and signals of 0 or more, not {shape} and {signals}")
        check_dtype(dtype)
        chosen = engine(engine_name)
        if not chosen.mutable:
            raise UnsupportedTypeError(f"arrays of {chosen.name} cannot be written by other ranks")
        if nbytes_of(shape, dtype) + 8 * signals > memory_of(chosen):
            raise InputError(f"symmetric memory of shape {shape} and dtype {dtype} is more than this machine has")
    facts = [shape, dtype.str, chosen.name, signals, bool(registered)]
    everyone = comm.allgather_metadata([*facts, unreachable(comm.ranks)])
    reclaim(comm.ranks, [row.pop() for row in everyone])
    if any(row != everyone[0] for row in everyone):
        text = "; ".join(f"rank {rank}: {row}" for rank, row in enumerate(everyone[:4]))
        comm.check(
            LayoutError(
                f"symmetric memory has one shape, dtype, engine, signals and registered on all ranks, not {text}"
            )
        )
    return shape, dtype, chosen


def nbytes_of(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Return the size of an array."""
    return math.prod(shape) * dtype.itemsize


def _free_all() -> None:
    """Free all remaining memory, newest first, when the programs of all ranks have ended.

    Freeing is collective: MPI would pair these calls with calls of a rank whose program still runs.
    """
    if running_mpi_or_tcp() is None:  # the program has finalised MPI
        return
    try:
        for key, resource in owned():
            if resource.comm is not None:
                resource.comm.failures.check_open()
                wait_for_ends(resource.comm.failures, resource.comm.calls)
                free(key)
    except CommunicationError:
        pass  # ranks have exited, so that collective calls are impossible


at_fork(partial(atexit.unregister, _free_all))
