"""PyLops-MPI's mix-in class for operators that communicate, and its functions for messages, on native communicators.

A communicator may be from mpi4py or from ``initialize_nccl_comm``. The first call with an mpi4py communicator is
collective, as are all calls except sends and receives. The array determines the transport, not `engine`: NCCL sends
device arrays with or without an NCCL communicator. These messages do not match messages that a program sends by mpi4py
directly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from collops import Communicator
from collops.compat.pylops_mpi._native import MpiComm, communicator
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.extend.arrays import LocalArray
from collops.extend.communication import (
    DTYPES,
    OPERATIONS,
    collective_values,
    device_count,
    mpi4py_module,
    name_of_operation,
    raised_together,
)
from collops.extend.engines import engine as engine_named
from collops.extend.engines import engine_of

NcclCommunicatorType = Communicator
NcclOp: Any = IntEnum("NcclOp", {name.upper(): OPERATIONS[name].nccl for name in ("sum", "prod", "max", "min")})
NcclOp.__doc__ = "NCCL's numbers of reductions."
cupy_to_nccl_dtype = {name: known.nccl for name, known in DTYPES.items() if known.nccl is not None}


def _ranks(comm: Communicator | MpiComm) -> Communicator:
    """Return the native communicator of an mpi4py communicator; a native one is returned unchanged."""
    return comm if isinstance(comm, Communicator) else communicator(comm)


def _chosen(base_comm: MpiComm, base_comm_nccl: Communicator | None) -> Communicator | MpiComm:
    return base_comm if base_comm_nccl is None else base_comm_nccl


# pylops_mpi.utils._mpi and _common


def mpi_allreduce(base_comm, send_buf, recv_buf=None, engine="numpy", op=None) -> LocalArray:
    """Return the vector of the elements of `send_buf` reduced over the ranks, in `recv_buf` if that is given.

    `op` is one of mpi4py's operations, by default the sum. Raises an UnsupportedTypeError if it is not defined for the
    dtype, or not supported by :meth:`collops.comm.Communicator.allreduce`.
    """
    name = "sum" if op is None else name_of_operation(op) or repr(op)
    return _stored(_ranks(base_comm).allreduce(send_buf.reshape(-1), name), recv_buf)


def mpi_allgather(
    base_comm: Communicator | MpiComm, send_buf: LocalArray, recv_buf: LocalArray = None, engine: str | None = "numpy"
) -> list[LocalArray]:
    """Return the arrays of all ranks, whose shapes may differ; they are contiguous in `recv_buf` if it is not None.

    Raises UnsupportedTypeError on every rank if the dtypes differ.
    """
    comm = _ranks(base_comm)
    shapes, dtypes = zip(*comm.allgather_metadata([list(send_buf.shape), send_buf.dtype.name]), strict=True)
    if len(set(dtypes)) > 1:
        with raised_together():
            raise UnsupportedTypeError(f"the arrays of all ranks must have one dtype, not {', '.join(dtypes)}")
    return _gathered(comm, send_buf, [tuple(shape) for shape in shapes], recv_buf)


def _gathered(
    comm: Communicator, array: LocalArray, shapes: Sequence[tuple[int, ...]], recv_buf: LocalArray = None
) -> list[LocalArray]:
    prepared, gathered, starts, counts = _prepare_allgather_inputs_mpi(array, shapes, engine_of(array).name)
    comm.allgatherv(prepared.reshape(-1), counts, out=gathered)
    return _unroll_allgather_recv(_stored(gathered, recv_buf), prepared.shape, shapes, starts)


def _stored(result: LocalArray, recv_buf: LocalArray) -> LocalArray:
    """Return a vector, copied to `recv_buf` if it is not None."""
    if recv_buf is not None:
        recv_buf[...] = result.reshape(recv_buf.shape)
    return result


def mpi_bcast(
    base_comm: Communicator | MpiComm, send_buf: LocalArray, root: int = 0, engine: str | None = "numpy"
) -> LocalArray:
    """Replace the elements of `send_buf` by the elements on `root`, and return it."""
    return _ranks(base_comm).bcast(send_buf, root, out=send_buf)


def mpi_send(base_comm, send_buf, dest, count=None, tag=0, engine="numpy") -> None:
    """Send the first `count` elements of `send_buf`, by default all, to `dest`, which may be ``MPI.PROC_NULL``."""
    _exchange(base_comm, send_buf.reshape(-1)[:count], dest, tag, None, 0, 0)


def mpi_recv(base_comm, recv_buf=None, source=0, count=None, tag=0, engine="numpy") -> LocalArray:
    """Receive the first `count` elements of `recv_buf`, by default all, from `source`; return `recv_buf`.

    Without `recv_buf`, receive `count` integers of 32 bits. `source` may be ``MPI.PROC_NULL``, but neither
    ``MPI.ANY_SOURCE`` nor `tag` ``MPI.ANY_TAG``.
    """
    if recv_buf is None:
        if count is None:
            raise InputError("a receive needs recv_buf, or count for integers of 32 bits")
        recv_buf = engine_named(engine).xp.zeros(count, "int32")
    _exchange(base_comm, None, 0, 0, _flat(recv_buf)[:count], source, tag)
    return recv_buf


def mpi_sendrecv(base_comm, sendbuf, recvbuf, dest=0, sendtag=0, source=0, recvtag=0, engine="numpy") -> LocalArray:
    """Send `sendbuf` to `dest` while receiving `recvbuf` from `source`; return `recvbuf`."""
    if recvbuf is None:
        raise InputError("mpi_sendrecv needs recvbuf")
    _exchange(base_comm, sendbuf.reshape(-1), dest, sendtag, _flat(recvbuf), source, recvtag)
    return recvbuf


def _flat(buffer: LocalArray) -> LocalArray:
    """Return a buffer that receives as a vector on the same memory."""
    if not buffer.flags.c_contiguous:
        raise LayoutError("a buffer that receives a message must be contiguous")
    return buffer.reshape(-1)


def _exchange(
    base_comm: Communicator | MpiComm,
    sent: LocalArray,
    dest: int,
    sendtag: int,
    received: LocalArray,
    source: int,
    recvtag: int,
) -> None:
    """Send, receive, or both at once; ``None`` is not sent or received."""
    comm, nobody = _ranks(base_comm), mpi4py_module().PROC_NULL
    with comm.group():
        if sent is not None and dest != nobody:
            comm.send(sent, dest, sendtag)
        if received is not None and source != nobody:
            comm.recv(received, source, recvtag)


def _prepare_allgather_inputs_mpi(
    send_buf: LocalArray, send_buf_shapes: Sequence[tuple[int, ...]], engine: str | None
) -> tuple[LocalArray, LocalArray, list[int] | None, list[int]]:
    """Return the buffers and counts to gather arrays of these shapes.

    These are the contiguous `send_buf`, a vector of zeros for all elements, the offset of each rank's elements in it
    (``None`` if the shapes are equal), and the counts.
    """
    xp = engine_named(engine).xp
    counts = [math.prod(shape) for shape in send_buf_shapes]
    starts = None if len(set(send_buf_shapes)) == 1 else [sum(counts[:rank]) for rank in range(len(counts))]
    return xp.ascontiguousarray(send_buf), xp.zeros(sum(counts), send_buf.dtype), starts, counts


def _unroll_allgather_recv(
    recv_buf: LocalArray,
    buffer_chunk_shape: Sequence[int],
    send_buf_shapes: Sequence[tuple[int, ...]],
    displs: Sequence[int] | None = None,
) -> list[LocalArray]:
    """Return the arrays of all ranks, as views of the vector that gathered them.

    They begin at `displs`. Without these, each is padded to `buffer_chunk_shape`.
    """
    if displs is not None:
        starts = zip(displs, send_buf_shapes, strict=True)
        return [recv_buf[start : start + math.prod(shape)].reshape(shape) for start, shape in starts]
    shape = len(send_buf_shapes), *buffer_chunk_shape
    padded = recv_buf[: math.prod(shape)].reshape(shape)
    return [chunk[tuple(map(slice, unpadded))] for chunk, unpadded in zip(padded, send_buf_shapes, strict=True)]


# pylops_mpi.utils._nccl


def nccl_allgather(nccl_comm: Communicator, send_buf: LocalArray, recv_buf: LocalArray = None) -> LocalArray:
    """Return the vector of the elements of all ranks, which pass equal numbers; `recv_buf` if it is not None."""
    gathered = _ranks(nccl_comm).allgather(_on_device(send_buf).reshape(-1)).reshape(-1)
    _stored(gathered, recv_buf)
    return gathered if recv_buf is None else recv_buf


def nccl_allreduce(
    nccl_comm: Communicator, send_buf: LocalArray, recv_buf: LocalArray = None, op: object = None
) -> LocalArray:
    """Return the vector of the elements reduced over the ranks, in `recv_buf` if it is not None."""
    reduced = mpi_allreduce(nccl_comm, _on_device(send_buf), recv_buf, op=op)
    return reduced if recv_buf is None else recv_buf


def nccl_bcast(nccl_comm: Communicator, send_buf: LocalArray, root: int = 0) -> None:
    """Replace the elements of `send_buf` by the elements on `root`."""
    mpi_bcast(nccl_comm, _on_device(send_buf), root)


def nccl_asarray(
    nccl_comm: Communicator, local_array: LocalArray, local_shapes: Sequence[tuple[int, ...]], axis: int
) -> LocalArray:
    """Return the arrays of all ranks, with these shapes, joined along `axis`."""
    parts = _gathered(_ranks(nccl_comm), local_array, [tuple(shape) for shape in local_shapes])
    return engine_of(local_array).xp.concatenate(parts, axis=axis)


def nccl_send(nccl_comm: Communicator, send_buf: LocalArray, dest: int, count: int | None) -> None:
    """Send the first `count` elements of `send_buf` to `dest`."""
    mpi_send(nccl_comm, send_buf, dest, count)


def nccl_recv(nccl_comm: Communicator, recv_buf: LocalArray, source: int, count: int | None = None) -> None:
    """Receive the first `count` elements of `recv_buf`, by default all, from `source`."""
    mpi_recv(nccl_comm, recv_buf, source, count)


def nccl_sendrecv(nccl_comm: Communicator, sendbuf: LocalArray, dest: int, recvbuf: LocalArray, source: int) -> None:
    """Send `sendbuf` to `dest` while receiving `recvbuf` from `source`."""
    mpi_sendrecv(nccl_comm, sendbuf, recvbuf, dest, source=source)


def mpi_op_to_nccl(mpi_op: object) -> IntEnum:
    """Return NCCL's number of one of mpi4py's operations. Raises an InputError if NCCL has no such reduction."""
    name = str(name_of_operation(mpi_op)).upper()
    if name not in NcclOp.__members__:
        raise InputError(f"NCCL has no reduction {mpi_op!r}; choose one of {', '.join(NcclOp.__members__)}")
    return NcclOp[name]


def _nccl_buf_size(buf: LocalArray, count: int | None = None) -> int:
    """Return the count of NCCL's datatype in `count` elements of `buf`, by default all."""
    return (count or buf.size) * DTYPES[buf.dtype.name].width


def _nccl_sync() -> None:
    """Wait until the current device has finished; no effect without a device."""
    if device_count():
        engine_named("cupy").xp.cuda.runtime.deviceSynchronize()


def _prepare_allgather_inputs_nccl(
    send_buf: LocalArray, send_buf_shapes: Sequence[tuple[int, ...]], engine: str | None
) -> tuple[LocalArray, LocalArray]:
    """Return `send_buf` with zeros up to the largest extent of each axis, and a vector of zeros for all ranks."""
    xp = engine_named(engine).xp
    padded = xp.zeros([max(extents) for extents in zip(*send_buf_shapes, strict=True)], send_buf.dtype)
    padded[tuple(map(slice, send_buf.shape))] = send_buf
    return padded, xp.zeros(len(send_buf_shapes) * padded.size, send_buf.dtype)


def _to_json(value: object) -> Any:
    """Return a number, string, ``None``, list or tuple as values that JSON can represent, see :func:`_from_json`."""
    if isinstance(value, np.number | np.bool_) and not isinstance(value.item(), np.generic):
        return {"dtype": value.dtype.str, "value": _to_json(value.item())}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_to_json(item) for item in value]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if value is None or isinstance(value, int | float | str):
        return value
    raise UnsupportedTypeError(
        f"a tuple or list that is gathered contains numbers, strings and None, not {type(value).__name__}; "
        "gather arrays by themselves"
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "dtype" in value:
        return np.dtype(value["dtype"]).type(_from_json(value["value"]))
    return complex(*value["complex"]) if "complex" in value else tuple(map(_from_json, value["tuple"]))


def _on_device(values: LocalArray) -> LocalArray:
    return engine_named("cupy").xp.asarray(values)


# pylops_mpi.Distributed


class DistributedMixIn:
    """Messages for arrays and operators, and for operators that users derive from this class.

    Each method takes an mpi4py communicator, and a communicator of ``initialize_nccl_comm`` or ``None``. With ``None``
    it returns the result of the function of ``utils._mpi``, otherwise of ``utils._nccl``.
    """

    def _allreduce(self, base_comm, base_comm_nccl, send_buf, recv_buf=None, op=None, engine="numpy") -> LocalArray:
        """Reduce over all ranks, see :func:`mpi_allreduce`."""
        if base_comm_nccl is not None:
            return nccl_allreduce(base_comm_nccl, send_buf, recv_buf, op)
        return mpi_allreduce(base_comm, send_buf, recv_buf, engine, op)

    def _allreduce_subcomm(
        self, sub_comm, base_comm_nccl, send_buf, recv_buf=None, op=None, engine="numpy"
    ) -> LocalArray:
        """Reduce over the ranks of `sub_comm`, of either kind."""
        return self._allreduce(sub_comm, None if base_comm_nccl is None else sub_comm, send_buf, recv_buf, op, engine)

    def _allgather(self, base_comm, base_comm_nccl, send_buf, recv_buf=None, engine="numpy") -> Any:
        """Return the list of all ranks' arrays, see :func:`mpi_allgather`, or of their integers, tuples or lists.

        Tuples and lists, also nested, contain numbers, strings and ``None``; otherwise all ranks raise an
        UnsupportedTypeError. With an NCCL communicator, integers, tuples and lists of them give one device vector.
        """
        if isinstance(send_buf, tuple | list | int):
            if base_comm_nccl is not None:
                return nccl_allgather(base_comm_nccl, send_buf, recv_buf)
            return [_from_json(value) for value in collective_values(_ranks(base_comm), lambda: _to_json(send_buf))]
        return mpi_allgather(_chosen(base_comm, base_comm_nccl), send_buf, recv_buf, engine)

    def _allgather_subcomm(self, sub_comm, base_comm_nccl, send_buf, recv_buf=None, engine="numpy") -> Any:
        """Return the list of the arrays of the ranks of `sub_comm`, of either kind."""
        return self._allgather(sub_comm, None if base_comm_nccl is None else sub_comm, send_buf, recv_buf, engine)

    def _bcast(
        self,
        base_comm: Communicator | MpiComm,
        base_comm_nccl: Communicator | None,
        send_buf: LocalArray,
        root: int = 0,
        engine: str = "numpy",
    ) -> LocalArray:
        """Replace the elements of `send_buf` by the elements on `root`, and return it."""
        return mpi_bcast(_chosen(base_comm, base_comm_nccl), send_buf, root, engine)

    def _send(self, base_comm, base_comm_nccl, send_buf, dest, count=None, tag=0, engine="numpy") -> None:
        """Send to one rank, see :func:`mpi_send`."""
        mpi_send(_chosen(base_comm, base_comm_nccl), send_buf, dest, count, tag, engine)

    def _recv(
        self, base_comm, base_comm_nccl, recv_buf=None, source=0, count=None, tag=0, engine="numpy"
    ) -> LocalArray:
        """Receive from one rank, see :func:`mpi_recv`; with an NCCL communicator `recv_buf` is required."""
        if base_comm_nccl is None:
            return mpi_recv(base_comm, recv_buf, source, count, tag, engine)
        if recv_buf is None:
            raise InputError("_recv needs recv_buf with an NCCL communicator")
        return mpi_recv(base_comm_nccl, recv_buf, source, count, tag)

    def _sendrecv(
        self, base_comm, base_comm_nccl, sendbuf, recvbuf, dest=0, sendtag=0, source=0, recvtag=0, engine="numpy"
    ) -> LocalArray:
        """Send to one rank while receiving from one, see :func:`mpi_sendrecv`."""
        comm = _chosen(base_comm, base_comm_nccl)
        return mpi_sendrecv(comm, sendbuf, recvbuf, dest, sendtag, source, recvtag, engine)
