"""The transport of host arrays: MPI's buffered calls, never a pickle, every wait with a deadline.

The nonblocking form of each call is used so that every wait can have a deadline (:mod:`collops.comm.failure`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np

from collops.comm.agreement import name_ranks
from collops.comm.failure import Failures
from collops.comm.transport import Message, Pending, Transport
from collops.errors import UnsupportedTypeError

__all__ = ["MpiTransport", "Wire"]


class Wire:
    """How NumPy dtypes and reductions are named in MPI.

    Arrays that only move travel as unsigned integers of the same width. Half types, which MPI does not reduce,
    are reduced by functions of ours on 16-bit integers.
    """

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._moved = {
            1: mpi.BYTE,
            2: mpi.UINT16_T,
            4: mpi.UINT32_T,
            8: mpi.UINT64_T,
            16: mpi.C_DOUBLE_COMPLEX,
            32: mpi.C_LONG_DOUBLE_COMPLEX,
        }
        self._reduced: dict[tuple[Any, str], tuple[Any, Any]] = {}
        self._numbers = {
            # Called after their width, which depends on the machine; where that is float64's, the name below counts.
            np.dtype(np.longdouble).name: mpi.LONG_DOUBLE,
            np.dtype(np.clongdouble).name: mpi.C_LONG_DOUBLE_COMPLEX,
            "bool": mpi.C_BOOL,
            "int8": mpi.INT8_T,
            "int16": mpi.INT16_T,
            "int32": mpi.INT32_T,
            "int64": mpi.INT64_T,
            "uint8": mpi.UINT8_T,
            "uint16": mpi.UINT16_T,
            "uint32": mpi.UINT32_T,
            "uint64": mpi.UINT64_T,
            "float32": mpi.FLOAT,
            "float64": mpi.DOUBLE,
            "complex64": mpi.C_FLOAT_COMPLEX,
            "complex128": mpi.C_DOUBLE_COMPLEX,
        }

    def moved(self, array: Any) -> Any:
        """MPI datatype that carries one element of `array` unchanged."""
        try:
            return self._moved[array.dtype.itemsize]
        except KeyError:
            raise UnsupportedTypeError(f"arrays of dtype {array.dtype} cannot be sent") from None

    def reduced(self, dtype: Any, op: str) -> tuple[Any, Any]:
        """MPI datatype and operation that reduce `dtype` by `op` (an average is summed first)."""
        found = self._reduced.get((dtype, op))
        if found is None:
            found = self._reduced[dtype, op] = self._resolve(dtype, op)
        return found

    def _resolve(self, dtype: Any, op: str) -> tuple[Any, Any]:
        mpi = self._mpi
        if dtype.kind == "b":
            op = {"sum": "lor", "max": "lor", "prod": "land", "min": "land"}.get(op, op)
        if dtype.name in ("float16", "bfloat16"):
            return mpi.UINT16_T, _half_operation(np.dtype(dtype), "sum" if op == "avg" else op)
        if dtype.name not in self._numbers:
            raise UnsupportedTypeError(f"arrays of dtype {dtype} cannot be reduced by MPI")
        names = {"sum": mpi.SUM, "avg": mpi.SUM, "prod": mpi.PROD, "min": mpi.MIN, "max": mpi.MAX}
        names |= {"land": mpi.LAND, "lor": mpi.LOR, "lxor": mpi.LXOR}
        return self._numbers[dtype.name], names[op]


@cache  # for all communicators: mpi4py has room for 32 of these
def _half_operation(dtype: np.dtype[Any], op: str) -> Any:
    from mpi4py import MPI

    ufunc = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]

    def combine(incoming: Any, result: Any, _datatype: Any) -> None:
        left = np.frombuffer(incoming, dtype)
        right = np.frombuffer(result, dtype)
        right[...] = ufunc(left.astype(np.float32), right.astype(np.float32)).astype(dtype)

    return MPI.Op.Create(combine, commute=True)


class MpiTransport(Transport):
    """Buffered MPI on host arrays.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    comm : mpi4py.MPI.Comm
        Whose ranks are joined; two private duplicates of it are made, for collectives and for exchanges.
    failures : Failures
        Waits for the requests.
    """

    name = "mpi"

    def __init__(self, mpi: Any, comm: Any, failures: Failures) -> None:
        self._mpi = mpi
        self._origin = comm
        self._comm = comm.Dup()
        self._messages = comm.Dup()
        self._failures = failures
        self._wait = failures.wait
        self._wire = Wire(mpi)
        self._size = comm.size
        self._rank = comm.rank

    def renew(self) -> None:
        """Go on with another duplicate for collectives, whatever is under way on the one before. Collective."""
        comm, request = self._origin.Idup()
        self._failures.wait(request, "replacing the transports", range(self._size))
        self._comm = comm

    def allreduce(self, source: Any, target: Any, op: str) -> None:
        datatype, operation = self._wire.reduced(source.dtype, op)
        given = self._input(source, target, datatype)
        request = self._comm.Iallreduce(given, [self._buffer(target), datatype], operation)
        try:  # what most often is next to nothing need not be waited for
            done = request.Test()
        except self._mpi.Exception as error:
            self._failures.failed(error, "allreduce")
        if not done:
            self._wait(request, "allreduce")
        if op == "avg":
            _divide(target, self._size)

    def reduce(self, source: Any, target: Any, op: str, root: int) -> None:
        datatype, operation = self._wire.reduced(source.dtype, op)
        result = None if target is None else [self._buffer(target), datatype]
        given = [self._buffer(source), datatype] if target is None else self._input(source, target, datatype)
        self._wait(self._comm.Ireduce(given, result, operation, root), "reduce")
        if op == "avg" and target is not None:
            _divide(target, self._size)

    def bcast(self, source: Any, target: Any, root: int) -> None:
        if self._rank == root and source is not target:
            target[...] = source
        self._wait(self._comm.Ibcast([self._buffer(target), self._wire.moved(target)], root), "bcast")

    def allgather(self, source: Any, target: Any) -> None:
        datatype = self._wire.moved(target)
        self._wait(
            self._comm.Iallgather([self._buffer(source), datatype], [self._buffer(target), datatype]),
            "allgather",
        )

    def allgatherv(self, source: Any, target: Any, counts: Sequence[int]) -> None:
        datatype = self._wire.moved(target)
        self._wait(
            self._comm.Iallgatherv([self._buffer(source), datatype], _pieces(self._buffer(target), counts, datatype)),
            "allgatherv",
        )

    def gatherv(self, source: Any, target: Any, counts: Sequence[int], root: int) -> None:
        datatype = self._wire.moved(source)
        result = None if target is None else _pieces(self._buffer(target), counts, datatype)
        self._wait(self._comm.Igatherv([self._buffer(source), datatype], result, root), "gatherv")

    def scatterv(self, source: Any, target: Any, counts: Sequence[int], root: int) -> None:
        datatype = self._wire.moved(target)
        given = None if source is None else _pieces(self._buffer(source), counts, datatype)
        self._wait(self._comm.Iscatterv(given, [self._buffer(target), datatype], root), "scatterv")

    def reduce_scatter(self, source: Any, target: Any, op: str) -> None:
        datatype, operation = self._wire.reduced(source.dtype, op)
        self._wait(
            self._comm.Ireduce_scatter_block(
                [self._buffer(source), datatype], [self._buffer(target), datatype], operation
            ),
            "reduce_scatter",
        )
        if op == "avg":
            _divide(target, self._size)

    def alltoallv(self, source: Any, target: Any, send_counts: Sequence[int], receive_counts: Sequence[int]) -> None:
        datatype = self._wire.moved(source)
        self._wait(
            self._comm.Ialltoallv(
                _pieces(self._buffer(source), send_counts, datatype),
                _pieces(self._buffer(target), receive_counts, datatype),
            ),
            "alltoallv",
        )

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        requests = [self._messages.Irecv(self._described(array), source=peer, tag=tag) for peer, array in receives]
        requests += [self._messages.Isend(self._described(array), dest=peer, tag=tag) for peer, array in sends]
        return _Requests(requests, self._failures, [peer for peer, _ in receives], [peer for peer, _ in sends])

    def barrier(self) -> None:
        self._wait(self._comm.Ibarrier(), "barrier")

    def _buffer(self, array: Any) -> Any:
        """Show MPI the memory of `array`. NumPy exports no buffer of a bfloat16 array, whose kind is V."""
        return array.view(np.uint16) if array.dtype.kind == "V" else array

    def _input(self, source: Any, target: Any, datatype: Any) -> Any:
        return self._mpi.IN_PLACE if source is target else [self._buffer(source), datatype]

    def _described(self, array: Any) -> Any:
        return [self._buffer(array), self._wire.moved(array)]


class _Requests(Pending):
    __slots__ = ("_failures", "_requests", "_sources", "_targets")

    def __init__(self, requests: list[Any], failures: Failures, sources: list[int], targets: list[int]) -> None:
        self._requests = requests
        self._failures = failures
        self._sources = sources
        self._targets = targets

    def __str__(self) -> str:
        ends = [("from", self._sources), ("to", self._targets)]
        return "messages " + " and ".join(f"{way} {name_ranks(sorted({*of}))}" for way, of in ends if of)

    def wait(self) -> None:
        requests, self._requests = self._requests, []
        # Neighbours that need nothing more may end while others are late.
        self._failures.wait_all(requests, self, [*self._sources, *self._targets])


def _pieces(buffer: Any, counts: Sequence[int], datatype: Any) -> list[Any]:
    offsets = list(accumulate(counts, initial=0))[:-1]
    return [buffer, (list(counts), offsets), datatype]


def _divide(array: Any, size: int) -> None:
    """Turn a sum into an average in the array's own dtype (bfloat16 has no in-place division by an int)."""
    # NumPy divides complex numbers by way of a reciprocal, which rounds once more.
    for part in (array.real, array.imag) if array.dtype.kind == "c" else (array,):
        part[...] = (part / size).astype(part.dtype)
