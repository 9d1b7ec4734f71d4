"""Communicators as parameters of primitives: rank, size, and the transports in the native library."""

from __future__ import annotations

import ctypes
from typing import TypeAlias
from weakref import WeakKeyDictionary

from collops.comm import Communicator, from_mpi4py, world
from collops.comm.agreement import MpiComm, collective_errors
from collops.comm.cores import available_cores
from collops.comm.failure import default_timeout
from collops.comm.reclaim import free_when_unreachable
from collops.errors import InputError, TransportError
from collops.jax import native, versions
from collops.jax.calls import Watch
from collops.jax.devices import Clique, clique_transport, device_transport, has_devices, may_record
from collops.jax.order import settle
from collops.jax.versions import Device

__all__ = ["native_comm"]

Comm: TypeAlias = Communicator | Clique | MpiComm | None
"""The argument ``comm=`` of collectives; the world if it is ``None``."""

_SPINS = 200  # a few microseconds, as in `collops.comm.failure`; then a wait yields its core
_SPINS_OF_MANY = 20


class NativeComm:
    """A communicator as a parameter of primitives; equal to itself only.

    `numbers` identify its transports in the native library, by platform (``"cpu"``, ``"cuda"``, ``"rocm"``). Calls
    are `checked` before data are sent, or only `watched` while they wait; calls of a single process are neither.
    `joined` is the clique whose devices are the ranks, if any.
    """

    def __init__(
        self,
        rank: int | None,
        size: int,
        numbers: dict[str, int],
        on_one_node: bool,
        *,
        watched: bool = False,
        checked: bool = False,
        joined: Clique | None = None,
    ) -> None:
        self._rank = rank
        self.size = size
        self.numbers = numbers
        self.watched = watched
        self.checked = checked
        self.joined = joined
        self._recorded = on_one_node and not checked and versions.RUNS_BEFORE_RECORDING and may_record()

    @property
    def rank(self) -> int:
        """Rank of this process; an InputError for a clique."""
        self.require_ranks()
        assert self._rank is not None
        return self._rank

    def require_ranks(self) -> None:
        """Raise an InputError for a clique, whose ranks are devices that run one program."""
        if self.joined is not None:
            raise InputError(
                "inside shard_map all devices run one program, so collectives that depend on the rank are not "
                "available; use allreduce, bcast, allgather, reduce_scatter, alltoall or barrier with equal blocks"
            )

    def check_mapping(self, checked: bool) -> None:
        """Raise an InputError for a clique inside a ``shard_map`` with ``check_vma=True``."""
        if self.joined is not None and checked:
            raise InputError(
                "a collective of a clique needs shard_map(..., check_vma=False): JAX does not know that its results "
                "are equal on all devices"
            )

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

    def check_devices(self, count: int, devices: tuple[Device, ...] | None, manual: bool) -> None:
        """Check that a program on `count` devices makes one call for each rank, before anything is sent.

        Otherwise, the calls of several devices would arrive in any order and be mismatched. `devices` are the devices
        of the program, if known, and `manual` tells whether it is written for each device.
        """
        if self.joined is not None:
            joined = self.joined.devices
            fits = (count == len(joined) and devices in (None, joined)) or self.joined._spans(devices)
            if not fits or (count > 1 and not manual):
                raise InputError(
                    f"a clique of {list(joined)} is used in a program on {count} devices, or on others: use it inside "
                    "shard_map over the devices of the clique, of this process or of all, in their order, and over "
                    "all axes of the mesh"
                )
        elif count != 1:
            raise InputError(
                f"this communicator connects ranks with one device each, but the program runs on {count} devices: "
                "call the collective outside shard_map on an array on a single device (see jax.device_put), start a "
                "rank for each device, or join devices: collops.jax.clique() joins the devices of one process, "
                "collops.jax.clique(comm=collops.world()) the devices of all ranks"
            )

    def handlers(self, platform: str, recordable: bool) -> str:
        """Return the kind of native handlers that a program calls on `platform`.

        XLA records `recordable` programs of more than a few kernels on GPUs as graphs. It records ahead of execution,
        and the programs of other ranks may differ, so that a recorded call must not wait for another rank. NCCL has
        already connected all ranks (see :mod:`collops.jax.devices`) and completes its setup in the first run. This has
        not been tested between nodes.
        """
        if platform == "cpu":
            return "host"
        return "recorded" if recordable and self._recorded else "device"

    def __repr__(self) -> str:
        return f"<rank {self._rank} of {self.size}>"


_known: WeakKeyDictionary[Communicator | Clique, NativeComm] = WeakKeyDictionary()


def native_comm(comm: Comm) -> NativeComm:
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
        return _joined(comm)
    private = None if comm.size == 1 else _private_duplicate(comm)
    numbers = {"cpu": _host_transport(comm, private)}
    with_devices = comm.allgather_metadata(has_devices())
    if len(set(with_devices)) > 1:
        without = with_devices.index(False)
        raise TransportError(f"JAX has GPUs on some ranks, but none on rank {without}: start at most one rank per GPU")
    if with_devices[0]:
        numbers["cuda"] = numbers["rocm"] = device_transport(comm)
    if comm.size > 1:
        Watch(comm, list(dict.fromkeys(numbers.values())), settle)
    watched, checked = comm.size > 1, comm.calls is not None
    made = NativeComm(comm.rank, comm.size, numbers, comm.local_size == comm.size, watched=watched, checked=checked)
    if private is not None:
        free_when_unreachable(made, comm.ranks, [private.Free], settle=settle)  # programs that use it refer to `made`
    return made


def _joined(joined: Clique) -> NativeComm:
    """Connect the devices of a clique: GPUs by NCCL, CPU devices by memory and by the transport between their ranks."""
    # Calls between the ranks share one order and one counter, with or without a clique.
    ranks = None if joined.comm is None else native_comm(joined.comm)
    watched, checked = (False, False) if ranks is None else (ranks.watched, ranks.checked)
    if joined.devices[0].platform != "cpu":
        number = clique_transport(joined.devices) if ranks is None or ranks.size == 1 else ranks.number("cuda")
        numbers = {"cuda": number, "rocm": number}
        one_process = joined.size == len(joined.devices)
        return NativeComm(None, joined.size, numbers, one_process, watched=watched, checked=checked, joined=joined)
    number = native.library().collops_add_devices(
        ctypes.c_int64(native.library().collops_add_alone() if ranks is None else ranks.number("cpu")),
        (ctypes.c_int * len(joined.devices))(*(device.id for device in joined.devices)),  # as XLA numbers them
        native.int64s(list(joined.counts)),
        ctypes.c_double(default_timeout() or 0.0),
    )
    return NativeComm(None, joined.size, {"cpu": number}, False, watched=watched, checked=checked, joined=joined)


def _private_duplicate(comm: Communicator) -> MpiComm:
    """Return an MPI communicator for calls from XLA's threads, separate from the program's calls."""
    with collective_errors(comm):
        native.load_mpi()
    return comm.control.Dup()


def _host_transport(comm: Communicator, private: MpiComm) -> int:
    if private is None:
        return native.library().collops_add_alone()
    crowded = comm.local_size > len(available_cores())
    return native.library().collops_add_mpi(
        ctypes.c_int64(private.handle), comm.rank, comm.size, _SPINS_OF_MANY if crowded else _SPINS
    )
