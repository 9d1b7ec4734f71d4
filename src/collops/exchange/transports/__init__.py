"""Transports of exchanges: how packed buffers travel. One module for each, and their fixed order of preference."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import TYPE_CHECKING, Any

from collops.comm.mpi import gpu_awareness, mpi_or_tcp
from collops.errors import CommunicationError, InputError
from collops.exchange.exchange import Exchange

if TYPE_CHECKING:
    import numpy as np

    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.exchange.pattern import Pattern

__all__ = ["TRANSPORTS", "exchange_of", "possible_transports", "transport_name"]

_CLASSES = {
    "shared": "shared.SharedExchange",
    "mixed": "mixed.MixedExchange",
    "symmetric": "symmetric.SymmetricExchange",
    "nccl": "nccl.NcclExchange",
    "mpi": "mpi.MpiExchange",
    "tcp": "mpi.MpiExchange",
    "staged": "mpi.StagedExchange",
}
TRANSPORTS = ("auto", *_CLASSES)
"""Names of the transports. ``"auto"`` takes the first one, in this order, that the ranks and their arrays have:
``shared`` memory of the ranks of one host, ``mixed`` with messages where there are several hosts; for devices
``symmetric`` memory (NVSHMEM), then ``nccl``; persistent messages of ``mpi``, or of ``tcp`` between ranks without MPI;
for devices at last messages ``staged`` through pinned host memory."""

_REMOVED = {"own": "auto", "neighbor": "mpi"}


def transport_name(name: str | type[Exchange], wire: str | None = None) -> str | type[Exchange]:
    """Return the name of a transport in place of a deprecated one, or of the deprecated argument ``wire``.

    A subclass of :class:`Exchange` is returned as it is.

    Raises
    ------
    InputError
        If there is no such transport.
    """
    if wire is not None:
        warnings.warn("wire= is now called transport=", DeprecationWarning, stacklevel=3)
        name = wire
    if isinstance(name, type) and issubclass(name, Exchange):
        return name
    if name == "p2p":
        warnings.warn("the transport 'p2p' is now called 'mpi'", DeprecationWarning, stacklevel=3)
        name = "mpi"
    if name in _REMOVED:
        raise InputError(f"the transport {name!r} was removed: choose {_REMOVED[name]!r}")
    if name not in TRANSPORTS:
        raise InputError(f"there is no transport {name!r}; choose {', '.join(TRANSPORTS)}, or a subclass of Exchange")
    return name


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
    if comm.control is None:
        return []
    hosts = len(set(comm.nodes))
    if engine.memory == "host":
        if comm.host_transport == "tcp":
            return ["tcp"]
        return [*(["shared"] if hosts == 1 else ["mixed"] if hosts < comm.size else []), "mpi"]
    mpi, names = mpi_or_tcp(), []
    if comm.device_transport == "nccl":
        # NVSHMEM is started once, for the first ranks that ask: only the whole world can rely on it.
        if hosts == 1 and comm.size == mpi.COMM_WORLD.size and importlib.util.find_spec("nvshmem") is not None:
            names.append("symmetric")
        names.append("nccl")
    return [*names, *(["mpi"] if gpu_awareness(mpi)[0] != "none" else []), "staged"]


def exchange_of(
    comm: Communicator,
    transport: str | type[Exchange],
    pattern: Pattern,
    dtype: np.dtype,
    width: int,
    engine: Engine,
    tag: int,
) -> Exchange:
    """Return a pattern made ready for one kind of values, see :class:`Exchange`, on a transport. Collective.

    Traced arrays travel in the program that is being traced, on any transport.

    Raises
    ------
    InputError
        If the transport carries no arrays of this engine, or ranks name different transports.
    CommunicationError, MemoryError
        If the transport cannot be set up. For ``"auto"`` the next one is taken where that is so on all ranks.
    """
    arguments = comm, pattern, dtype, width, engine, tag
    if not pattern.most_points or not width:
        return Exchange(*arguments)
    if engine.traced:
        return _class("traced.TracedExchange")(*arguments)
    own = isinstance(transport, type)
    comm.agree("a transport", f"{transport.__module__}.{transport.__qualname__}" if own else transport)
    if own:
        return transport(*arguments)
    possible = possible_transports(comm, engine)
    if transport != "auto" and transport not in possible:
        raise InputError(
            f"the transport {transport!r} carries no {engine.name} arrays between these ranks; "
            f"choose {', '.join(['auto', *possible])}"
        )
    *preferred, last = possible if transport == "auto" else [transport]
    for each in preferred:
        try:
            return _class(_CLASSES[each])(*arguments)
        except (CommunicationError, MemoryError) as error:
            if not getattr(error, "on_all_ranks", isinstance(error, MemoryError)):
                raise
    return _class(_CLASSES[last])(*arguments)


def _class(name: str) -> Any:
    module, _, kind = name.partition(".")
    return getattr(importlib.import_module(f"collops.exchange.transports.{module}"), kind)
