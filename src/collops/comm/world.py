"""Makes communicators: the world's, those of mpi4py's communicators, and those split off them."""

from __future__ import annotations

import importlib.util
import os
import socket
from functools import cache
from typing import Any, NamedTuple

from collops import profile
from collops.comm.checked import CallAgreement, CheckedTransport, check_level
from collops.comm.choice import TRANSPORTS, by_all, choose
from collops.comm.communicator import Communicator
from collops.comm.cores import available_cores, limit_blas, share_of_cores
from collops.comm.ending import abort_on_uncaught_errors, answer_after_the_end, end_together
from collops.comm.failure import Failures, default_timeout
from collops.comm.mpi import (
    CALL_TAG,
    ControlChannel,
    DeviceMpi,
    MpiTransport,
    duplicate,
    load_mpi,
    on_node,
    values_kept_with,
)
from collops.comm.nccl import NcclTransport, load_binding
from collops.comm.serial import SerialTransport
from collops.comm.staged import GpuAwareTransport, StagedTransport
from collops.comm.transport import Transport
from collops.errors import InputError

__all__ = ["TRANSPORTS", "alone", "device_count", "from_mpi4py", "world"]

_ONE_CORE = 1 - 1e-6  # shares are sums of fractions
_worlds: dict[str, Communicator] = {}


def world(transport: str = "auto") -> Communicator:
    """Return the communicator of all ranks that were started together.

    Collective at its first call; later calls return the same object.

    Parameters
    ----------
    transport : str
        The transport of device arrays: ``"nccl"``, ``"mpi"`` (GPU-aware MPI), ``"staged"`` (through pinned host memory)
        or ``"auto"``, the best that all ranks have; the environment's ``COLLOPS_TRANSPORT`` replaces ``"auto"``. Host
        arrays always go by MPI. One process without MPI is a world of one.

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
    made = values_kept_with(comm)
    if transport not in made:
        made[transport] = _build(load_mpi()[0], comm, transport, "mpi4py's communicator was given")
    return made[transport]


def device_count() -> int:
    """Count the GPUs that this process sees; 0 without CuPy."""
    if importlib.util.find_spec("cupy") is None:
        return 0
    import cupy

    try:
        return cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


def _build(mpi: Any, comm: Any, transport: str, mpi_reason: str) -> Communicator:
    devices, timeout = device_count(), default_timeout()
    if comm is None or comm.size == 1:
        check_level()  # a mistake in the environment raises with a single rank, too
        if comm is not None:
            comm = comm.Dup()
        if devices:
            _use_device(0 if comm is None else on_node(comm)[0], devices)
        return _of_one_rank(bool(devices), comm, 0, 1, (mpi_reason, "one rank needs no transport"))
    abort_on_uncaught_errors(mpi)
    control = duplicate(comm)
    local_rank, cores = on_node(control, available_cores())
    local_size = len(cores)
    del cores[local_rank]
    share = share_of_cores(cores)
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
    place = _Place(mpi, local_rank, local_size, chosen.transport, tuple(reasons), crowded, chosen.check)
    built = _joined(place, control, host, failures)
    if comm == mpi.COMM_WORLD:
        end_together(mpi, failures, built.calls)
    return built


class _Place(NamedTuple):
    """What a communicator and those that are split off it have in common, and this rank's place on its node."""

    mpi: Any
    local_rank: int
    local_size: int
    device: str | None
    reasons: tuple[str, ...]
    crowded: bool
    check: str


def _of_one_rank(
    devices: bool, control: Any, local_rank: int, local_size: int, reasons: tuple[str, ...]
) -> Communicator:
    serial = SerialTransport()
    device = serial if devices else None
    return Communicator(serial, device, control=control, local_rank=local_rank, local_size=local_size, reasons=reasons)


def _joined(place: _Place, control: Any, host: MpiTransport, failures: Failures) -> Communicator:
    """Build the communicator of several ranks."""
    transport: Transport = host
    device = _device_transport(place.mpi, control, host, failures, place.device)
    answer_after_the_end(failures)
    calls = None
    if place.check != "off":
        calls = CallAgreement(ControlChannel(place.mpi, control, CALL_TAG), failures, sites=place.check == "sites")
        transport = CheckedTransport(host, calls, "host")
        device = None if device is None else CheckedTransport(device, calls, "device")
    elif place.device in (None, "staged"):
        failures.renew = host.renew
    return Communicator(
        transport,
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
    """Build a sub-communicator, with the transports of its parent, among whose ranks the cores are shared out."""
    local_rank, others = on_node(control)
    local_size = len(others)
    if control.size == 1:
        return _of_one_rank(parent.device is not None, control, local_rank, local_size, parent.reasons)
    failures = Failures(ControlChannel(parent.mpi, control), default_timeout(), parent.crowded)
    host = MpiTransport(parent.mpi, control, failures)
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


def _use_device(local_rank: int, devices: int) -> str:
    """Make this rank's GPU the current device; return a name that no other GPU of the machines has."""
    import cupy

    device = cupy.cuda.Device(local_rank % devices)
    device.use()
    return f"{socket.gethostname()} {device.pci_bus_id}"
