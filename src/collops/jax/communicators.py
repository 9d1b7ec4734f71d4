"""Communicators as parameters of primitives: rank, size, and the transports in the native library."""

from __future__ import annotations

import ctypes
from typing import Any
from weakref import WeakKeyDictionary

from collops.comm import Communicator, from_mpi4py, world
from collops.comm.agreement import collective_errors
from collops.comm.cores import available_cores
from collops.comm.tcp import check_mpi
from collops.errors import InputError, TransportError
from collops.jax import native, versions
from collops.jax.calls import Watch
from collops.jax.devices import Clique, clique_transport, device_transport, has_devices, may_record
from collops.jax.order import settle

__all__ = ["NativeComm", "native_comm"]

_SPINS = 20000
_SPINS_OF_MANY = 20


class NativeComm:
    """A communicator as a parameter of primitives; equal to itself only.

    `numbers` are those of its transports in the native library, by platform (``"cpu"``, ``"cuda"``, ``"rocm"``). Calls
    are `checked` before data move, or else only `watched` while they wait, except those of a single process.
    """

    def __init__(
        self, rank: int | None, size: int, numbers: dict[str, int], on_one_node: bool, checked: bool = False
    ) -> None:
        self._rank = rank
        self.size = size
        self.numbers = numbers
        self.watched = rank is not None and size > 1
        self.checked = checked
        self._recorded = on_one_node and not checked and versions.RUNS_BEFORE_RECORDING and may_record()

    @property
    def rank(self) -> int:
        """Rank of this process; an InputError for a clique, whose ranks are devices that run one program."""
        if self._rank is None:
            raise InputError(
                "inside shard_map all devices run one program, so collectives that depend on the rank are not "
                "available; use allreduce, bcast, allgather, reduce_scatter, alltoall or barrier with equal blocks"
            )
        return self._rank

    @property
    def on_devices(self) -> bool:
        """Whether NCCL reduces the arrays; it does not support all dtypes."""
        return "cuda" in self.numbers

    def number(self, platform: str) -> int:
        """Return the number of the transport for arrays on `platform`."""
        if platform not in self.numbers:
            raise TransportError(
                f"this communicator has no transport for JAX arrays on {platform}: it needs NCCL and a GPU per rank"
            )
        return self.numbers[platform]

    def check_devices(self, count: int) -> None:
        """Check that a program on `count` devices makes one call for each rank, before anything is sent.

        If it made one call for each device instead, these would arrive in any order and be mismatched.
        """
        if self._rank is None and count != self.size:
            raise InputError(
                f"a clique of {self.size} devices is used in a program on {count}: "
                "use it inside shard_map over the devices of the clique"
            )
        if self._rank is not None and count != 1:
            raise InputError(
                f"this communicator connects ranks with one device each, but the program runs on {count} devices: "
                "call the collective outside shard_map on an array on a single device (see jax.device_put), or start "
                "a rank for each device; collops.jax.clique() connects the GPUs of one process"
            )

    def handlers(self, platform: str, recordable: bool) -> str:
        """Return the kind of native handlers that a program calls on `platform`.

        XLA records `recordable` programs of more than a few kernels on GPUs as graphs. It records ahead of execution,
        and the programs of other ranks may differ, so that a recorded call must not wait for another rank. NCCL has
        connected all ranks before (see :mod:`collops.jax.devices`) and does its other setup in the first run. This has
        not been tested between nodes.
        """
        if platform == "cpu":
            return "host"
        return "recorded" if recordable and self._recorded else "device"

    def __repr__(self) -> str:
        return f"<rank {self._rank} of {self.size}>"


_known: WeakKeyDictionary[Communicator | Clique, NativeComm] = WeakKeyDictionary()


def native_comm(comm: Any = None) -> NativeComm:
    """Return the native form of a Communicator, an mpi4py.MPI.Comm, a Clique, or the world for ``None``.

    Collective at the first call with `comm`, which duplicates it. Raises an InputError if `comm` is not a communicator
    or the native library is missing, a TransportError if MPI may not be called from XLA's threads or JAX has GPUs on
    some ranks only.
    """
    if comm is None:
        comm = world()
    elif not isinstance(comm, (Communicator, Clique)):
        if not hasattr(comm, "handle") or not hasattr(comm, "Dup"):
            raise InputError(f"comm must be a collops or mpi4py communicator, not {type(comm).__name__}")
        comm = from_mpi4py(comm)
    known = _known.get(comm)
    if known is None:
        known = _known[comm] = _new_native_comm(comm)
    return known


def _new_native_comm(comm: Communicator | Clique) -> NativeComm:
    if isinstance(comm, Clique):
        number = clique_transport(comm)
        return NativeComm(None, comm.size, {"cuda": number, "rocm": number}, on_one_node=True)
    numbers = {"cpu": _host_transport(comm)}
    with_devices = comm.allgather_metadata(has_devices())
    if len(set(with_devices)) > 1:
        without = with_devices.index(False)
        raise TransportError(f"JAX has a GPU on other ranks and none on rank {without}: start at most one rank per GPU")
    if with_devices[0]:
        numbers["cuda"] = numbers["rocm"] = device_transport(comm)
    if comm.size > 1:
        Watch(comm, list(dict.fromkeys(numbers.values())), settle)
    return NativeComm(comm.rank, comm.size, numbers, comm.local_size == comm.size, comm.calls is not None)


def _host_transport(comm: Communicator) -> int:
    if comm.size == 1:
        return native.library().collops_add_alone()
    check_mpi(comm.control, "collops.jax on CPUs")
    with collective_errors(comm):
        native.load_mpi()
    private = comm.control.Dup()  # calls from XLA's threads must not be mixed with the program's own calls
    crowded = comm.local_size > len(available_cores())
    return native.library().collops_add_mpi(
        ctypes.c_int64(private.handle),
        comm.rank,
        comm.size,
        _SPINS_OF_MANY if crowded else _SPINS,
    )
