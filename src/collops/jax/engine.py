"""The engine of JAX arrays; see :mod:`collops.backend`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from numpy.typing import DTypeLike

from collops.backend import Engine, LocalArray, Selection
from collops.comm import Communicator
from collops.errors import UnsupportedTypeError
from collops.jax import arguments, methods, versions
from collops.jax.allreduce import replicated_operand
from collops.jax.primitive import linear_map

__all__ = ["JaxEngine"]


class JaxEngine(Engine):
    """JAX arrays, which are immutable, and tracers.

    `methods` is the module with the methods of a communicator for these arrays, under the same names.
    """

    __slots__ = ("methods",)

    def __init__(self) -> None:
        memory = "host" if jax.default_backend() == "cpu" else "device"
        super().__init__("jax", jnp, memory, mutable=False, traced=True)
        self.methods = methods

    def synchronize(self) -> None:
        """Wait until all started collectives have completed."""
        jax.effects_barrier()

    def from_host(self, array: LocalArray) -> LocalArray:
        """Return a copy of a NumPy array as a JAX array, which is a constant in a traced program."""
        with jax.ensure_compile_time_eval():
            return arguments.copied(array, self.dtype(array.dtype))

    def matmul(self, a: LocalArray, b: LocalArray) -> LocalArray:
        """Return the product of two matrices or stacks of them, see :meth:`Engine.matmul`."""
        return jnp.matmul(a, b, precision=None if versions.product_precision() else "highest")

    def check_devices(self, array: LocalArray) -> None:
        """Raise an UnsupportedTypeError if `array` is sharded over several devices, which messages do not support."""
        if not isinstance(array, Tracer) and len(array.sharding.device_set) > 1:
            raise UnsupportedTypeError(
                f"the local array of a rank is on one device, but this one is spread over {len(array.devices())}: "
                "use jax.device_put(array, jax.sharding.SingleDeviceSharding(jax.local_devices()[0])), or start a rank "
                "for each device"
            )

    def dtype(self, dtype: DTypeLike) -> np.dtype:
        """Return JAX's dtype for `dtype`: single instead of double precision without ``jax_enable_x64``."""
        return np.dtype(jax.dtypes.canonicalize_dtype(dtype))

    def put(self, array: LocalArray, index: Selection, values: LocalArray) -> LocalArray:
        """Return `array` with `values` at `index`, converted to its dtype."""
        values = arguments.copied(values) if isinstance(values, np.ndarray) else jnp.asarray(values)
        if values.dtype.kind == "c" and array.dtype.kind != "c":
            raise UnsupportedTypeError(f"complex values do not fit into an array of {array.dtype}")
        values = values.astype(array.dtype)
        starts = _start_of_box(index, array.shape)
        if starts is None:
            return array.at[index].set(values)
        shape = np.broadcast_to(_NOTHING, array.shape)[index].shape
        if shape == array.shape:
            return jnp.broadcast_to(values, shape)
        # XLA copies boxes faster than it scatters elements.
        return lax.dynamic_update_slice(array, jnp.broadcast_to(values, shape), [np.int32(start) for start in starts])

    def add(self, array: LocalArray, index: Selection, values: LocalArray) -> LocalArray:
        """Return `array` with `values` added at `index`, a slice or slices."""
        return self.put(array, index, array[index] + values)

    def sliced(self, array: LocalArray, index: Sequence[slice]) -> LocalArray:
        """Return the elements of `array` at `index`: one operation, which keeps its sharding, eagerly too."""
        bounds = [part.indices(extent) for part, extent in zip(index, array.shape, strict=False)]
        bounds += [(0, extent, 1) for extent in array.shape[len(bounds) :]]
        return lax.slice(array, *zip(*bounds, strict=True))

    def embedded(self, values: LocalArray, index: Sequence[slice], target: LocalArray) -> LocalArray:
        """Return zeros with `values` at `index`, see :meth:`Engine.embedded`: one operation, which keeps its sharding.

        Only the shape and the dtype of `target` are used.
        """
        widths = [(0, 0, 0)] * target.ndim
        for axis, (part, extent, count) in enumerate(zip(index, target.shape, values.shape, strict=False)):
            start, _, step = part.indices(extent)
            widths[axis] = start, extent - start - (1 + (count - 1) * step if count else 0), step - 1
        return lax.pad(values.astype(target.dtype), np.zeros((), target.dtype), widths)

    def shifted(self, array: LocalArray, by: int, axis: int) -> LocalArray:
        """Return `array` moved along `axis`, see :meth:`Engine.shifted`: one operation, which keeps its sharding."""
        widths = [(by, -by, 0) if a == axis else (0, 0, 0) for a in range(array.ndim)]
        return lax.pad(array, np.zeros((), array.dtype), widths)

    def replicated_operand(self, value: LocalArray, comm: Communicator | None) -> LocalArray:
        """Return the replicated `value`; its cotangent is the sum of the cotangents of the ranks of `comm`."""
        if comm is None or comm.size == 1 or not isinstance(value, Tracer):
            return value
        return replicated_operand(value, comm) if jnp.issubdtype(value.dtype, jnp.inexact) else value

    def linear_map(
        self,
        forward: Callable[[LocalArray], LocalArray],
        adjoint: Callable[[LocalArray], LocalArray],
        x: LocalArray,
        shape: Sequence[int],
    ) -> LocalArray:
        """Return ``forward(x)``; in a traced program, its transpose is `adjoint`."""
        if not isinstance(x, Tracer):
            return forward(x)
        return linear_map(forward, adjoint, x, (x.shape, tuple(shape)))


_NOTHING = np.empty((), bool)


def _start_of_box(index: Selection, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the start of the box that an index selects; ``None`` if it has steps, integers or new axes."""
    parts = index if isinstance(index, tuple) else (index,)
    if any(part is not Ellipsis and not isinstance(part, slice) for part in parts):
        return None
    if Ellipsis in parts:
        ellipsis = parts.index(Ellipsis)
        parts = (*parts[:ellipsis], *[slice(None)] * (len(shape) - len(parts) + 1), *parts[ellipsis + 1 :])
    bounds = [part.indices(extent) for part, extent in zip(parts, shape, strict=False)]
    if any(step != 1 for *_, step in bounds):
        return None
    return (*(start for start, *_ in bounds), *[0] * (len(shape) - len(parts)))
