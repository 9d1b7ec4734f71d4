"""collops: distributed arrays, linear operators and solvers over MPI, NCCL and NVSHMEM.

Names are imported when they are first used, so that ``import collops`` needs only NumPy and takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from collops import errors, profile
from collops.errors import CollopsError

if TYPE_CHECKING:
    from collops.comm import Communicator, ExchangePlan, from_mpi4py, world

__version__ = "0.1.0"

_ROOMS = {
    "collops.comm": ("Communicator", "ExchangePlan", "from_mpi4py", "world"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = ["CollopsError", "__version__", "errors", "profile", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'collops' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
