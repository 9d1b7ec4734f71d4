"""Fourier transforms of sharded JAX arrays on all devices of one process, in three dimensions, of complex64.

The array is split along its first axis (slabs) or, on hosts, along the first two (pencils). ``collops`` is the forward
transform with the result sharded like the array, ``transposed`` leaves it as after the last local transform, and
``chunks`` sends pieces while it transforms others. The peers are ``jax.numpy.fft.fftn`` under ``jax.jit`` with the same
shardings, and jaxDecomp, whose result is transposed, with its axes in another order. Every call waits for its result.
Answers are compared with each other, and by Parseval's identity.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import InputError
from collops_bench.record import Measurement, check
from collops_bench.timing import Plan, interleave

if TYPE_CHECKING:
    from collops_bench.registry import Context

__all__ = ["measure"]

_ON_DEVICES = (512, 1024)
_ON_HOSTS = (64, 128)
_CHUNKS = (2, 4)
_JAXDECOMP = "jaxDecomp, transposed"
_TOLERANCE = 2e-5  # relative to the largest coefficient


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each size and split; none with several ranks."""
    if importlib.util.find_spec("jax") is None:
        raise InputError("collops bench fft needs JAX: pip install 'collops[jax]'")
    import jax

    devices = np.array(jax.local_devices())
    if context.comm.size > 1 or len(devices) == 1:
        return
    quick = context.options.quick
    plan = Plan(rounds=3, seconds=0.01) if quick else Plan(rounds=15, seconds=0.05)
    grids: list[tuple[int, ...]] = [(len(devices),)]
    on_gpus = jax.default_backend() == "gpu"
    if len(devices) % 2 == 0 and len(devices) > 2:
        grids.append((2, len(devices) // 2))
    for size in (32,) if quick else _ON_DEVICES if on_gpus else _ON_HOSTS:
        for grid in grids:
            yield _measure(context, plan, size, devices.reshape(grid))


def _measure(context: Context, plan: Plan, size: int, devices: np.ndarray) -> Measurement:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from collops.bridges.sharded import fftn

    names = ("a", "b")[: devices.ndim]
    own = NamedSharding(Mesh(devices, names), PartitionSpec(*names))
    transposed = PartitionSpec(None, *names)
    x = _noise(size, own)
    functions: dict[str, Callable[[Any], Any]] = {"collops": fftn}
    for chunks in _CHUNKS:
        functions[f"collops, {chunks} chunks"] = partial(fftn, chunks=chunks)
    functions["collops, transposed"] = partial(fftn, out_spec=transposed)
    functions[f"collops, transposed, {_CHUNKS[0]} chunks"] = partial(fftn, out_spec=transposed, chunks=_CHUNKS[0])
    missing = {}
    if context.options.peer:
        functions["jax.numpy"] = jax.jit(jnp.fft.fftn, in_shardings=own, out_shardings=own)
        try:
            functions[_JAXDECOMP] = _jaxdecomp(devices)
        except (AttributeError, ImportError, TypeError, ValueError) as error:  # of another version of JAX
            missing[_JAXDECOMP] = f"{type(error).__name__}: {error}"

    @jax.jit
    def errors(result: Any, reference: Any, x: Any) -> tuple[Any, Any]:
        difference, largest = abs(result - reference).max(), abs(reference).max()
        return difference / largest, jnp.vdot(result, result).real / jnp.vdot(x, x).real / x.size - 1

    reference_name = "jax.numpy" if context.options.peer else "collops"
    reference = functions[reference_name](x)
    checks = []
    for name, function in functions.items():
        result = function(x)
        if name == _JAXDECOMP:
            result = result.transpose(2, 0, 1)
        difference, excess = map(float, errors(result, reference, x))
        checks.append(check(context.comm, f"{name}: difference from {reference_name}", difference, _TOLERANCE))
        checks.append(check(context.comm, f"{name}: Parseval's identity", abs(excess), 1e-4))
        del result
    del reference
    programs = {name: _waited_for(function, x) for name, function in functions.items()}
    return Measurement(
        "FFT of " + ("slabs" if devices.ndim == 1 else "pencils"),
        {"shape": [size] * 3, "devices": list(devices.shape), "dtype": "complex64"},
        interleave(programs, context.comm, context.engine, plan),
        missing,
        peer="jax.numpy" if context.options.peer else None,
        checks=checks,
    )


def _noise(size: int, sharding: Any) -> Any:
    import jax

    def made() -> Any:
        real, imaginary = (jax.random.normal(jax.random.key(seed), (size,) * 3) for seed in (1, 2))
        return jax.lax.complex(real, imaginary)

    return jax.jit(made, out_shardings=sharding)()


def _jaxdecomp(devices: np.ndarray) -> Callable[[Any], Any]:
    """Return jaxDecomp's transform, whose mesh always has two axes, after a small call."""
    import jax
    import jaxdecomp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(devices.reshape(*devices.shape, 1) if devices.ndim == 1 else devices, ("x", "y"))
    own = NamedSharding(mesh, PartitionSpec("x", "y"))

    def transform(x: Any) -> Any:
        return jaxdecomp.pfft3d(jax.device_put(x, own))

    transform(_noise(2 * devices.size, own))
    return transform


def _waited_for(function: Callable[[Any], Any], x: Any) -> Callable[[], Any]:
    return lambda: function(x).block_until_ready()
