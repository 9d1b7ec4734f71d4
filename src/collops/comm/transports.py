"""The table of transports of device arrays, and the choice among them.

A new transport needs a class derived from :class:`~collops.comm.transport.Transport`, and a row here. Ranks exchange
their :class:`Facts`, and each chooses by the facts of all. The class has a method ``connect(control, host,
failures, nodes, level)``, which is collective: `control` is the communicator of mpi4py, `host` the transport of host
arrays, `failures` waits with a deadline, `nodes` has the first rank of each rank's node, and `level` comes from
:func:`collops.comm.mpi.gpu_awareness`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collops.comm.agreement import table
from collops.comm.mpi import GPU_LEVELS
from collops.comm.mpi_transport import MpiTransport
from collops.comm.transport import TransportRow, TransportTable
from collops.errors import InputError, TransportError


class Facts(NamedTuple):
    """The resources and requests of one rank. `device` is the name of its GPU, empty without one."""

    transport: str
    device: str
    binding: str | None
    level: str
    awareness: str
    check: int


class Choice(NamedTuple):
    """The transport of device arrays, ``None`` without devices; the level of a GPU-aware MPI; and the reason."""

    name: str | None
    level: str
    why: str


def _obstacle_of_nccl(facts: Sequence[Facts]) -> str | None:
    if len({fact.device for fact in facts}) < len(facts):
        return "NCCL needs a GPU for each rank, and ranks share GPUs"
    without = [rank for rank, fact in enumerate(facts) if fact.binding is None]
    return f"NCCL has no binding on ranks {without}: install collops[cuda13] there" if without else None


def _obstacle_of_mpi(facts: Sequence[Facts]) -> str | None:
    least = _least_aware(facts)
    if least.level == GPU_LEVELS[0]:
        return f"MPI is not GPU-aware: {least.awareness} (see COLLOPS_GPU_AWARE_MPI)"
    return None


def _path_of_mpi(facts: Sequence[Facts]) -> str:
    least = _least_aware(facts)
    return f"GPU-aware MPI at level {least.level!r} ({least.awareness})"


DEVICE_TRANSPORTS = TransportTable(
    "collops.comm",
    {
        "nccl": TransportRow(
            "nccl.NcclTransport",
            _obstacle_of_nccl,
            lambda facts: f"NCCL through {facts[0].binding}: every rank has a GPU of its own",
        ),
        "mpi": TransportRow("staged.GpuAwareTransport", _obstacle_of_mpi, _path_of_mpi),
        "staged": TransportRow("staged.StagedTransport", lambda facts: None, lambda facts: "pinned host memory"),
    },
)


def best(facts: Sequence[Facts]) -> Choice:
    """Return the best transport that all ranks have and request.

    Raises
    ------
    InputError
        If the ranks request different transports.
    TransportError
        If they cannot use the requested transport.
    """
    asked = facts[0].transport
    if any(fact.transport != asked for fact in facts):
        named = table({rank: fact.transport for rank, fact in enumerate(facts)}, len(facts), "")
        raise InputError(f"ranks ask for different transports:\n{named}")
    level = _least_aware(facts).level
    without = [rank for rank, fact in enumerate(facts) if not fact.device]
    if without:
        if asked not in ("auto", MpiTransport.name):  # MPI carries host arrays as well
            raise TransportError(f"transport {asked!r} needs a GPU and CuPy on every rank; ranks {without} have none")
        have = "any rank" if len(without) == len(facts) else f"ranks {without}"
        return Choice(None, level, f"no GPU with CuPy on {have}")
    because = []
    for name, row in DEVICE_TRANSPORTS.rows.items():
        if asked not in ("auto", name):
            continue
        obstacle = row.obstacle(facts)
        if obstacle is None:
            assert row.path is not None
            return Choice(name, level, "; ".join([row.path(facts), *(["asked for"] if asked == name else because)]))
        because.append(obstacle)
    possible = ", ".join(["auto", *DEVICE_TRANSPORTS.possible(facts)])
    raise TransportError(f"transport {asked!r} cannot be used: {'; '.join(because)}; choose {possible}")


def _least_aware(facts: Sequence[Facts]) -> Facts:
    return min(facts, key=lambda fact: GPU_LEVELS.index(fact.level))
