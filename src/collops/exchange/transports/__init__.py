"""The table of transports of exchanges, which send packed values, in their fixed order of preference.

It has the type of the communicator's table (:mod:`collops.comm.transports`), but is a different concept: the transport
of a communicator runs all its calls and is chosen once, by the resources of all ranks. An exchange has one pattern and
one dtype; it uses memory that ranks share, or messages of the communicator's transport.
"""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import TYPE_CHECKING

from collops.comm.mpi import GPU_LEVELS, gpu_awareness, mpi_or_tcp
from collops.comm.transport import TransportRow, TransportTable
from collops.errors import CommunicationError, InputError
from collops.exchange.exchange import Exchange

if TYPE_CHECKING:
    import numpy as np

    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.exchange.pattern import Pattern

__all__ = ["TRANSPORTS", "check_transport", "exchange_of", "is_on_stream", "possible_transports"]


def _on_hosts(by: str, comm: Communicator, memory: str) -> str | None:
    if memory != "host":
        return "it supports arrays in host memory only"
    if (by == "tcp") != (comm.host_transport == "tcp"):
        return f"host arrays are sent by {comm.host_transport}"
    return None


def _shared(comm: Communicator, memory: str) -> str | None:
    several = len(set(comm.nodes)) > 1
    return _on_hosts("mpi", comm, memory) or ("the ranks are on several hosts" if several else None)


def _mixed(comm: Communicator, memory: str) -> str | None:
    levels = 1 < len(set(comm.nodes)) < comm.size
    return _on_hosts("mpi", comm, memory) or (None if levels else "it needs several hosts, one with several ranks")


def _on_devices(comm: Communicator, memory: str) -> str | None:
    return None if memory == "device" else "it supports arrays in device memory only"


def _nccl(comm: Communicator, memory: str) -> str | None:
    by = comm.device_transport
    return _on_devices(comm, memory) or (None if by == "nccl" else f"device arrays are sent by {by}")


def _symmetric(comm: Communicator, memory: str) -> str | None:
    if (obstacle := _nccl(comm, memory)) is not None:
        return obstacle
    # NVSHMEM is initialised once, for the first communicator that uses it: only the world can rely on it.
    if len(set(comm.nodes)) > 1 or comm.size < mpi_or_tcp().COMM_WORLD.size:
        return "it needs all ranks of the program, on one host"
    return None if importlib.util.find_spec("nvshmem") is not None else "nvshmem4py is not installed"


def _mpi(comm: Communicator, memory: str) -> str | None:
    if memory == "host":
        return _on_hosts("mpi", comm, memory)
    level, why = gpu_awareness(mpi_or_tcp())
    return f"MPI is not GPU-aware: {why}" if level == GPU_LEVELS[0] else None


_TABLE = TransportTable(
    __name__,
    {
        "shared": TransportRow("shared.SharedExchange", _shared),
        "mixed": TransportRow("mixed.MixedExchange", _mixed),
        "symmetric": TransportRow("symmetric.SymmetricExchange", _symmetric),
        "nccl": TransportRow("nccl.NcclExchange", _nccl),
        "mpi": TransportRow("mpi.MpiExchange", _mpi),
        "tcp": TransportRow("mpi.MpiExchange", partial(_on_hosts, "tcp")),
        "staged": TransportRow("mpi.StagedExchange", _on_devices),
    },
)
TRANSPORTS = _TABLE.names
"""Names of the transports. ``"auto"`` selects the first one that the ranks and their arrays support, in this order:
``shared`` memory of the ranks of one host; ``mixed``, with messages between several hosts; for devices ``symmetric``
memory (NVSHMEM), then ``nccl``; persistent messages of ``mpi``, or of ``tcp`` without MPI; for devices messages
``staged`` through pinned host memory."""


def check_transport(transport: str | type[Exchange]) -> None:
    """Raise an InputError unless `transport` is one of `TRANSPORTS` or a subclass of :class:`Exchange`."""
    if not (isinstance(transport, type) and issubclass(transport, Exchange)):
        _TABLE.check(transport, ", or a subclass of Exchange")


def possible_transports(comm: Communicator, engine: Engine) -> list[str]:
    """Return the transports for arrays of `engine` between these ranks, the preferred one first; equal on all ranks.

    Examples
    --------
    >>> from collops.backend import engine
    >>> from collops.comm import alone
    >>> from collops.exchange import possible_transports
    >>> possible_transports(alone(), engine("numpy"))  # without other ranks nothing is sent
    []
    """
    return [] if comm.control is None else _TABLE.possible(comm, engine.memory)


def is_on_stream(comm: Communicator, transport: str | type[Exchange]) -> bool:
    """Return whether moves of device arrays on a transport never block the host; see :attr:`Exchange.on_stream`."""
    if not isinstance(transport, str):
        return transport.on_stream
    if transport == "auto":
        possible = [] if comm.control is None else _TABLE.possible(comm, "device")
        return bool(possible) and _TABLE.load(possible[0]).on_stream
    return _TABLE.load(transport).on_stream  # a transport that these ranks lack raises its own error at construction


def exchange_of(
    comm: Communicator,
    transport: str | type[Exchange],
    pattern: Pattern,
    dtype: np.dtype,
    width: int,
    engine: Engine,
    tag: int,
) -> Exchange:
    """Return a pattern prepared for one kind of values on a transport; see :class:`Exchange`. Collective.

    Traced arrays are sent by the traced program, whatever the transport.

    Raises
    ------
    InputError
        If the transport does not support arrays of this engine, or ranks choose different transports.
    CommunicationError, MemoryError
        If the transport cannot be set up. ``"auto"`` then tries the next one, if all ranks raise the error.
    """
    arguments = comm, pattern, dtype, width, engine, tag
    if not pattern.most_points or not width:
        return Exchange(*arguments)
    if engine.traced:
        from collops.exchange.transports.traced import TracedExchange

        return TracedExchange(*arguments)
    if isinstance(transport, type):
        comm.agree("a transport", f"{transport.__module__}.{transport.__qualname__}")
        return transport(*arguments)
    comm.agree("a transport", transport)
    possible = possible_transports(comm, engine)
    if transport != "auto" and transport not in possible:
        raise InputError(
            f"the transport {transport!r} cannot send {engine.name} arrays between these ranks: "
            f"{_TABLE.rows[transport].obstacle(comm, engine.memory)}; choose {', '.join(['auto', *possible])}"
        )
    *preferred, last = possible if transport == "auto" else [transport]
    for candidate in preferred:
        try:
            return _TABLE.load(candidate)(*arguments)
        except (CommunicationError, MemoryError) as error:
            if not getattr(error, "on_all_ranks", isinstance(error, MemoryError)):
                raise
    return _TABLE.load(last)(*arguments)
