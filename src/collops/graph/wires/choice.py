"""The choice of a wire: by name, or by what was fastest when this communicator's ranks tried it.

The trial is made once for a communicator and an engine, when a forest without a chosen wire first sends something: a
ring of messages of a few sizes. All ranks agree on its outcome, and a wire that cannot be set up drops out. On devices
only wires that keep the host free are tried, where there are any.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
import weakref
from typing import TYPE_CHECKING

import numpy as np

from collops.errors import CommunicationError, InputError
from collops.graph.packing import Index, packing_for
from collops.graph.plan import Segment
from collops.graph.wires.wire import Motion, Routes, Wire

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["WIRES", "candidates", "measured", "possible_wires", "wire_for"]

_CLASSES = {
    "own": "own.OwnWire",
    "p2p": "p2p.PointToPointWire",
    "neighbor": "neighbor.NeighborWire",
    "shared": "shared.SharedWire",
    "nccl": "own.NcclWire",
    "staged": "staged.StagedWire",
    "symmetric": "symmetric.SymmetricWire",
}
WIRES = ("auto", *_CLASSES)
"""Names of the wires."""

# The first one costs the host least, which a trial of one kind of forest does not show.
_ON_STREAM = ("symmetric", "nccl")
_SIZES = {"host": (1 << 10, 1 << 15, 1 << 20), "device": (1 << 10, 1 << 15, 1 << 20, 1 << 24)}
_TRIALS = 9
_CALLS = 10
_CLEARLY = 0.9  # of the time of the wire before it in the list: a trial is too short for less
_TRIAL_TAG = 0

_wires: weakref.WeakKeyDictionary[Communicator, dict[str, Wire]] = weakref.WeakKeyDictionary()
_fastest: weakref.WeakKeyDictionary[Communicator, dict[Engine, dict[int, str]]] = weakref.WeakKeyDictionary()


def check_name(name: str) -> None:
    """Refuse the name of no wire.

    Raises
    ------
    InputError
        If there is no such wire.
    """
    if name not in WIRES:
        raise InputError(f"there is no wire {name!r}; choose {', '.join(WIRES)}")


def wire_for(comm: Communicator, name: str, engine: Engine, nbytes: int) -> Wire:
    """Return a wire of a communicator. Collective where it is used for the first time.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    name : str
        One of `WIRES`.
    engine : Engine
        Of the arrays.
    nbytes : int
        Size of the largest buffer of any rank, for the choice.

    Raises
    ------
    InputError
        If there is no such wire, or it carries no arrays of this engine.
    TransportError
        If the ranks cannot use it.
    """
    check_name(name)
    if name == "auto":
        if comm.control is None:
            name = "own"
        else:
            table = measured(comm, engine)
            name = table[min(table, key=lambda size: abs(np.log(size / max(nbytes, 1))))]
    elif name != "own" and name not in possible_wires(comm, engine):
        possible = ", ".join(possible_wires(comm, engine)) or "none"
        raise InputError(
            f"the wire {name!r} carries no {engine.name} arrays between these ranks; choose auto, own, {possible}"
        )
    known = _wires.setdefault(comm, {})
    if name not in known:
        module, _, kind = _CLASSES[name].partition(".")
        known[name] = getattr(importlib.import_module(f"collops.graph.wires.{module}"), kind)(comm)
    return known[name]


def candidates(comm: Communicator, engine: Engine) -> list[str]:
    """Return the wires that a default is chosen from."""
    possible = possible_wires(comm, engine)
    return [name for name in _ON_STREAM if name in possible] or possible


def measured(comm: Communicator, engine: Engine) -> dict[int, str]:
    """Return the fastest wire by message size in bytes. Collective at its first call."""
    tables = _fastest.setdefault(comm, {})
    if engine not in tables:
        names = candidates(comm, engine)
        tables[engine] = {size: _fastest_of(comm, engine, names, size) for size in _SIZES[engine.memory]}
    return tables[engine]


def possible_wires(comm: Communicator, engine: Engine) -> list[str]:
    """Return the wires that carry arrays of an engine between these ranks; the same on all of them."""
    if comm.control is None:
        return []
    if engine.memory == "host":
        return [*(["shared"] if comm.local_size == comm.size else []), "p2p", "neighbor"]
    from collops.comm.mpi import gpu_awareness
    from collops.graph.wires.mpi_parts import mpi

    names = ["nccl"] if comm.device_transport == "nccl" else []
    if gpu_awareness(mpi())[0] != "none":
        names += ["p2p", "neighbor"]
    one_host = comm.local_size == comm.size and importlib.util.find_spec("nvshmem") is not None
    # NVSHMEM is started once, for the first ranks that ask: only a whole world can be sure of it.
    whole = comm.size == mpi().COMM_WORLD.size
    return [*names, "staged", *(["symmetric"] if one_host and whole and comm.device_transport == "nccl" else [])]


def _fastest_of(comm: Communicator, engine: Engine, names: list[str], size: int) -> str:
    if len(names) == 1 or comm.size == 1:
        return names[0]
    times = comm.allreduce(np.array([_time_if_possible(comm, engine, name, size) for name in names]), "max")
    best = 0
    for number in range(1, len(names)):
        if times[number] < _CLEARLY * times[best]:
            best = number
    return names[best]


def _time_if_possible(comm: Communicator, engine: Engine, name: str, size: int) -> float:
    """Return the seconds of :func:`_time`; infinitely many on a wire that no rank can use."""
    try:
        return _time(comm, engine, name, size)
    except (CommunicationError, MemoryError) as error:
        if getattr(error, "on_all_ranks", isinstance(error, MemoryError)):
            return np.inf
        raise


def _time(comm: Communicator, engine: Engine, name: str, size: int) -> float:
    """Return the seconds that a message to the next rank takes."""
    dtype = np.dtype(np.float64)
    points = size // dtype.itemsize
    following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    routes = Routes((Segment(following, 0, points),), (Segment(before, 0, points),), points, points)
    channel = wire_for(comm, name, engine, size).channel(routes, (), dtype, engine, _TRIAL_TAG)
    everything, nothing = Index.run(points), Index.run(0)
    move = channel.mover(
        Motion(everything, everything, nothing, nothing, "replace", dtype, 1, True, packing_for(engine))
    )
    source, target = (engine.xp.zeros(points, dtype) for _ in range(2))
    spent: list[float] = []
    for _ in range(_TRIALS):
        comm.barrier()
        begin = time.perf_counter()
        for _ in range(_CALLS):
            move(source, target)
        engine.synchronize()
        spent.append(time.perf_counter() - begin)
    channel.free()
    return min(spent)
