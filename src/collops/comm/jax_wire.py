"""The wire of arrays of JAX: the primitives of :mod:`collops.jax`, which a program that is traced calls when it runs.

What all ranks get is one value for derivatives as well: its cotangent is the same on all of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from collops.comm.transport import Message, Pending, Transport
from collops.errors import UnsupportedTypeError

__all__ = ["JaxTransport"]


class JaxTransport(Transport):
    """Moves what variables of JAX hold.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    """

    name = "jax"

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        # By name: the room of the primitives is above this one, and needs JAX.
        self._calls = importlib.import_module("collops.jax")

    def allreduce(self, source: Any, target: Any, op: str) -> None:
        target[...] = self._calls.allreduce(source.value, op, comm=self._comm, cotangents="replicated")

    def reduce(self, source: Any, target: Any, op: str, root: int) -> None:
        result = self._calls.reduce(source.value, op, root, comm=self._comm)
        if target is not None:
            target[...] = result

    def bcast(self, source: Any, target: Any, root: int) -> None:
        target[...] = self._calls.bcast(source.value, root, comm=self._comm, cotangents="replicated")

    def allgather(self, source: Any, target: Any) -> None:
        result = self._calls.allgather(source.value, comm=self._comm, cotangents="replicated")
        target[...] = result.reshape(target.shape)

    def allgatherv(self, source: Any, target: Any, counts: Sequence[int]) -> None:
        values = source.value.reshape(-1)
        result = self._calls.allgatherv(values, tuple(counts), comm=self._comm, cotangents="replicated")
        target[...] = result.reshape(target.shape)

    def gatherv(self, source: Any, target: Any, counts: Sequence[int], root: int) -> None:
        here = self._comm.rank == root
        result = self._alltoallv(
            source,
            [source.size if r == root else 0 for r in range(self._comm.size)],
            counts if here else [0] * len(counts),
        )
        if target is not None:
            target[...] = result.reshape(target.shape)

    def scatterv(self, source: Any, target: Any, counts: Sequence[int], root: int) -> None:
        raise UnsupportedTypeError(
            "scatter of arrays of the engine jax: make them with collops.from_global, or use collops.jax.scatter"
        )

    def reduce_scatter(self, source: Any, target: Any, op: str) -> None:
        target[...] = self._calls.reduce_scatter(source.value, op, comm=self._comm).reshape(target.shape)

    def alltoallv(self, source: Any, target: Any, send_counts: Sequence[int], receive_counts: Sequence[int]) -> None:
        target[...] = self._alltoallv(source, send_counts, receive_counts).reshape(target.shape)

    def _alltoallv(self, source: Any, leaving: Sequence[int], arriving: Sequence[int]) -> Any:
        return self._calls.alltoallv(source.value.reshape(-1), tuple(leaving), tuple(arriving), comm=self._comm)

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        arrived = self._calls.neighbor_exchange(
            [array.value for _, array in sends],
            [array.value for _, array in receives],
            [peer for peer, _ in sends],
            [peer for peer, _ in receives],
            comm=self._comm,
        )
        for (_, array), value in zip(receives, arrived, strict=True):
            array[...] = value
        return Pending()

    def barrier(self) -> None:
        self._calls.barrier(comm=self._comm)
