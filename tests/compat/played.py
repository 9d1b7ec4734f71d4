"""PyLops-MPI's module of NCCL on the simulated device: CuPy's names for what `tests.comm.device` plays."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import numpy as np
import pytest

from collops import backend
from tests.comm import device

_NUMBERS = {
    **{"SUM": 0, "PROD": 1, "MAX": 2, "MIN": 3, "INT8": 0, "UINT8": 1, "INT32": 2, "UINT32": 3},
    **{"INT64": 4, "UINT64": 5, "FLOAT32": 7, "FLOAT64": 8},
}


_made: list[device.Nccl] = []


class NcclCommunicator:
    """Plays CuPy's class of this name over an mpi4py communicator."""

    def __init__(self, control: Any) -> None:
        self._control = control
        self._played = device.Nccl(control)
        _made.append(self._played)

    def size(self) -> int:
        return self._control.size

    def allReduce(self, source: int, target: int, count: int, kind: int, op: int, stream: int) -> None:
        self._played.all_reduce(source, target, count, kind, op, None, stream)

    def allGather(self, source: int, target: int, count: int, kind: int, stream: int) -> None:
        self._played.all_gather(source, target, count, kind, None, stream)

    def bcast(self, address: int, count: int, kind: int, root: int, stream: int) -> None:
        self._played.broadcast(address, address, count, kind, root, None, stream)

    def send(self, address: int, count: int, kind: int, peer: int, stream: int) -> None:
        self._played.send(address, count, kind, peer, None, stream)

    def recv(self, address: int, count: int, kind: int, peer: int, stream: int) -> None:
        self._played.receive(address, count, kind, peer, None, stream)


@contextlib.contextmanager
def peers_nccl() -> Iterator[Any]:
    """Have CuPy and its NCCL played; give PyLops-MPI's ``utils._nccl``, which its mix-in class uses then."""
    import pylops_mpi.Distributed as mix_in
    from pylops_mpi.utils import deps

    with device.simulated() as cupy, pytest.MonkeyPatch.context() as patch:
        nccl: Any = types.ModuleType("cupy.cuda.nccl")
        vars(nccl).update({f"NCCL_{name}": number for name, number in _NUMBERS.items()})
        nccl.NcclCommunicator = NcclCommunicator
        nccl.groupStart = lambda: [each.group_start() for each in _made]
        nccl.groupEnd = lambda: [each.group_end() for each in _made]
        played: Any = cupy
        played.__spec__ = ModuleSpec("cupy", None)
        played.cuda.nccl = nccl
        played.cuda.runtime = types.SimpleNamespace(getDevice=lambda: 0, getDeviceCount=lambda: 0)
        played.cuda.Stream.null = played.cuda.Stream()
        played.pad = lambda *args, **keywords: np.pad(*args, **keywords).view(device.Array)
        played.concatenate = lambda *args, **keywords: np.concatenate(*args, **keywords).view(device.Array)
        patch.setitem(sys.modules, "cupy.cuda", played.cuda)
        patch.setitem(sys.modules, "cupy.cuda.nccl", nccl)
        patch.setitem(backend._engines, "cupy", backend._by_type[device.Array])
        patch.delitem(sys.modules, "pylops_mpi.utils._nccl", raising=False)
        module: Any = importlib.import_module("pylops_mpi.utils._nccl")
        patch.setattr(module, "get_module", {"cupy": played, "numpy": np}.__getitem__)
        patch.setattr(deps, "nccl_enabled", True)
        for name in module.__all__:
            patch.setattr(mix_in, name, getattr(module, name), raising=False)
        try:
            yield module
        finally:
            del sys.modules[module.__name__]
