"""PyLops-MPI, the peer of most benchmarks, which does the same work on the same data in the same processes.

If it is not installed, the reason is recorded instead of its times.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from collops.array import StackedArray
from collops.errors import CollopsError

if TYPE_CHECKING:
    from collops_bench.registry import Context

__all__ = ["PEER", "Peer", "load_peer", "why_not_loaded"]

PEER = "PyLops-MPI"
"""Name of the peer in records."""


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
    if not context.options.peer:
        return "not asked for"
    reason = _obstacle()
    reasons = [reason for reason in context.comm.allgather_metadata(reason) if reason is not None]
    return reasons[0] if reasons else _peer(context.engine.name, context.comm.size)


@cache
def _peer(engine: str, ranks: int) -> Peer:
    """Return the only peer of this process, since freeing its NCCL communicator would wait for all ranks."""
    return Peer(engine, ranks)


def why_not_loaded(module: str) -> str | None:
    """Return why an installed peer cannot be imported (a missing dependency, or another MPI), or None."""
    try:
        importlib.import_module(module)
    except (ImportError, RuntimeError) as error:
        return f"{module.replace('_', '-')} does not load: {error}"
    return None


def _obstacle() -> str | None:
    if importlib.util.find_spec("pylops_mpi") is None:
        return "pylops-mpi is not installed: pip install './benchmarks[peers]'"
    if importlib.util.find_spec("mpi4py") is None:
        return f"pylops-mpi {importlib.metadata.version('pylops-mpi')} needs mpi4py, which is not installed"
    return why_not_loaded("pylops_mpi")
