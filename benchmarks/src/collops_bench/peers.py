"""PyLops-MPI, the peer of most benchmarks, which does the same work on the same data in the same processes.

Of a peer that cannot be measured, the reason is recorded instead of its times.
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from collops.array import StackedArray
from collops.errors import CollopsError

if TYPE_CHECKING:
    from collops_bench.registry import Context

__all__ = [
    "BY_MPI",
    "PEER",
    "Peer",
    "load_jax",
    "load_peer",
    "why_missing",
    "why_no_mpi4jax",
    "why_no_package",
    "why_no_petsc",
    "why_no_pylops_mpi",
    "why_not_loaded",
]

PEER = "PyLops-MPI"
"""Name of the peer in records."""
BY_MPI = f"{PEER}, MPI"
"""Its name there where device arrays travel by MPI although there is NCCL."""


class Peer:
    """PyLops-MPI on all ranks, with NCCL for the engine ``"cupy"``."""

    def __init__(self, engine: str, ranks: int) -> None:
        import pylops_mpi

        self.module: Any = pylops_mpi
        self.engine = engine
        self.ranks = ranks
        self._nccl: Any = None
        if engine == "cupy":
            from pylops_mpi.utils._nccl import initialize_nccl_comm

            self._nccl = initialize_nccl_comm()

    def split(self, local: Any, sizes: Sequence[int]) -> Any:
        """Return a distributed vector with the part `local` of this rank, not copied, and parts of `sizes`."""
        return self.module.DistributedArray(
            (sum(sizes),),
            base_comm_nccl=self._nccl,
            partition=self.module.Partition.SCATTER,
            local_array=local,
            local_shapes=[(size,) for size in sizes],
            engine=self.engine,
        )

    def replicated(self, local: Any) -> Any:
        """Return a replicated vector; by default the peer broadcasts it in every operation."""
        return self.module.DistributedArray(
            local.shape,
            base_comm_nccl=self._nccl,
            partition=self.module.Partition.BROADCAST,
            local_array=local,
            engine=self.engine,
        )

    def like(self, array: Any, replicated: bool) -> Any:
        """Return an array of collops as one of the peer: ravelled, with the same local values."""
        if isinstance(array, StackedArray):
            return self.module.StackedDistributedArray([self.like(part, replicated) for part in array.arrays])
        local = array.local_array.reshape(-1)
        if replicated:
            return self.replicated(local)
        return self.split(local, [array.layout.local_size(rank) for rank in range(self.ranks)])

    def ways(self) -> dict[str, Peer]:
        """Return the peer by the name of each way that its messages can travel: as it is, on GPUs also by MPI."""
        if self._nccl is None:
            return {PEER: self}
        by_mpi = copy.copy(self)
        by_mpi._nccl = None
        return {PEER: self, BY_MPI: by_mpi}

    def allreduce(self, local: Any) -> Any:
        """Return the sum over all ranks, as operators of the peer make it."""
        from mpi4py import MPI

        mixin = self.module.Distributed.DistributedMixIn()
        return mixin._allreduce(MPI.COMM_WORLD, self._nccl, local, op=MPI.SUM, engine=self.engine)

    def vstack(self, operators: Sequence[Any]) -> Any:
        """Stack every rank's operators vertically."""
        return self.module.MPIVStack(ops=list(operators))

    def block_diag(self, operators: Sequence[Any]) -> Any:
        """Put every rank's operators on a diagonal."""
        return self.module.MPIBlockDiag(ops=list(operators))

    def cgls(self, operator: Any, data: Any, start: Any, iterations: int) -> Any:
        """Run exactly `iterations` iterations of CGLS, and return this rank's part of the solution.

        Raises
        ------
        CollopsError
            If it stopped early: its time would not be comparable.
        """
        solution, _, done, *_ = self.module.cgls(operator, data, start, niter=iterations, tol=0.0)
        if done != iterations:
            raise CollopsError(f"{PEER} stopped after {done} of {iterations} iterations: its time cannot be compared")
        return solution.local_array


def load_peer(context: Context) -> Peer | str:
    """Return the peer, or the reason why there is none. Collective."""
    reason = why_no_pylops_mpi(context)
    return _peer(context.engine.name, context.comm.size) if reason is None else reason


def why_missing(context: Context, obstacle: Callable[[], str | None]) -> str | None:
    """Return why a peer is not measured: the first rank's reason of those that `obstacle` returns. Collective."""
    if not context.options.peer:
        return "not asked for"
    reasons = context.comm.allgather_metadata(obstacle())
    return next((reason for reason in reasons if reason is not None), None)


def why_no_package(
    context: Context, module: str, *, package: str | None = None, memory: str | None = None, one_process: bool = False
) -> str | None:
    """Return why a package is not measured, or None. Collective.

    Parameters
    ----------
    context : Context
        The ranks and the engine of this run.
    module : str
        Name of its module.
    package : str, optional
        Its name at PyPI; by default that of the module, with hyphens.
    memory : {"host", "device"}, optional
        The only memory whose arrays the package is measured with.
    one_process : bool
        Whether it does its work in a single process.
    """
    package = package or module.replace("_", "-")

    def obstacle() -> str | None:
        if memory not in (None, context.engine.memory):
            return "measured on hosts only" if memory == "host" else "measured on GPUs only"
        if one_process and context.comm.size > 1:
            return "it has one process"
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            return f"{package} is not installed: pip install {package}"
        return why_not_loaded(module)

    return why_missing(context, obstacle)


def why_no_petsc(context: Context) -> str | None:
    """Return why PETSc is not measured, or None. Collective."""
    return why_no_package(context, "petsc4py", memory="host")


def why_no_pylops_mpi(context: Context) -> str | None:
    """Return why PyLops-MPI is not measured, or None. Collective."""

    def obstacle() -> str | None:
        if importlib.util.find_spec("pylops_mpi") is None:
            return "pylops-mpi is not installed: pip install './benchmarks[peers]'"
        if importlib.util.find_spec("mpi4py") is None:
            return f"pylops-mpi {importlib.metadata.version('pylops-mpi')} needs mpi4py, which is not installed"
        return why_not_loaded("pylops_mpi")

    return why_missing(context, obstacle)


def why_no_mpi4jax(context: Context) -> str | None:
    """Return why mpi4jax, built against the MPI of this program, is not measured, or None. Collective."""
    return why_no_package(context, "mpi4jax")


def load_jax() -> Any:
    """Return the module ``jax``, which by default would take three quarters of the GPU's memory at its first use."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    return jax


@cache
def _peer(engine: str, ranks: int) -> Peer:
    """Return the only peer of this process, since freeing its NCCL communicator would wait for all ranks."""
    return Peer(engine, ranks)


def why_not_loaded(module: str) -> str | None:
    """Return why a peer cannot be imported (it or a dependency is missing, another MPI or NumPy), or None."""
    try:
        importlib.import_module(module)
    except (AttributeError, ImportError, RuntimeError) as error:
        return f"{module.replace('_', '-')} does not load: {error}"
    return None
