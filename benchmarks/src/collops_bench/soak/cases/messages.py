"""Cases of messages: collectives, one-sided memory, and split communicators."""

from __future__ import annotations

import numpy as np

from collops.errors import TransportError
from collops_bench.soak.draw import Draw

__all__ = ["collectives", "split", "symmetric"]


def collectives(draw: Draw) -> None:
    """Compare collectives of integers, whose sums are exact, with their definitions."""
    comm = draw.comm
    size, rank = comm.size, comm.rank
    dtype = draw.choice("int32", "int64", "float32", "float64", "complex64", "uint8")
    count = draw.integer(1, 5000)
    all_values = draw.random.integers(0, 10, (size, count)).astype(dtype)
    local = draw.local(all_values[rank])
    to_host = draw.engine.to_host
    draw.same("allreduce", to_host(comm.allreduce(local)), all_values.sum(0).astype(dtype))
    draw.same("allgather", to_host(comm.allgather(local)), all_values)
    root = draw.integer(0, size - 1)
    draw.same("bcast", to_host(comm.bcast(local, root)), all_values[root])
    blocks = draw.random.integers(0, 10, (size, size, draw.integer(1, 300))).astype(dtype)
    draw.same("alltoall", to_host(comm.alltoall(draw.local(blocks[rank]))), blocks[:, rank])
    rows = draw.random.integers(0, 20, size).tolist()
    parts = [np.full((rows[r], 3), r, dtype) for r in range(size)]
    draw.same("allgatherv", to_host(comm.allgatherv(draw.local(parts[rank]), rows)), np.concatenate(parts))
    left, right = (rank - 1) % size, (rank + 1) % size
    result = comm.sendrecv(local, right, draw.local(np.zeros(count, dtype)), left)
    draw.same("sendrecv", to_host(result), all_values[left])


def symmetric(draw: Draw) -> None:
    """Store into the memory of the next rank, and check the values from the previous one."""
    comm, count = draw.comm, draw.integer(1, 2000)
    all_values = draw.values((comm.size, count), "float64")
    try:
        memory = comm.symmetric(count, "float64", engine=draw.engine.name, signals=1)
    except TransportError:
        return  # on all ranks: they share no memory
    with memory:
        memory.barrier()
        memory.put(draw.local(all_values[comm.rank]), (comm.rank + 1) % comm.size)
        memory.barrier()
        draw.same("symmetric", draw.engine.to_host(memory.local), all_values[(comm.rank - 1) % comm.size])
        memory.barrier()


def split(draw: Draw) -> None:
    """Sum over halves of the ranks."""
    comm = draw.comm
    parts = draw.integer(1, 2)
    half = comm.split(comm.rank % parts, draw.choice(0, -comm.rank))
    assert half is not None
    members = [rank for rank in range(comm.size) if rank % parts == comm.rank % parts]
    result = half.allreduce(draw.local(np.array([comm.rank], np.int64)))
    draw.same("sum of a half", draw.engine.to_host(result), [sum(members)])
