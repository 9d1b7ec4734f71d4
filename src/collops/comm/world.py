"""The making of communicators: the world's, those of mpi4py's communicators, and those split off them."""

from __future__ import annotations

import importlib.util
import os
import socket
from functools import cache
from typing import Any, NamedTuple

from collops import profile
from collops.comm.call_agreement import CallAgreement, check_level
from collops.comm.checked import CheckedTransport
from collops.comm.choice import TRANSPORTS, by_all, choose
from collops.comm.communicator import Communicator
from collops.comm.control_channel import CALL_TAG, ControlChannel
from collops.comm.cores import available_cores, share_of_cores
from collops.comm.ending import abort_on_uncaught_errors, answer_after_the_end, end_together
from collops.comm.failure import Failures, default_timeout
from collops.comm.gpu_aware import DeviceMpi, GpuAwareTransport
from collops.comm.mpi import MpiTransport
from collops.comm.nccl import NcclTransport
from collops.comm.nccl_binding import load_binding
from collops.comm.serial import SerialTransport
from collops.comm.staged import StagedTransport
from collops.comm.threads import limit_blas
from collops.comm.transport import Transport
from collops.errors import InputError, TransportError, UnsupportedTypeError

__all__ = ["TRANSPORTS", "alone", "device_count", "from_mpi4py", "load_mpi", "place_on_node", "world"]

_ONE_CORE = 1 - 1e-6  # shares are sums of fractions
_LAUNCHERS = ("PMI_RANK", "PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")
_worlds: dict[str, Communicator] = {}


def world(transport: str = "auto") -> Communicator:
    """Return the communicator of all ranks that were started together.

    Collective at its first call; later calls return the same object.

    Parameters
    ----------
    transport : str
        The wire for device arrays: ``"nccl"``, ``"mpi"`` (GPU-aware MPI), ``"staged"`` (through pinned host memory) or
        ``"auto"``, the best that all ranks have; the environment's ``COLLOPS_TRANSPORT`` replaces ``"auto"``. Host
        arrays go by MPI whatever is chosen. One process without MPI is a world of one.

    Notes
    -----
    Ranks that share the cores of their machine share them also among the threads of BLAS, where the environment does
    not say how many there are (``OMP_NUM_THREADS``, ``OPENBLAS_NUM_THREADS``, ``MKL_NUM_THREADS``, …).

    Raises
    ------
    InputError
        If there is no such transport.
    TransportError
        If the ranks cannot use it, or were started by an MPI launcher whose MPI does not load.

    Examples
    --------
    >>> import collops
    >>> comm = collops.world()
    >>> 0 <= comm.rank < comm.size
    True
    """
    if transport == "auto":
        transport = os.environ.get("COLLOPS_TRANSPORT", "auto")
    if transport not in TRANSPORTS:
        raise InputError(f"there is no transport {transport!r}; choose {', '.join(TRANSPORTS)}")
    known = _worlds.get(transport)
    if known is None:
        mpi, reason = load_mpi()
        control = None if mpi is None else mpi.COMM_WORLD
        known = _worlds[transport] = _build(mpi, control, transport, reason)
        profile.report_on(known)
    return known


@cache
def alone() -> Communicator:
    """Return the communicator of this rank only, which sends nothing. Not collective.

    Examples
    --------
    >>> import collops
    >>> from collops.comm import alone
    >>> alone().size, alone().rank
    (1, 0)
    >>> collops.ones(3, comm=alone()).gather()  # this rank's own
    array([1., 1., 1.])
    """
    return Communicator(SerialTransport(), None)


def from_mpi4py(comm: Any, transport: str = "auto") -> Communicator:
    """Return the communicator of the ranks of an mpi4py communicator. Collective at its first call with `comm`.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        It is used for set-up only, and messages of the caller on it are not disturbed.
    transport : str
        See :func:`world`.

    Raises
    ------
    UnsupportedTypeError
        If `comm` is something else.
    InputError, TransportError
        See :func:`world`.

    Examples
    --------
    >>> import collops
    >>> from mpi4py import MPI
    >>> comm = collops.from_mpi4py(MPI.COMM_WORLD)
    >>> comm.size == MPI.COMM_WORLD.size
    True
    """
    if transport not in TRANSPORTS:
        raise InputError(f"there is no transport {transport!r}; choose {', '.join(TRANSPORTS)}")
    from mpi4py import MPI

    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        raise UnsupportedTypeError(f"from_mpi4py takes an intracommunicator of mpi4py, not {comm!r}")
    # Kept with MPI's communicator: handles of those that are freed are given to others.
    made: Any = comm.Get_attr(_attribute())
    if made is None:
        made = {}
        comm.Set_attr(_attribute(), made)
    if transport not in made:
        made[transport] = _build(MPI, comm, transport, "mpi4py's communicator was given")
    return made[transport]


@cache
def _attribute() -> int:
    """Return the key under which a communicator of MPI keeps those that were made of it."""
    from mpi4py import MPI

    return MPI.Comm.Create_keyval()


def load_mpi() -> tuple[Any, str]:
    """Return ``mpi4py.MPI`` (or ``None``) and the reason.

    Raises
    ------
    TransportError
        If an MPI launcher started this process but no MPI can be loaded: the ranks could not find each other.
    """
    launched = [name for name in _LAUNCHERS if name in os.environ]
    if importlib.util.find_spec("mpi4py") is None:
        if launched:
            raise TransportError(f"an MPI launcher started this process ({launched[0]} is set): install collops[mpi]")
        return None, "mpi4py is not installed"
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        if launched:
            raise TransportError(f"an MPI launcher started this process, but MPI does not load: {error}") from error
        return None, f"mpi4py finds no MPI library ({error})"
    return MPI, MPI.Get_library_version().splitlines()[0].strip(" \0")


def device_count() -> int:
    """Count the GPUs that this process sees; 0 without CuPy."""
    if importlib.util.find_spec("cupy") is None:
        return 0
    import cupy

    try:
        return cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


def place_on_node() -> tuple[int, int]:
    """Return rank and size of this process among those of its node, before there is a communicator. Collective."""
    mpi, _ = load_mpi()
    if mpi is None:
        return 0, 1
    control = _duplicate(mpi, mpi.COMM_WORLD)
    place = _node(mpi, control)
    control.Free()
    return place


def _build(mpi: Any, comm: Any, transport: str, mpi_reason: str) -> Communicator:
    devices, timeout = device_count(), default_timeout()
    if comm is None or comm.size == 1:
        check_level()  # a mistake in the environment is no less one where there is nobody to agree with
        if comm is not None:
            comm = comm.Dup()
        serial = SerialTransport()
        if devices:
            _use_device(0 if comm is None else _node(mpi, comm)[0], devices)
        reasons = (mpi_reason, "a world of one needs no wire")
        return Communicator(serial, serial if devices else None, control=comm, reasons=reasons)
    abort_on_uncaught_errors(mpi)
    control = _duplicate(mpi, comm)
    local_rank, local_size = _node(mpi, control)
    share = _share_of_cores(mpi, control)
    crowded = share < _ONE_CORE
    limit_blas(share)
    failures = Failures(ControlChannel(mpi, control), timeout, crowded)
    host = MpiTransport(mpi, control, failures)
    reasons = [f"host arrays: {mpi_reason}"]
    identity = _use_device(local_rank, devices) if devices else ""
    chosen = choose(mpi, control, transport, identity)
    reasons.append(f"device arrays: {chosen.why}")
    if chosen.check != "off":
        reasons.append(f"every call is agreed upon first: COLLOPS_CHECK asks for {chosen.check}")
    place = _Place(mpi, local_rank, local_size, chosen.wire, tuple(reasons), crowded, chosen.check)
    built = _joined(place, control, host, failures)
    if comm == mpi.COMM_WORLD:
        end_together(mpi, failures, built.calls)
    return built


class _Place(NamedTuple):
    """What a communicator and those that are split off it have in common, and this rank's place on its node."""

    mpi: Any
    local_rank: int
    local_size: int
    choice: str | None
    reasons: tuple[str, ...]
    crowded: bool
    check: str


def _joined(place: _Place, control: Any, host: MpiTransport, failures: Failures) -> Communicator:
    """Build the communicator of several ranks."""
    device = _device_transport(place.mpi, control, host, failures, place.choice)
    answer_after_the_end(failures)
    calls = None
    wire: Transport = host
    if place.check != "off":
        calls = CallAgreement(ControlChannel(place.mpi, control, CALL_TAG), failures, sites=place.check == "sites")
        wire = CheckedTransport(host, calls, "host")
        device = None if device is None else CheckedTransport(device, calls, "device")
    elif place.choice in (None, "staged"):
        failures.renew = host.renew
    return Communicator(
        wire,
        device,
        control=control,
        local_rank=place.local_rank,
        local_size=place.local_size,
        reasons=place.reasons,
        failures=failures,
        derive=lambda split: _derived(place, split),
        calls=calls,
    )


def _derived(parent: _Place, control: Any) -> Communicator:
    """Build a sub-communicator, with the wires of its parent, among whose ranks the cores are shared out."""
    mpi = parent.mpi
    local_rank, local_size = _node(mpi, control)
    if control.size == 1:
        serial = SerialTransport()
        device = None if parent.choice is None else serial
        return Communicator(
            serial, device, control=control, local_rank=local_rank, local_size=local_size, reasons=parent.reasons
        )
    failures = Failures(ControlChannel(mpi, control), default_timeout(), parent.crowded)
    host = MpiTransport(mpi, control, failures)
    return _joined(parent._replace(local_rank=local_rank, local_size=local_size), control, host, failures)


def _device_transport(
    mpi: Any, control: Any, host: MpiTransport, failures: Failures, choice: str | None
) -> Transport | None:
    if choice is None:
        return None
    if choice == "staged":
        return StagedTransport(host)
    if choice == "nccl":
        by_all(control, lambda: load_binding().name)
        binding = load_binding()
        unique_id = control.bcast(binding.unique_id() if control.rank == 0 else None, root=0)
        return NcclTransport(binding, control.size, control.rank, unique_id)
    return GpuAwareTransport(host, DeviceMpi(mpi, control, failures), choice.removeprefix("mpi-"))


def _duplicate(mpi: Any, comm: Any) -> Any:
    """Return a duplicate of an mpi4py communicator, once all its ranks want one; the first of all waits.

    What set-up does after it has no deadline of its own, but every rank has come by then.
    """
    control, request = comm.Idup()
    Failures(ControlChannel(mpi, comm), default_timeout(), crowded=True).wait(request, "setting up a communicator")
    return control


def _node(mpi: Any, comm: Any) -> tuple[int, int]:
    """Rank and size among the ranks of this node; in a world they pick the GPU."""
    shared = comm.Split_type(mpi.COMM_TYPE_SHARED)
    place = (shared.rank, shared.size)
    shared.Free()
    return place


def _share_of_cores(mpi: Any, comm: Any) -> float:
    """Return how many cores this rank has for itself among the ranks of its node."""
    shared = comm.Split_type(mpi.COMM_TYPE_SHARED)
    cores = shared.allgather(available_cores())
    del cores[shared.rank]
    shared.Free()
    return share_of_cores(cores)


def _use_device(local_rank: int, devices: int) -> str:
    """Make this rank's GPU the current device; return a name that no other GPU of the machines has."""
    import cupy

    device = cupy.cuda.Device(local_rank % devices)
    device.use()
    return f"{socket.gethostname()} {device.pci_bus_id}"
