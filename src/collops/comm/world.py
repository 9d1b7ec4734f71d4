"""Makes communicators: the world, communicators made from mpi4py's, and their splits.

Ranks exchange their resources and requests, and each chooses the transport of device arrays by the same facts.
"""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

from collops import profile
from collops._forks import at_fork
from collops._launcher import bootstrap_address, check_world_of_one, mark_rank
from collops.comm.agreement import Mpi, MpiComm, gathered_values, raised_together
from collops.comm.checked import LEVELS, CallAgreement, CheckedTransport, check_level
from collops.comm.communicator import Communicator
from collops.comm.cores import available_cores, limit_blas, share_of_cores
from collops.comm.ending import abort_on_uncaught_errors, answer_after_the_end, end_together, stop_answering
from collops.comm.failure import Failures, default_timeout
from collops.comm.mpi import (
    CALL_TAG,
    GPU_LEVELS,
    ControlChannel,
    duplicate,
    gpu_awareness,
    load_mpi,
    mpi_or_tcp,
    on_node,
    ranks_in_world,
    values_kept_with,
)
from collops.comm.mpi_transport import MpiTransport, TcpTransport
from collops.comm.nccl import available_binding
from collops.comm.own_device import name_of_device, placement_from_launcher
from collops.comm.reclaim import free_when_unreachable, reclaim, unreachable
from collops.comm.tcp import Group
from collops.comm.transport import SerialTransport, Transport
from collops.comm.transports import DEVICE_TRANSPORTS, Choice, Facts, best
from collops.errors import CollopsError

__all__ = ["alone", "device_count", "world"]

_ONE_CORE = 1 - 1e-6  # shares are sums of fractions
_worlds: dict[str, Communicator] = {}
at_fork(_worlds.clear)
_own_device: list[int] = []
"""The number of this process's GPU, once selected."""


def world(transport: str = "auto") -> Communicator:
    """Return the communicator of all ranks that were started together.

    Collective at its first call; later calls return the same object.

    Parameters
    ----------
    transport : str
        The transport of device arrays: ``"nccl"``, ``"mpi"`` (GPU-aware MPI), ``"staged"`` (through pinned host memory)
        or ``"auto"``, the first of these that all ranks can use; the environment's ``COLLOPS_TRANSPORT`` replaces
        ``"auto"``. MPI always carries host arrays, or TCP if ``COLLOPS_BOOTSTRAP=tcp://HOST:PORT`` starts the ranks
        without MPI. One process without MPI is a world of one, and so is each with ``COLLOPS_BOOTSTRAP=alone`` in its
        environment, and each that a rank has started or forked.

    Notes
    -----
    Ranks that share the cores of their machine also divide them among the threads of BLAS, unless the environment sets
    the number of threads (``OMP_NUM_THREADS``, ``OPENBLAS_NUM_THREADS``, ``MKL_NUM_THREADS``, …).

    Raises
    ------
    InputError
        If there is no such transport, ``COLLOPS_BOOTSTRAP`` has another value, or a start without MPI lacks rank,
        number of ranks or ``COLLOPS_SECRET``.
    TransportError
        If the ranks cannot use it, if MPI has been finalised, if a launcher started several processes and MPI does not
        load or sees only one, or if ranks without MPI do not accept each other.
    CommunicationTimeout
        If ranks without MPI are missing at the deadline.

    Examples
    --------
    >>> import collops
    >>> comm = collops.world()
    >>> 0 <= comm.rank < comm.size
    True
    """
    if transport == "auto":
        transport = os.environ.get("COLLOPS_TRANSPORT", "auto")
    DEVICE_TRANSPORTS.check(transport)
    known = _worlds.get(transport)
    if known is None:
        bootstrap_address()  # raises an error if it is invalid
        mpi, reason = load_mpi()
        control = None if mpi is None else mpi.COMM_WORLD
        if control is None or control.size == 1:
            check_world_of_one(mpi is not None, reason)
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


def from_mpi4py(comm: MpiComm, transport: str = "auto") -> Communicator:
    """Return the communicator of the ranks of an mpi4py communicator. Collective at its first call with `comm`.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        It is used for set-up only, and messages of the caller on it are not disturbed. After its ``Free`` the
        communicator made from it can still be used; it is freed when it has no references on any rank.
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
    DEVICE_TRANSPORTS.check(transport)
    made = values_kept_with(comm)
    if transport not in made:
        made[transport] = _build(mpi_or_tcp(), comm, transport, "mpi4py's communicator was given")
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


def _build(mpi: Mpi, comm: MpiComm, transport: str, mpi_reason: str) -> Communicator:
    mark_rank()
    devices, is_world = device_count(), comm is None or comm == mpi.COMM_WORLD
    default_timeout()  # an invalid environment raises an error on a single rank, too
    if comm is None or comm.size == 1:
        check_level()
        if comm is not None:
            ranks = ranks_in_world(comm)
            reclaim(ranks, [unreachable(ranks)])
            comm = comm.Dup()
        if devices:
            _use_device(0, devices, is_world)
        reasons = (mpi_reason, "one rank needs no transport")
        return _communicator(_Placement(0, 1, "serial" if devices else None, reasons, False, "off"), comm)
    abort_on_uncaught_errors()
    control = duplicate(comm)
    local_rank, node_ranks = on_node(control, (control.rank, sorted(available_cores())))
    share = share_of_cores(frozenset(cores) for number, (_, cores) in enumerate(node_ranks) if number != local_rank)
    limit_blas(share)
    name = _use_device(local_rank, devices, is_world) if devices else ""
    try:
        choice, check = _choose(mpi, control, transport, name)
    except CollopsError as error:
        if error.on_all_ranks:
            control.Free()
        raise
    reasons = (f"host arrays: {mpi_reason}", f"device arrays: {choice.why}")
    if check != "off":
        reasons += (f"every call is agreed upon first: COLLOPS_CHECK asks for {check}",)
    nodes_and_hosts = _nodes_and_hosts(control, node_ranks[0][0])
    placement = _Placement(
        local_rank, len(node_ranks), choice.name, reasons, share < _ONE_CORE, check, *nodes_and_hosts, choice.level
    )
    return _communicator(placement, control, is_world)


class _Placement(NamedTuple):
    """The choices that a communicator shares with its splits, and this rank's position on its node.

    `device` is the transport of device arrays, ``None`` without devices; `check` is one of `checked.LEVELS`. `nodes`
    has the first rank of each rank's node, and `hosts` the name of each rank's host; it is empty if there is only one.
    `level` says how far MPI is GPU-aware.
    """

    local_rank: int
    local_size: int
    device: str | None
    reasons: tuple[str, ...]
    oversubscribed: bool
    check: str
    nodes: tuple[int, ...] = (0,)
    hosts: tuple[str, ...] = ()
    level: str = GPU_LEVELS[0]


def _communicator(placement: _Placement, control: MpiComm, is_world: bool = False) -> Communicator:
    """Return the communicator of the ranks of `control`, with the chosen transports."""
    names = ("local_rank", "local_size", "nodes", "reasons")
    common: Any = {"control": control, **{name: getattr(placement, name) for name in names}}
    if control is not None:
        common |= {"ranks": ranks_in_world(control), "releases": [control.Free]}
    if control is None or control.size == 1:
        serial = SerialTransport()
        return _owned(Communicator(serial, None if placement.device is None else serial, **common))
    failures = Failures(ControlChannel(control), default_timeout(), placement.oversubscribed, placement.hosts)
    host = transport = (TcpTransport if isinstance(control, Group) else MpiTransport)(control, failures)
    device: Transport | None = None
    settle = None
    if placement.device is not None:
        kind = DEVICE_TRANSPORTS.load(placement.device)
        device = made = kind.connect(control, host, failures, placement.nodes, placement.level)
        common["reasons"] += tuple(made.reasons)
        settle = partial(_wait_for_device, failures) if made.on_stream else None
    answer_after_the_end(failures)
    host.releases += [*common["releases"], partial(stop_answering, failures)]
    common["releases"] = host.releases  # which may grow
    calls = None
    if placement.check != "off":
        calls = CallAgreement(ControlChannel(control, CALL_TAG), failures, sites=placement.check == "sites")
        transport = CheckedTransport(host, calls, "host")
        device = None if device is None else CheckedTransport(device, calls, "device")
    elif device is None or device.by_host:
        failures.renew = host.renew
    if is_world:
        end_together(failures, calls)

    def derive(split: MpiComm) -> Communicator:
        local_rank, node_ranks = on_node(split, split.rank)
        nodes, hosts = _nodes_and_hosts(split, node_ranks[0])
        placement_of_split = placement._replace(
            local_rank=local_rank, local_size=len(node_ranks), nodes=nodes, hosts=hosts
        )
        return _communicator(placement_of_split, split)

    communicator = Communicator(transport, device, failures=failures, derive=derive, calls=calls, **common)
    return _owned(communicator, settle)


def _owned(made: Communicator, settle: Callable[[], None] | None = None) -> Communicator:
    """Register the resources of a communicator, to be freed when it has no references on any rank. Collective."""
    if made.control is not None:
        free_when_unreachable(made, made.ranks, made.releases, settle=settle)
    return made


def _wait_for_device(failures: Failures) -> None:
    import cupy

    event = cupy.cuda.get_current_stream().record()
    failures.until(lambda: event.done, "device work before a communicator is freed")
    cupy.cuda.Device().synchronize()


def _use_device(local_rank: int, devices: int, is_world: bool) -> str:
    """Make this rank's GPU the current device; return a name that is unique among the machines.

    The GPU is selected by the rank's number on its node, and is the same in all communicators: synchronising one device
    does not wait for work on another.
    """
    import cupy

    if not _own_device:
        launcher_placement = (
            None if is_world else placement_from_launcher()
        )  # ranks of different communicators may have the same number
        _own_device.append((launcher_placement[0] if launcher_placement else local_rank) % devices)
    cupy.cuda.Device(_own_device[0]).use()
    return name_of_device()


def _choose(mpi: Mpi, control: MpiComm, transport: str, device: str) -> tuple[Choice, str]:
    """Agree on the transport of device arrays, and on the strictest check that a rank requests. Collective.

    Errors are raised on every rank: `InputError` if the ranks request different transports or the environment is
    invalid, `TransportError` if some rank lacks what the transport needs.
    """
    ranks = ranks_in_world(control)
    notes = unreachable(ranks)
    rows = gathered_values(
        control.allgather,
        lambda: (notes, transport, device, available_binding(), *gpu_awareness(mpi), LEVELS.index(check_level())),
    )
    reclaim(ranks, [row[0] for row in rows])
    facts = [Facts(*row[1:]) for row in rows]
    with raised_together():
        choice = best(facts)
    return choice, LEVELS[max(fact.check for fact in facts)]


def _nodes_and_hosts(control: MpiComm, first: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return `nodes` and `hosts` of a `_Placement`; `first` is the first rank of this rank's node. Collective."""
    nodes, hosts = zip(*control.allgather((first, socket.gethostname())), strict=True)
    return nodes, hosts if len(set(hosts)) > 1 else ()
