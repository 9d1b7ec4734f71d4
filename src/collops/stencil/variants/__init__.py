"""The programming models, one file each; here is which there are, what they need, and how one is made."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collops.backend import Engine
from collops.comm import Communicator, from_mpi4py
from collops.errors import InputError, TransportError
from collops.stencil.problem import Problem
from collops.stencil.timeline import Timeline

if TYPE_CHECKING:
    from collops.stencil.variants.base import Variant

__all__ = ["MODELS", "Model", "make", "obstacle"]


@dataclass(frozen=True)
class Model:
    """A programming model.

    Parameters
    ----------
    name, summary : str
        What it is called, and what it does.
    home : str
        Module and class.
    engines : tuple of str
        Where its grids can live.
    wire : str, optional
        The transport that device arrays must go by.
    memory : bool
        Whether it needs memory that several ranks can address.

    Examples
    --------
    >>> from collops.stencil import MODELS
    >>> MODELS["mpi"].summary, MODELS["mpi"].engines
    ('halos by MPI, GPU-aware on GPUs', ('numpy', 'cupy'))
    """

    name: str
    summary: str
    home: str
    engines: tuple[str, ...]
    wire: str | None = None
    memory: bool = False


_BOTH, _HOST, _DEVICE = ("numpy", "cupy"), ("numpy",), ("cupy",)

MODELS = {
    model.name: model
    for model in (
        Model("single", "one rank alone", "single:Single", _BOTH),
        Model("staged", "halos through pinned host memory", "messages:Messages", _DEVICE, "staged"),
        Model("mpi", "halos by MPI, GPU-aware on GPUs", "messages:Messages", _BOTH, "mpi"),
        Model("mpi_overlap", "halos by MPI, while the inner points are swept", "overlap:Overlap", _BOTH, "mpi"),
        Model("nccl", "halos by NCCL, in stream order", "messages:Messages", _DEVICE, "nccl"),
        Model("nccl_overlap", "boundary first, NCCL beside the inner points", "overlap:Overlap", _DEVICE, "nccl"),
        Model("nccl_graphs", "nccl_overlap, replayed from CUDA graphs", "graphs:Graphs", _DEVICE, "nccl"),
        Model("peer", "kernels store into the neighbours' memory", "peer:Peer", _DEVICE, memory=True),
        Model("nvshmem", "puts with signals on streams", "one_sided:OneSided", _DEVICE, memory=True),
        Model("persistent", "the whole loop in one kernel", "persistent:Persistent", _DEVICE, memory=True),
        Model("blocked", "several sweeps between two passages through memory", "blocked:Blocked", _DEVICE),
        Model("shared", "puts with signals in a shared window of MPI", "one_sided:OneSided", _HOST, memory=True),
    )
}
"""All programming models, in the order of the course."""


def obstacle(name: str, comm: Communicator, engine: Engine) -> str | None:
    """Return why these ranks cannot run a programming model on `engine`, or ``None``. Collective.

    Raises
    ------
    InputError
        If there is no such model.

    Examples
    --------
    >>> import collops
    >>> from collops.backend import engine
    >>> from collops.stencil import obstacle
    >>> obstacle("nccl", collops.world(), engine("numpy"))
    'nccl is for cupy arrays'
    """
    model = _model(name)
    if engine.name not in model.engines:
        return f"{name} is for {' and '.join(model.engines)} arrays"
    if name == "single":
        return "single runs on one rank" if comm.size > 1 else None
    if comm.size == 1:
        return None
    if model.memory and comm.local_size != comm.size:
        return f"{name} needs all ranks on one node"
    if model.memory and engine.memory == "device" and importlib.util.find_spec("nvshmem") is None:
        return f"{name} needs nvshmem4py"
    try:
        _wired(model, comm, engine)
    except TransportError as error:
        return str(error)
    return None


def make(
    name: str,
    problem: Problem,
    comm: Communicator,
    engine: Engine,
    process_grid: Sequence[int] | None = None,
    timeline: Timeline | None = None,
) -> Variant:
    """Make a programming model ready to iterate. Collective.

    Parameters
    ----------
    name : str
        A key of `MODELS`.
    problem : Problem
        What is solved.
    comm : Communicator
        The ranks.
    engine : Engine
        Where the grids live.
    process_grid : (int, int), optional
        Blocks along rows and columns; by default whole rows.
    timeline : Timeline, optional
        Learns what happens when.

    Raises
    ------
    InputError
        If there is no such model, or these ranks cannot run it.

    Examples
    --------
    >>> import collops
    >>> from collops.backend import engine
    >>> from collops.stencil import Problem, make
    >>> variant = make("mpi", Problem(nx=16, ny=16, iterations=20), collops.world(), engine("numpy"))
    >>> variant.values.shape
    (14, 16)
    """
    reason = obstacle(name, comm, engine)
    if reason is not None:
        raise InputError(f"variant {name}: {reason}")
    model = MODELS[name]
    module, _, kind = model.home.partition(":")
    variant = getattr(importlib.import_module(f"{__name__}.{module}"), kind)
    return variant(problem, _wired(model, comm, engine), engine, process_grid, timeline)


def _model(name: str) -> Model:
    if name not in MODELS:
        raise InputError(f"there is no variant {name!r}: choose one of {', '.join(MODELS)}")
    return MODELS[name]


def _wired(model: Model, comm: Communicator, engine: Engine) -> Communicator:
    """Return a communicator of the same ranks whose device arrays go by the model's wire."""
    if model.wire in (None, comm.device_transport) or comm.size == 1 or engine.memory == "host":
        return comm
    return from_mpi4py(comm.control, model.wire)
