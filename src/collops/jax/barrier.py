"""``barrier``: waits until all ranks have called it."""

from __future__ import annotations

from collops.jax.communicators import Comm, native_comm
from collops.jax.primitive import collective


def barrier(*, comm: Comm = None) -> None:
    """Start no later collective on any rank before all ranks have called this. Collective.

    Examples
    --------
    >>> import collops.jax
    >>> collops.jax.barrier()
    """
    barrier_p.bind(comm=native_comm(comm))


barrier_p = collective("barrier", lambda **_: [])
