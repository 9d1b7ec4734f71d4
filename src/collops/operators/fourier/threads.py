"""How many threads the transforms of one rank may use on the host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from collops.comm.cores import available_cores

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["threads_of_rank"]

_LIMIT = "OMP_NUM_THREADS"


def threads_of_rank(comm: Communicator) -> int:
    """Return OMP_NUM_THREADS where that is set, as launchers do, else this rank's share of the cores. No messages."""
    limit = os.environ.get(_LIMIT, "")
    if limit.isdigit() and int(limit) > 0:
        return int(limit)
    return max(1, len(available_cores()) // comm.local_size)
