"""What a program knows of a communicator: the number of its wire in the native library, its rank and its size."""

from __future__ import annotations

import ctypes
from typing import Any
from weakref import WeakKeyDictionary

from collops.comm import Communicator, from_mpi4py, world
from collops.comm.cores import available_cores
from collops.comm.failure import default_timeout
from collops.errors import InputError, TransportError
from collops.jax import native, versions
from collops.jax.devices import Clique, clique_transport, device_transport, has_devices, may_record

__all__ = ["Wire", "wire_of"]

_SPINS = 20000
_SPINS_OF_MANY = 20


class Wire:
    """One communicator as a parameter of primitives, equal to itself alone.

    Attributes
    ----------
    size : int
        Of the communicator.
    numbers : dict of str to int
        Of the wires in the native library, by platform (``"cpu"``, ``"cuda"``, ``"rocm"``).
    """

    def __init__(self, rank: int | None, size: int, numbers: dict[str, int], on_one_node: bool) -> None:
        self._rank = rank
        self.size = size
        self.numbers = numbers
        self._recorded = on_one_node and versions.RUNS_BEFORE_RECORDING and may_record()

    @property
    def rank(self) -> int:
        """Rank of this process.

        Raises
        ------
        InputError
            In a clique, whose ranks are devices that run one program.
        """
        if self._rank is None:
            raise InputError(
                "inside shard_map all devices run one program, so what depends on the rank is not there: "
                "allreduce, bcast, allgather, reduce_scatter, alltoall and barrier with equal blocks are"
            )
        return self._rank

    @property
    def on_devices(self) -> bool:
        """Whether NCCL reduces the arrays, which does not know all their dtypes."""
        return "cuda" in self.numbers

    def number(self, platform: str) -> int:
        """Return the number of the wire for arrays of `platform`.

        Raises
        ------
        TransportError
            If this communicator has none.
        """
        if platform not in self.numbers:
            raise TransportError(
                f"this communicator has no transport for JAX arrays on {platform}: it needs NCCL, a GPU for each rank"
            )
        return self.numbers[platform]

    def check_devices(self, count: int) -> None:
        """Check that a program on `count` devices can use this wire, before anything is sent.

        Raises
        ------
        InputError
            If the program would call the wire once for each device, and not once for each rank of it. The calls of
            several devices arrive in any order, so that the wrong ones would be paired.
        """
        if self._rank is None and count != self.size:
            raise InputError(
                f"a clique of {self.size} devices is used in a program on {count}: "
                "use it inside shard_map over the devices that it joins"
            )
        if self._rank is not None and count != 1:
            raise InputError(
                f"this communicator joins ranks with one device each, but the program runs on {count} devices: call "
                "the collective outside shard_map on an array of a single device (jax.device_put moves it there), or "
                "start a rank for each device; collops.jax.clique() joins the GPUs of one process"
            )

    def handlers(self, platform: str, recordable: bool) -> str:
        """Return which handlers of the native library a program is to call on `platform`.

        XLA records what is `recordable` on GPUs and launches it as a whole, if it is more than a few kernels. It
        records ahead of what runs, and the programs of other ranks may differ: meanwhile nothing may wait for another
        rank. NCCL has connected all ranks by then (see :mod:`collops.jax.devices`) and sets up what else it needs in
        the run before. Between nodes that has not been tried.
        """
        if platform == "cpu":
            return "host"
        return "recorded" if recordable and self._recorded else "device"

    def __repr__(self) -> str:
        return f"<rank {self._rank} of {self.size}>"


_known: WeakKeyDictionary[Communicator | Clique, Wire] = WeakKeyDictionary()


def wire_of(comm: Any = None) -> Wire:
    """Return the wire of a communicator. Collective at its first call with `comm`, which makes a private duplicate.

    Parameters
    ----------
    comm : Communicator, mpi4py.MPI.Comm or Clique, optional
        By default the world.

    Raises
    ------
    InputError
        If `comm` is none of them, or the native library is missing.
    TransportError
        If MPI may not be called from XLA's threads, or JAX has GPUs on some ranks only.
    """
    if comm is None:
        comm = world()
    elif not isinstance(comm, (Communicator, Clique)):
        if not hasattr(comm, "handle") or not hasattr(comm, "Dup"):
            raise InputError(f"comm must be a collops or mpi4py communicator, not {type(comm).__name__}")
        comm = from_mpi4py(comm)
    known = _known.get(comm)
    if known is None:
        known = _known[comm] = _made(comm)
    return known


def _made(comm: Communicator | Clique) -> Wire:
    if isinstance(comm, Clique):
        number = clique_transport(comm)
        return Wire(None, comm.size, {"cuda": number, "rocm": number}, on_one_node=True)
    numbers = {"cpu": _host_wire(comm)}
    with_devices = comm.allgather_metadata(has_devices())
    if len(set(with_devices)) > 1:
        without = with_devices.index(False)
        raise TransportError(f"JAX has a GPU on other ranks and none on rank {without}: start at most one rank per GPU")
    if with_devices[0]:
        numbers["cuda"] = numbers["rocm"] = device_transport(comm)
    return Wire(comm.rank, comm.size, numbers, on_one_node=comm.local_size == comm.size)


def _host_wire(comm: Communicator) -> int:
    if comm.size == 1:
        return native.library().collops_add_alone()
    error = None
    try:
        native.load_mpi()
    except (InputError, TransportError) as caught:
        error = caught
    comm.check(error)
    private = comm.control.Dup()  # XLA's threads and the program's own calls must not meet on one communicator
    crowded = comm.local_size > len(available_cores())
    return native.library().collops_add_mpi(
        ctypes.c_int64(private.handle),
        comm.rank,
        comm.size,
        ctypes.c_double(default_timeout() or 0.0),
        _SPINS_OF_MANY if crowded else _SPINS,
    )
