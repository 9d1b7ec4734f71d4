"""NCCL's calls from Python: NVIDIA's nccl4py where it is installed, else CuPy's binding (which is RCCL on AMD).

Both are reduced to the few calls that :class:`collops.comm.nccl.NcclTransport` makes, with raw addresses, because the
low-level calls cost the host a third of what the convenient ones do.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from collops.errors import TransportError

__all__ = ["Nccl4py", "NcclOfCupy", "available_binding", "load_binding"]

_UNIQUE_ID_BYTES = 128


class Nccl4py:
    """NVIDIA's binding, low-level module."""

    name = "nccl4py"

    def __init__(self) -> None:
        from nccl.bindings import nccl as bindings  # pyright: ignore[reportAttributeAccessIssue]

        self._bindings = bindings
        self.all_reduce = bindings.all_reduce
        self.reduce = bindings.reduce
        self.broadcast = bindings.broadcast
        self.all_gather = bindings.all_gather
        self.reduce_scatter = bindings.reduce_scatter
        self.send = bindings.send
        self.receive = bindings.recv
        self.group_start = bindings.group_start
        self.group_end = bindings.group_end
        self.abort = bindings.comm_abort
        self.destroy = bindings.comm_destroy
        self.error: type[Exception] = bindings.NCCLError
        self.async_error = bindings.comm_get_async_error

    def version(self) -> str:
        """Version of the NCCL library in use."""
        return _readable(self._bindings.get_version())

    def unique_id(self) -> bytes:
        """Make the name under which the ranks of a new communicator find each other."""
        return bytes(self._bindings.get_unique_id())

    def connect(self, size: int, rank: int, unique_id: bytes) -> Any:
        """Join a communicator. Collective."""
        return self._bindings.comm_init_rank_scalable(size, rank, 1, bytearray(unique_id), 0)


class NcclOfCupy:
    """CuPy's binding, with the calls in nccl4py's form."""

    name = "cupy"

    def __init__(self) -> None:
        from cupy.cuda import nccl

        self._nccl = nccl
        self.group_start = nccl.groupStart
        self.group_end = nccl.groupEnd
        self.error: type[Exception] = nccl.NcclError

    def version(self) -> str:
        """Version of the NCCL (or RCCL) library in use."""
        return _readable(self._nccl.get_version())

    def unique_id(self) -> bytes:
        """Make the name under which the ranks of a new communicator find each other."""
        return bytes(byte & 0xFF for byte in self._nccl.get_unique_id())

    def connect(self, size: int, rank: int, unique_id: bytes) -> Any:
        """Join a communicator. Collective."""
        signed = tuple(byte - 256 if byte > 127 else byte for byte in unique_id)
        return self._nccl.NcclCommunicator(size, signed, rank)

    def all_reduce(self, source: int, target: int, count: int, datatype: int, op: int, comm: Any, stream: int) -> None:
        comm.allReduce(source, target, count, datatype, op, stream)

    def reduce(
        self, source: int, target: int, count: int, datatype: int, op: int, root: int, comm: Any, stream: int
    ) -> None:
        comm.reduce(source, target, count, datatype, op, root, stream)

    def broadcast(self, source: int, target: int, count: int, datatype: int, root: int, comm: Any, stream: int) -> None:
        comm.broadcast(source, target, count, datatype, root, stream)

    def all_gather(self, source: int, target: int, count: int, datatype: int, comm: Any, stream: int) -> None:
        comm.allGather(source, target, count, datatype, stream)

    def reduce_scatter(
        self, source: int, target: int, count: int, datatype: int, op: int, comm: Any, stream: int
    ) -> None:
        comm.reduceScatter(source, target, count, datatype, op, stream)

    def send(self, source: int, count: int, datatype: int, peer: int, comm: Any, stream: int) -> None:
        comm.send(source, count, datatype, peer, stream)

    def receive(self, target: int, count: int, datatype: int, peer: int, comm: Any, stream: int) -> None:
        comm.recv(target, count, datatype, peer, stream)

    def abort(self, comm: Any) -> None:
        comm.abort()

    def async_error(self, comm: Any) -> int:
        """Return 0; raise if something went wrong on the device or in the network."""
        comm.check_async_error()
        return 0

    def destroy(self, comm: Any) -> None:
        comm.destroy()


def available_binding() -> str | None:
    """Name of the binding that :func:`load_binding` would load, without loading it."""
    if importlib.util.find_spec("nccl") is not None:
        return Nccl4py.name
    if importlib.util.find_spec("cupy_backends") is not None:
        return NcclOfCupy.name
    return None


def load_binding() -> Nccl4py | NcclOfCupy:
    """Load the binding of this machine.

    Raises
    ------
    TransportError
        If no binding is installed, or its NCCL library does not load.
    """
    name = available_binding()
    if name is None:
        raise TransportError("NCCL needs the package nccl4py or CuPy; install collops[cuda13]")
    try:
        binding = Nccl4py() if name == Nccl4py.name else NcclOfCupy()
        binding.version()
    except (ImportError, OSError, RuntimeError) as error:
        raise TransportError(f"the NCCL binding of {name} does not load: {error}") from error
    return binding


def _readable(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
