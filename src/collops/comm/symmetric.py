"""Symmetric memory: an array that every rank of a node can address, with one-sided copies and signals.

The same program runs on hosts and on GPUs. What differs (where memory comes from, how a copy, a signal or a wait
is ordered) is in :mod:`collops.comm.symmetric_host` and :mod:`collops.comm.symmetric_device`.
"""

from __future__ import annotations

import atexit
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self, TypeAlias

import numpy as np

from collops.backend import Engine, engine, memory_of
from collops.comm.agreement import collective_errors
from collops.comm.reductions import check_dtype
from collops.errors import (
    CommunicationError,
    InputError,
    LayoutError,
    UnsupportedTypeError,
)

Where: TypeAlias = Any
"""An index of an array: slices, integers, or ``...`` for all of it."""

_VALUES = 1 << 64  # of a signal
_live: list[Symmetric] = []
"""Arrays that have not been freed, in the order of their creation, which is the same on every rank."""


class Symmetric(ABC):
    """An array on every rank of a communicator, of one shape, that all of them can address.

    Made by :meth:`Communicator.symmetric`. Memory begins as zeros and lives until :meth:`free`, the end of a ``with``
    block, or the end of the program. It is not freed automatically, because that is collective. Methods are ordered on
    the caller's current stream; on hosts, by the program.

    Attributes
    ----------
    comm : Communicator
        The ranks.
    local : array
        This rank's memory.
    shape, dtype
        Of every rank's array.
    signals : int
        How many signals every rank has: unsigned 64-bit numbers that begin as 0, and that other ranks set.
    """

    def __init__(self, comm: Any, shape: tuple[int, ...], dtype: np.dtype, signals: int) -> None:
        self.comm = comm
        self.shape = shape
        self.dtype = dtype
        self.signals = signals
        self.local: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # With an error on this rank alone the other ranks would not take part; the end of the program frees it then.
        if kind is None or getattr(error, "on_all_ranks", False):
            self.free()

    def __repr__(self) -> str:
        return f"<symmetric {self.dtype} {self.shape} on {self.comm.size} ranks>"

    def peer(self, rank: int) -> Any:
        """Return the memory of `rank` as an array that this rank can read and write. Not collective.

        On GPUs any kernel can use it. The program orders reads and writes.

        Raises
        ------
        InputError
            If there is no such rank, or the memory has been freed.
        CommunicationError
            If its memory cannot be addressed from here, because it is on another node: use :meth:`put` and :meth:`get`.
        """
        self._check_rank(rank)
        return self._peer(rank)

    def put(self, source: Any, rank: int, where: Where = ...) -> None:
        """Copy `source` into the part `where` of the memory of `rank`. Not collective.

        `rank` sees it after a :meth:`fence` and a signal, or after a :meth:`barrier`.

        Parameters
        ----------
        source : array
            Of the shape and dtype of that part.
        rank : int
            Whose memory.
        where : index
            As in ``peer(rank)[where]``: slices, or integers.

        Raises
        ------
        InputError
            If there is no such rank, or the memory has been freed.
        LayoutError, UnsupportedTypeError
            If `source` is not of the shape, or not of the dtype and engine of that part.
        """
        self._check_rank(rank)
        self._put(self._checked(source, where), rank, where)

    def get(self, rank: int, where: Where = ..., *, out: Any) -> Any:
        """Copy the part `where` of the memory of `rank` into `out`, and return it. Not collective."""
        self._check_rank(rank)
        self._get(rank, where, self._checked(out, where))
        return out

    def put_signal(self, source: Any, rank: int, where: Where, signal: int, value: int) -> None:
        """Copy as :meth:`put` does, then set a signal of `rank`, which sees the signal only after the values.

        Not collective.

        Parameters
        ----------
        source, rank, where
            As for :meth:`put`.
        signal : int
            Which of the signals of `rank`.
        value : int
            What it becomes, of 64 bits and not negative; programs count up.
        """
        self._check_rank(rank)
        self._check_signal(signal, value)
        self._put_signal(self._checked(source, where), rank, where, signal, value)

    def wait_signal(self, signal: int, value: int) -> None:
        """Wait until this rank's signal has reached `value`. Not collective.

        On GPUs the stream waits, not the host.

        Raises
        ------
        CommunicationTimeout
            On hosts, if it does not come in time (``COLLOPS_TIMEOUT``).
        """
        self._check_signal(signal, value)
        self._wait_signal(signal, value)

    def fence(self) -> None:
        """Complete all copies made so far before anything that follows. Not collective."""
        self._check_kept()
        self._fence()

    def barrier(self) -> None:
        """Wait until all copies of all ranks are complete. Collective."""
        self._check_kept()
        self._fence()
        self._barrier()

    def free(self) -> None:
        """Free the memory, whose views must not be used any more. Collective. Does nothing the second time."""
        if self in _live:
            _live.remove(self)
            self.local = None
            self._barrier()
            self._free()

    @abstractmethod
    def _peer(self, rank: int) -> Any: ...

    @abstractmethod
    def _put(self, source: Any, rank: int, where: Where) -> None: ...

    @abstractmethod
    def _get(self, rank: int, where: Where, out: Any) -> None: ...

    @abstractmethod
    def _put_signal(self, source: Any, rank: int, where: Where, signal: int, value: int) -> None: ...

    @abstractmethod
    def _wait_signal(self, signal: int, value: int) -> None: ...

    @abstractmethod
    def _fence(self) -> None: ...

    @abstractmethod
    def _barrier(self) -> None: ...

    @abstractmethod
    def _free(self) -> None: ...

    def _check_kept(self) -> None:
        if self.local is None:
            raise InputError("this symmetric memory has been freed")

    def _check_rank(self, rank: int) -> None:
        self._check_kept()
        if not 0 <= rank < self.comm.size:
            raise InputError(f"there is no rank {rank} among {self.comm.size}")

    def _check_signal(self, signal: int, value: int) -> None:
        self._check_kept()
        if not 0 <= signal < self.signals:
            raise InputError(f"there is no signal {signal}: the array was made with signals={self.signals}")
        if not 0 <= value < _VALUES:
            raise InputError(f"a signal has values of 0 to 2^64 - 1, not {value}")

    def _checked(self, array: Any, where: Where) -> Any:
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


class _Alone(Symmetric):
    """Symmetric memory of a world of one, on any engine."""

    def __init__(self, comm: Any, shape: tuple[int, ...], dtype: np.dtype, signals: int, engine: Engine) -> None:
        super().__init__(comm, shape, dtype, signals)
        self.local = engine.xp.zeros(shape, dtype)
        self._values = [0] * signals

    def _fence(self) -> None:
        pass

    def _peer(self, rank: int) -> Any:
        return self.local

    def _put(self, source: Any, rank: int, where: Where) -> None:
        self.local[where] = source

    def _get(self, rank: int, where: Where, out: Any) -> None:
        out[...] = self.local[where]

    def _put_signal(self, source: Any, rank: int, where: Where, signal: int, value: int) -> None:
        self.local[where] = source
        self._values[signal] = value

    def _wait_signal(self, signal: int, value: int) -> None:
        if self._values[signal] < value:
            raise CommunicationError(
                f"signal {signal} is {self._values[signal]}, and there is no other rank to set it to {value}"
            )

    def _barrier(self) -> None:
        pass

    def _free(self) -> None:
        pass


def allocate(
    comm: Any,
    shape: int | Sequence[int],
    dtype: Any,
    *,
    engine_name: str | None,
    signals: int,
) -> Symmetric:
    """Make symmetric memory. See :meth:`Communicator.symmetric`."""
    with collective_errors(comm):
        shape, dtype, chosen = _wanted(shape, dtype, engine_name, signals)
    if comm.size == 1:
        made: Symmetric = _Alone(comm, shape, dtype, signals, chosen)
    else:
        _agree(comm, (list(shape), dtype.str, chosen.name, signals))
        if chosen.memory == "host":
            from collops.comm.symmetric_host import SharedWindow

            made = SharedWindow(comm, shape, dtype, signals)
        else:
            from collops.comm.symmetric_device import DeviceHeap

            made = DeviceHeap(comm, shape, dtype, signals)
    # Always the last to be registered, and so run before what ends MPI and the GPU libraries.
    atexit.unregister(_free_all)
    atexit.register(_free_all)
    _live.append(made)
    return made


def _wanted(shape: Any, dtype: Any, engine_name: str | None, signals: int) -> tuple[tuple[int, ...], np.dtype, Engine]:
    """Return validated shape, dtype and engine."""
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
    return shape, dtype, chosen


def nbytes_of(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Return the size of an array."""
    return math.prod(shape) * dtype.itemsize


def _agree(comm: Any, wanted: tuple[Any, ...]) -> None:
    everyone = comm.allgather_metadata(list(wanted))
    if any(other != everyone[0] for other in everyone):
        text = "; ".join(f"rank {rank}: {other}" for rank, other in enumerate(everyone[:4]))
        comm.check(LayoutError(f"symmetric memory has one shape, dtype, engine and signals on all ranks, not {text}"))


def _free_all() -> None:
    """Free all memory that is left, newest first, as long as the other ranks do so too."""
    try:
        while _live:
            _live[-1].comm.barrier()
            _live[-1].free()
    except CommunicationError:
        _live.clear()  # ranks are missing, so that nothing collective can be done any more
