"""The choice of a transport for device arrays: the best that all ranks have, as they ask for it.

Ranks exchange what they have and ask for, and each decides by the same facts, so that all decide alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from collops.comm.agreement import described, raise_together, table
from collops.comm.checked import LEVELS, check_level
from collops.comm.mpi import gpu_awareness
from collops.comm.nccl import available_binding
from collops.errors import CollopsError, InputError, TransportError

TRANSPORTS = ("auto", "mpi", "staged", "nccl")

Value = TypeVar("Value")


class _Chosen(NamedTuple):
    """What all ranks will use.

    Attributes
    ----------
    transport : str or None
        ``"nccl"``, ``"staged"``, or ``"mpi-"`` and the level of a GPU-aware MPI; ``None`` without devices.
    why : str
        The reason, for users.
    check : str
        The strictest check that ``COLLOPS_CHECK`` asks for on any rank, one of ``call_agreement.LEVELS``.
    """

    transport: str | None
    why: str
    check: str


class _Facts(NamedTuple):
    """What one rank has and asks for."""

    transport: str
    device: str
    binding: str | None
    level: str
    awareness: str
    check: int


def choose(mpi: Any, control: Any, transport: str, device: str) -> _Chosen:
    """Agree on the transport for device arrays, and on what is checked. Collective.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    control : mpi4py.MPI.Comm
        Of the ranks.
    transport : str
        One of `TRANSPORTS`.
    device : str
        The name of this rank's GPU, which no other GPU has; empty without one.

    Raises
    ------
    InputError
        On every rank, if the ranks ask for different transports, or an environment variable names an unknown choice.
    TransportError
        On every rank, if the ranks lack what the transport needs.
    """
    facts = by_all(
        control,
        lambda: _Facts(transport, device, available_binding(), *gpu_awareness(mpi), LEVELS.index(check_level())),
    )
    try:
        best, why = _best(facts)
    except CollopsError as error:
        error.on_all_ranks = True  # each raises it by itself
        raise
    return _Chosen(best, why, LEVELS[max(fact.check for fact in facts)])


def by_all(control: Any, make: Callable[[], Value]) -> list[Value]:
    """Return what `make` returns on every rank, and raise on all of them what it raises on some. Collective."""
    value, error = None, None
    try:
        value = make()
    except CollopsError as caught:
        error = caught
    everyone = control.allgather((described(error), value))
    reports = [report for report, _ in everyone]
    if any(reports):
        raise_together(error, reports)
    return [value for _, value in everyone]


def _best(facts: list[_Facts]) -> tuple[str | None, str]:
    """Return the best transport that all ranks have, as they ask for it, and why."""
    transport = facts[0].transport
    if any(fact.transport != transport for fact in facts):
        asked = table({rank: fact.transport for rank, fact in enumerate(facts)}, len(facts), "")
        raise InputError(f"ranks ask for different transports:\n{asked}")
    without = [rank for rank, fact in enumerate(facts) if not fact.device]
    if without:
        if transport in ("nccl", "staged"):
            raise TransportError(
                f"transport {transport!r} needs a GPU and CuPy on every rank; ranks {without} have none"
            )
        return None, "no GPU with CuPy on " + ("any rank" if len(without) == len(facts) else f"ranks {without}")
    shared = len({fact.device for fact in facts}) < len(facts)
    bindings = {fact.binding for fact in facts}
    least = min(facts, key=lambda fact: ("none", "p2p", "all").index(fact.level))
    if transport == "nccl" and shared:
        raise TransportError("NCCL needs a GPU for each rank, but some share one; use transport='staged'")
    if transport == "nccl" or (transport == "auto" and not shared and None not in bindings):
        return "nccl", f"NCCL through {facts[0].binding}: every rank has a GPU of its own"
    if transport == "mpi" and least.level == "none":
        raise TransportError(f"transport 'mpi' needs a GPU-aware MPI: {least.awareness} (see COLLOPS_GPU_AWARE_MPI)")
    because = "ranks share GPUs" if shared else "NCCL has no binding here"
    if transport == "mpi" or (transport == "auto" and least.level != "none"):
        asked = "asked for" if transport == "mpi" else because
        return f"mpi-{least.level}", f"GPU-aware MPI at level {least.level!r} ({least.awareness}); {asked}"
    return "staged", f"pinned host memory; {'asked for' if transport == 'staged' else because}"
