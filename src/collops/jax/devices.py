"""Devices: groups of devices, the GPU of a rank, and communicators of NCCL (or RCCL).

The communicators are used by collops.jax only (:class:`collops.comm.nccl.NcclLibrary`), and come from the library that
JAX uses. RCCL has the same functions; this path compiles, but has not been run on an AMD machine.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import socket
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp

from collops.comm import Communicator
from collops.comm.agreement import collective_errors, collective_values
from collops.comm.nccl import NcclLibrary
from collops.comm.own_device import select_own_device
from collops.errors import InputError, TransportError
from collops.jax import drivers, native, versions
from collops.jax.versions import Device

_NCCL_FUNCTIONS = (
    *("ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather", "ncclReduceScatter", "ncclSend", "ncclRecv"),
    *("ncclGroupStart", "ncclGroupEnd", "ncclGetErrorString", "ncclGetLastError"),
)


class Clique:
    """Devices as the ranks of a communicator, for collectives inside ``shard_map``; created by :func:`clique`.

    The first clique makes JAX cache the compiled steps of each ``shard_map`` without ``jit`` in this process.

    Attributes
    ----------
    devices : tuple of jax.Device
        The devices of this process.
    comm : Communicator or None
        The processes whose devices are joined; ``None`` for this process alone.
    counts : tuple of int
        Number of devices of each process.
    size : int
        Number of devices of all processes.
    first : int
        Rank of ``devices[0]`` in the group; the other devices follow.

    Examples
    --------
    >>> import collops.jax
    >>> joined = collops.jax.clique()  # all devices of this process
    >>> isinstance(joined, collops.jax.Clique), joined.size >= 1, joined.first
    (True, True, 0)
    """

    _identifiers: tuple[tuple[int, int], ...] = ()  # of the devices of all processes

    def __init__(self, devices: tuple[Device, ...], comm: Communicator | None, counts: tuple[int, ...]) -> None:
        versions.keep_steps_of_shard_map()
        self.devices = devices
        self.comm = comm
        self.counts = counts
        self.size = sum(counts)
        self.first = 0 if comm is None else sum(counts[: comm.rank])

    def _spans(self, devices: Sequence[Device] | None) -> bool:
        """Return whether `devices` are all devices of all processes, in the order of ``jax.distributed``."""
        return devices is not None and tuple(map(_identifier, devices)) == self._identifiers


def use_local_device() -> None:
    """Restrict this process to the GPU of its local rank. Collective.

    Call it before the first use of a GPU: before :func:`collops.world`, CuPy and JAX. Otherwise, JAX would allocate
    most of the memory of all GPUs on every rank. It is not needed if the launcher selects a GPU for each rank; without
    GPUs, or with one rank on a node, it has no effect.

    Raises
    ------
    InputError
        If JAX, or CUDA with several GPUs, is in use already.

    Examples
    --------
    >>> import collops.jax
    >>> collops.jax.use_local_device()  # before collops.world()  # doctest: +SKIP
    """
    from jax.extend import backend

    initialized = getattr(backend, "backends_are_initialized", None)
    if initialized is None:
        from jax._src.xla_bridge import backends_are_initialized as initialized
    if initialized():
        raise InputError("collops.jax.use_local_device() must be called before JAX creates its first array")
    select_own_device()


def clique(devices: Sequence[Device] | None = None, *, comm: Communicator | None = None) -> Clique:
    """Join devices, as ``comm=`` inside ``shard_map``. Collective over `comm`, if any.

    Each device is one rank of the group. Inside ``shard_map`` over `devices`, in the same order, ``allreduce``,
    ``bcast``, ``allgather``, ``reduce_scatter``, ``alltoall`` and ``barrier`` connect all devices of the group. If the
    ranks are processes of ``jax.distributed``, ``shard_map`` may also be over the devices of all ranks.

    Parameters
    ----------
    devices : sequence of jax.Device, optional
        Devices of this process, GPUs or CPU devices. By default all its devices.
    comm : Communicator, optional
        Join the devices of all its ranks, in the order of the ranks: one GPU of each rank, or any number of CPU
        devices. By default only the devices of this process are joined.

    Returns
    -------
    Clique
        The same object for the same arguments.

    Raises
    ------
    InputError
        If `devices` is empty, contains a device twice, has devices of different kinds or of another process, or if
        several GPUs of a rank are to be joined with other ranks.
    TransportError
        If the devices are GPUs and NCCL cannot join them.

    Examples
    --------
    >>> import collops.jax
    >>> import jax
    >>> collops.jax.clique(jax.local_devices()[:1]).size
    1
    >>> comm = collops.world()
    >>> collops.jax.clique(jax.local_devices()[:1], comm=comm).size == comm.size
    True
    """
    members = tuple(jax.local_devices() if devices is None else devices)
    if comm is None:
        return _clique(members, None, (_described(members),))
    if not isinstance(comm, Communicator):
        raise InputError(f"comm must be a collops communicator, not {type(comm).__name__}")
    known = collective_values(comm, lambda: _described(members))
    if len(kinds := {kind for kind, _ in known}) > 1:
        raise InputError(f"the devices of a clique must be of one kind on all ranks, not {' and '.join(sorted(kinds))}")
    if comm.size > 1 and kinds != {"cpu"} and any(len(identifiers) > 1 for _, identifiers in known):
        raise InputError(
            "clique(comm=...) joins at most one GPU of each rank with GPUs of other ranks: start a rank for each GPU, "
            "or join the GPUs of one process by clique()"
        )
    return _clique(members, comm, tuple((kind, tuple(map(tuple, identifiers))) for kind, identifiers in known))


def _identifier(device: Device) -> tuple[int, int]:
    """Return the process and the number of a device, unique among processes of ``jax.distributed``."""
    return device.process_index, device.id


def _described(devices: tuple[Device, ...]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the kind and the identifiers of devices that can form a clique."""
    if not devices:
        raise InputError("a clique needs at least one device")
    if len(set(devices)) < len(devices):
        raise InputError(f"a clique needs distinct devices, not {list(devices)}")
    if len({device.platform for device in devices}) > 1:
        raise InputError(f"the devices of a clique must be of one kind, not {list(devices)}")
    if any(device.process_index != jax.process_index() for device in devices):
        raise InputError("a clique needs devices of this process; to join devices of other ranks, pass comm=")
    return devices[0].platform, tuple(map(_identifier, devices))


@cache
def _clique(
    devices: tuple[Device, ...], comm: Communicator | None, known: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
) -> Clique:
    # All devices of all ranks are part of the key, so that either all ranks create a new clique or none.
    joined = Clique(devices, comm, tuple(len(identifiers) for _, identifiers in known))
    joined._identifiers = tuple(identifier for _, identifiers in known for identifier in identifiers)
    return joined


def has_devices() -> bool:
    """Return whether JAX's arrays are on GPUs."""
    return jax.default_backend() == "gpu"


def may_record() -> bool:
    """Return whether NCCL allows mixing recorded and other calls, which environment variables can disable."""
    registers = os.environ.get("NCCL_GRAPH_REGISTER", "0") != "0"
    return not registers and os.environ.get("NCCL_GRAPH_MIXING_SUPPORT") != "0"


def device_transport(comm: Communicator) -> int:
    """Connect the GPUs of all ranks; return the number of the transport in the native library. Collective."""
    if comm.size == 1:
        return clique_transport(jax.local_devices()[:1])
    device = jax.local_devices()[0].local_hardware_id
    with collective_errors(comm):
        identity = list(_nccl().unique_id()) if comm.rank == 0 else []  # identifier for connecting all ranks by NCCL
        address = f"{socket.gethostname()} {drivers.bus_of(device)}"  # of this rank's GPU
    known = comm.allgather_metadata([address, identity])
    if len({address for address, _ in known}) < comm.size:
        raise TransportError(
            "each rank needs a separate GPU: call collops.jax.use_local_device() before collops.world(), "
            "or let the launcher set CUDA_VISIBLE_DEVICES"
        )
    with jax.ensure_compile_time_eval():  # a transport may first be needed while a program is traced
        scratch = jnp.zeros(2 * comm.size, jnp.uint8).block_until_ready()
    with drivers.current(device):
        joined = _nccl().connect(comm.size, comm.rank, bytes(known[0][1]))
        _nccl().connect_pairs(joined, comm.rank, comm.size, scratch.unsafe_buffer_pointer())
        drivers.wait_for_device()
    return _add([joined], [device], [comm.rank], comm.size, comm.local_size == comm.size)


def clique_transport(joined: Sequence[Device]) -> int:
    """Connect GPUs of this process; return the number of the transport in the native library."""
    devices, size = [device.local_hardware_id for device in joined], len(joined)
    return _add(_nccl().connect_devices(devices), devices, list(range(size)), size, size > 1)


def _add(communicators: list[int], devices: list[int], ranks: list[int], size: int, record: bool) -> int:
    """Add a transport to the native library; return its number.

    `record` has not been tested between nodes, and has no benefit on a single device.
    """
    count = len(devices)
    return native.library().collops_add_nccl(
        native.int64s(communicators),
        (ctypes.c_int * count)(*devices),
        (ctypes.c_int * count)(*ranks),
        count,
        size,
        record and may_record(),
    )


@cache
def _nccl() -> NcclLibrary:
    """Load NCCL or RCCL, and pass the addresses of its functions to the native library."""
    loaded = NcclLibrary(["librccl.so.1"] if drivers.is_rocm() else [*_of_packages(), "libnccl.so.2"])
    native.library().collops_load_nccl(native.int64s(loaded.addresses(_NCCL_FUNCTIONS)))
    if not drivers.is_rocm():
        native.library().collops_load_cuda(native.int64s(drivers.graph_functions()))
    return loaded


def _of_packages() -> list[str]:
    """Return the paths of NCCL in the package that jax[cuda] installs."""
    package = importlib.util.find_spec("nvidia")
    folders = [] if package is None else list(package.submodule_search_locations or ())
    paths = [Path(folder) / "nccl" / "lib" / "libnccl.so.2" for folder in folders]
    return [str(path) for path in paths if path.is_file()]
