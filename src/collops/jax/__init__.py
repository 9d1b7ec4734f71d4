"""Collectives as JAX primitives, for use in compiled functions and in all transformations of JAX."""

from collops.jax import reduction_jvps  # noqa: F401 - registers derivatives
from collops.jax.allreduce import allreduce
from collops.jax.alltoall import alltoall, alltoallv
from collops.jax.barrier import barrier
from collops.jax.devices import Clique, clique, use_local_device
from collops.jax.distribution import gather, scatter
from collops.jax.exchange import neighbor_exchange, recv, send, sendrecv
from collops.jax.folding import scan
from collops.jax.gathering import allgather, allgatherv, reduce_scatter
from collops.jax.order import jit
from collops.jax.rooted import bcast, reduce

__all__ = [
    "Clique",
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoallv",
    "barrier",
    "bcast",
    "clique",
    "gather",
    "jit",
    "neighbor_exchange",
    "recv",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
    "send",
    "sendrecv",
    "use_local_device",
]
