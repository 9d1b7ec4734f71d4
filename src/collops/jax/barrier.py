"""``barrier``: a place in the program that no rank passes before all are there."""

from __future__ import annotations

from typing import Any

from collops.jax.primitive import collective
from collops.jax.wires import wire_of

__all__ = ["barrier"]


def barrier(*, comm: Any = None) -> None:
    """Let no later collective of any rank begin before every rank has come here. Collective.

    Parameters
    ----------
    comm : Communicator or mpi4py.MPI.Comm, optional
        By default the world.

    Examples
    --------
    >>> import collops.jax
    >>> collops.jax.barrier()
    """
    barrier_p.bind(wire=wire_of(comm))


barrier_p = collective("barrier", lambda **_: [], lambda _avals, **_: {})
