"""Several GPUs of one process as a mesh: how arrays are spread over them, and programs mapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import collops.jax as cj

__all__ = ["Mesh"]


class Mesh:
    """GPUs of this process along one axis, joined by NCCL.

    Parameters
    ----------
    devices : sequence of jax.Device
        In the order of their ranks.
    """

    def __init__(self, devices: Sequence[Any]) -> None:
        self.size = len(devices)
        self._mesh = jax.sharding.Mesh(np.array(devices), "devices")
        self._spec = jax.sharding.PartitionSpec("devices")
        self._joined = cj.clique(devices)

    def spread(self, x: np.ndarray) -> Any:
        """Return an array of which every GPU holds a copy of `x`."""
        where = jax.sharding.NamedSharding(self._mesh, self._spec)
        # Sent to each GPU by itself: all copies together may be more than the host has room for.
        shape = (self.size, *x.shape)
        return jax.make_array_from_callback(shape, where, lambda _: x[None])

    def mapped(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return `function`, of one GPU's part, as one of the whole array."""
        return jax.shard_map(function, mesh=self._mesh, in_specs=self._spec, out_specs=self._spec, check_vma=False)

    def allreduce(self, x: Any) -> Any:
        """Sum up by collops, inside what is mapped."""
        return cj.allreduce(x, comm=self._joined)

    def psum(self, x: Any) -> Any:
        """Sum up by JAX itself, inside what is mapped."""
        return jax.lax.psum(x, "devices")
