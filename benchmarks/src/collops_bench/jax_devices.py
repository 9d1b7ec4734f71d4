"""Several devices of one process as a mesh, and the table of NCCL4JAX by its method on three of them, with CuPy's NCCL.

NCCL4JAX reported the mean of 50 calls after the first, each with a wait, of 10, 500 and 2000 elements, called alone and
under ``jax.jit``. Alone, a mapped call of JAX dispatches three programs to all devices. JAX compiles foreign operations
every time; records made before collops.jax kept its steps have that cost in ``alone``. CuPy makes one call from Python
for each GPU, compiled programs one for all of them.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import collops.jax as cj
from collops_bench.record import Measurement, check
from collops_bench.timing import Spread, Timing

if TYPE_CHECKING:
    from collops_bench.registry import Context

__all__ = ["Mesh", "table"]

_ELEMENTS = (10, 500, 2000)
_DEVICES = 3
_CALLS = 50
_ROUNDS = 3


class Mesh:
    """Devices of this process along one axis: GPUs joined by NCCL, or the CPU devices of ``JAX_NUM_CPU_DEVICES``.

    Parameters
    ----------
    devices : sequence of jax.Device
        In the order of their ranks.
    """

    def __init__(self, devices: Sequence[Any]) -> None:
        self.size, self.platform = len(devices), devices[0].platform
        self._mesh = jax.sharding.Mesh(np.array(devices), "devices")
        self._spec = jax.sharding.PartitionSpec("devices")
        self._joined = cj.clique(devices)

    def spread(self, x: np.ndarray) -> Any:
        """Return an array with a copy of `x` on every GPU."""
        where = jax.sharding.NamedSharding(self._mesh, self._spec)
        # Copy to one GPU after the other: all copies together may exceed the memory of the host.
        shape = (self.size, *x.shape)
        return jax.make_array_from_callback(shape, where, lambda _: x[None])

    def mapped(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Lift `function` from the part of one GPU to the whole array."""
        return jax.shard_map(function, mesh=self._mesh, in_specs=self._spec, out_specs=self._spec, check_vma=False)

    def allreduce(self, x: Any) -> Any:
        """Sum with collops, in a mapped function."""
        return cj.allreduce(x, comm=self._joined)

    def psum(self, x: Any) -> Any:
        """Sum with JAX itself, in a mapped function."""
        return jax.lax.psum(x, "devices")


def table(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each number of elements."""
    mesh = Mesh(jax.local_devices()[:_DEVICES])
    for elements in _ELEMENTS:
        x = mesh.spread(np.arange(elements, dtype=np.float32))
        alone = mesh.mapped(mesh.allreduce)
        programs: dict[str, Callable[[], Any]] = {
            "collops alone": _waited_for(alone, x),
            "collops under jit": _waited_for(cj.jit(alone), x),
            "lax.psum alone": _waited_for(mesh.mapped(mesh.psum), x),
            "lax.psum under jit": _waited_for(jax.jit(mesh.mapped(mesh.psum)), x),
        }
        missing = {}
        if (reason := _obstacle(mesh)) is None:
            programs["CuPy"] = _Cupy(mesh.size, elements)
        else:
            missing["CuPy"] = reason
        timings, checks = {}, []
        for name, program in programs.items():
            begin = time.perf_counter()
            answer = program()
            first = time.perf_counter() - begin
            answer = answer.get() if name == "CuPy" else np.asarray(answer)
            error = float(np.abs(answer - mesh.size * np.arange(elements)).max())
            checks.append(check(context.comm, f"{name}: the sum of equal arrays", error, 0.0))
            means = [_mean_of_calls(program) for _ in range(_ROUNDS)]
            timings[name] = Timing(_CALLS, {"wall": Spread.from_samples(means), "first": Spread.from_samples([first])})
        yield Measurement(
            "the table of NCCL4JAX",
            {"elements": elements, "parties": mesh.size},
            timings,
            missing,
            ours="collops under jit",
            peer=None if missing else "CuPy",
            checks=checks,
        )


def _waited_for(function: Callable[[Any], Any], x: Any) -> Callable[[], Any]:
    return lambda: function(x).block_until_ready()


def _mean_of_calls(program: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    for _ in range(_CALLS):
        program()
    return (time.perf_counter() - begin) / _CALLS


def _obstacle(mesh: Mesh) -> str | None:
    """Return why CuPy's NCCL cannot be called on the devices of a mesh."""
    if mesh.platform == "cpu":
        return "the devices of JAX are CPUs"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    from cupy.cuda import nccl

    return None if nccl.available else "CuPy finds no NCCL"


class _Cupy:
    """CuPy's NCCL on the GPUs of this process: a call for each of them in a group, and a wait for each."""

    def __init__(self, size: int, elements: int) -> None:
        import cupy
        from cupy.cuda import nccl

        self._nccl, self._elements = nccl, elements
        self._devices = [cupy.cuda.Device(number) for number in range(size)]
        self._communicators = nccl.NcclCommunicator.initAll(list(range(size)))
        self._pairs = []
        for device in self._devices:
            with device:
                self._pairs.append((cupy.arange(elements, dtype=cupy.float32), cupy.zeros(elements, cupy.float32)))

    def __call__(self) -> Any:
        nccl = self._nccl
        nccl.groupStart()
        for device, communicator, (source, target) in zip(self._devices, self._communicators, self._pairs, strict=True):
            with device:
                communicator.allReduce(
                    source.data.ptr, target.data.ptr, self._elements, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, 0
                )
        nccl.groupEnd()
        for device in self._devices:
            device.synchronize()
        return self._pairs[0][1]
