"""GPUs: which one a rank uses, and communicators of NCCL (or RCCL) for ranks with a GPU each or a process with several.

The communicators are of collops.jax alone, since XLA's stream and a program's own streams must not meet on one of them.
Made through ctypes from the library that JAX itself uses; neither a toolkit nor another package is needed. RCCL has the
same functions; that path is written and compiled, but has not been run on an AMD machine.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import socket
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from collops.comm import Communicator
from collops.comm.own_device import show_own_device
from collops.errors import InputError, TransportError
from collops.jax import drivers, native

__all__ = ["Clique", "clique", "clique_wire", "device_wire", "has_devices", "may_record", "use_local_device"]

_NCCL_FUNCTIONS = (
    *("ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather", "ncclReduceScatter", "ncclSend", "ncclRecv"),
    *("ncclGroupStart", "ncclGroupEnd", "ncclGetErrorString", "ncclGetLastError"),
)
_UNIQUE_ID_BYTES = 128
_UINT8, _SUM = 1, 0  # as NCCL numbers them


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * _UNIQUE_ID_BYTES),)


class Clique:
    """The GPUs of one process as a communicator, for collectives inside ``shard_map``; see :func:`clique`.

    Attributes
    ----------
    devices : tuple of jax.Device
        Rank *r* is ``devices[r]``.

    Examples
    --------
    >>> import collops.jax
    >>> joined = collops.jax.clique()  # all devices of this process
    >>> isinstance(joined, collops.jax.Clique), joined.size >= 1
    (True, True)
    """

    def __init__(self, devices: tuple[Any, ...]) -> None:
        self.devices = devices
        self.size = len(devices)


def use_local_device() -> None:
    """Give this rank the GPU of its number on its node, and hide the others from it. Collective.

    Call it before anything uses a GPU: before :func:`collops.world`, CuPy and JAX. JAX would else take all GPUs, and
    most of their memory, on every rank. Not needed where the launcher shows each rank its own GPU; without GPUs, or
    with one rank on a node, it does nothing.

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
        raise InputError("collops.jax.use_local_device() has to be called before JAX makes its first array")
    show_own_device()


def clique(devices: Sequence[Any] | None = None) -> Clique:
    """Join GPUs of this process, as ``comm=`` inside ``shard_map`` over the same devices in the same order.

    Parameters
    ----------
    devices : sequence of jax.Device, optional
        By default all that this process has.

    Raises
    ------
    TransportError
        If there is no NCCL, or it cannot join them.

    Examples
    --------
    >>> import collops.jax
    >>> import jax
    >>> collops.jax.clique(jax.local_devices()[:1]).size
    1
    """
    return _clique(tuple(jax.local_devices() if devices is None else devices))


@cache
def _clique(devices: tuple[Any, ...]) -> Clique:
    return Clique(devices)


def has_devices() -> bool:
    """Whether JAX's arrays live on GPUs."""
    return jax.default_backend() == "gpu"


def may_record() -> bool:
    """Whether NCCL takes recorded calls beside others, and those of a rank whose peers record nothing.

    It does unless the environment says otherwise.
    """
    registers = os.environ.get("NCCL_GRAPH_REGISTER", "0") != "0"
    return not registers and os.environ.get("NCCL_GRAPH_MIXING_SUPPORT") != "0"


def device_wire(comm: Communicator) -> int:
    """Connect the GPUs of all ranks; return the number of the wire. Collective.

    Raises
    ------
    TransportError
        If two ranks have the same GPU, or NCCL cannot join them.
    """
    if comm.size == 1:
        return clique_wire(clique(jax.local_devices()[:1]))
    device = jax.local_devices()[0].local_hardware_id
    mine: list[Any] = []
    error = None
    try:
        mine = _ready(device, comm.rank)
    except TransportError as caught:
        error = caught
    comm.check(error)
    known = comm.allgather_metadata(mine)
    if len({place for place, _ in known}) < comm.size:
        raise TransportError(
            "each rank needs a GPU of its own: call collops.jax.use_local_device() before collops.world(), "
            "or let the launcher set CUDA_VISIBLE_DEVICES"
        )
    nccl, joined = _nccl(), ctypes.c_void_p()
    with drivers.current(device):
        identity = _UniqueId.from_buffer_copy(bytes(known[0][1]))
        code = nccl.ncclCommInitRank(ctypes.byref(joined), ctypes.c_int(comm.size), identity, ctypes.c_int(comm.rank))
        _succeeded(code, "ncclCommInitRank")
        _connect_pairs(nccl, joined, comm.rank, comm.size)
    return _add([joined.value or 0], [device], [comm.rank], comm.size, comm.local_size == comm.size)


def _ready(device: int, rank: int) -> list[Any]:
    """Return where this rank's GPU is, and on rank 0 the name under which NCCL lets the ranks meet."""
    nccl, identity = _nccl(), _UniqueId()
    if rank == 0:
        _succeeded(nccl.ncclGetUniqueId(ctypes.byref(identity)), "ncclGetUniqueId")
    return [f"{socket.gethostname()} {drivers.bus_of(device)}", list(bytes(identity))]


def clique_wire(joined: Clique) -> int:
    """Connect the GPUs of a clique; return the number of the wire."""
    devices = [device.local_hardware_id for device in joined.devices]
    communicators = (ctypes.c_void_p * joined.size)()
    code = _nccl().ncclCommInitAll(communicators, ctypes.c_int(joined.size), (ctypes.c_int * joined.size)(*devices))
    _succeeded(code, "ncclCommInitAll")
    handles = [value or 0 for value in communicators]
    return _add(handles, devices, list(range(joined.size)), joined.size, joined.size > 1)


def _add(communicators: list[int], devices: list[int], ranks: list[int], size: int, record: bool) -> int:
    """Make a wire; what `record` allows has not been tried between nodes, and gains nothing on one device alone."""
    count = len(devices)
    return native.library().collops_add_nccl(
        native.int64s(communicators),
        (ctypes.c_int * count)(*devices),
        (ctypes.c_int * count)(*ranks),
        count,
        size,
        record and may_record(),
    )


def _connect_pairs(nccl: ctypes.CDLL, joined: ctypes.c_void_p, rank: int, size: int) -> None:
    """Send a byte between any two ranks and add one up, and wait for it.

    NCCL connects two ranks at their first message. That takes the hosts of both, which must not wait for each other
    while one of them holds back what the other's device waits for; here nothing else is under way.
    """
    with jax.ensure_compile_time_eval():  # a wire may be wanted first while a program is traced
        scratch = jnp.zeros(2 * size, jnp.uint8).block_until_ready()
    begin, stream, one = scratch.unsafe_buffer_pointer(), ctypes.c_void_p(), ctypes.c_size_t(1)

    def at(place: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(begin + place)

    _succeeded(nccl.ncclGroupStart(), "ncclGroupStart")
    codes = []
    for peer in (peer for peer in range(size) if peer != rank):
        codes.append(nccl.ncclSend(at(peer), one, _UINT8, peer, joined, stream))
        codes.append(nccl.ncclRecv(at(size + peer), one, _UINT8, peer, joined, stream))
    codes.append(nccl.ncclGroupEnd())
    codes.append(nccl.ncclAllReduce(at(0), at(0), one, _UINT8, _SUM, joined, stream))
    for code in codes:
        _succeeded(code, "connecting all ranks")
    drivers.wait_for_device()


@cache
def _nccl() -> ctypes.CDLL:
    """Load NCCL or RCCL, and tell the native library where its functions are."""
    loaded = _opened(["librccl.so.1"] if drivers.is_rocm() else [*_of_packages(), "libnccl.so.2"])
    loaded.ncclGetErrorString.restype = ctypes.c_char_p
    addresses = [ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0 for name in _NCCL_FUNCTIONS]
    native.library().collops_load_nccl(native.int64s(addresses))
    if not drivers.is_rocm():
        native.library().collops_load_cuda(native.int64s(drivers.graph_functions()))
    # NCCL would else connect the rings of ranks at the first call that needs them, inside a running program, and tell
    # each other the addresses in what is recorded: while one rank records, another may have nothing to record.
    os.environ.setdefault("NCCL_RUNTIME_CONNECT", "0")
    os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
    return loaded


def _of_packages() -> list[str]:
    """Where the package that jax[cuda] brings keeps it."""
    found = importlib.util.find_spec("nvidia")
    places = [] if found is None else list(found.submodule_search_locations or ())
    paths = [Path(place) / "nccl" / "lib" / "libnccl.so.2" for place in places]
    return [str(path) for path in paths if path.is_file()]


def _opened(names: list[str]) -> ctypes.CDLL:
    reasons = []
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    raise TransportError(f"collops.jax needs NCCL on GPUs, which does not load: {'; '.join(reasons)}")


def _succeeded(code: int, call: str) -> None:
    if code:
        raise TransportError(f"{call} reports: {_nccl().ncclGetErrorString(ctypes.c_int(code)).decode()}")
