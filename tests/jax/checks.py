"""Checks of every primitive, on any device: alone, compiled, batched along any axis, and differentiated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import collops.jax as cj
from tests.comm.checks import numbers_with_nan
from tests.jax.cases import Case


def close(found: Any, expected: Any, dtype: Any = np.float64) -> None:
    tolerance = {np.dtype(np.float64): 1e-11, np.dtype(np.float32): 1e-4}.get(np.dtype(dtype), 0)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=tolerance, atol=tolerance)


def check_case(comm: Any, case: Case, dtype: Any = np.float64) -> None:
    """Everything in one compiled program, which also has to keep the order of so many collectives."""
    size, rank = comm.size, comm.rank
    xs, ts = case.inputs(size, 1, dtype), case.inputs(size, 2, dtype)
    batches = case.inputs(size, 3, dtype, batch=3)
    expected = case.expect(xs, rank)
    cotangent = np.random.default_rng([4, rank]).normal(size=np.shape(expected)).astype(dtype)
    axes = (0, -1) if rank % 2 else (-1, 0)  # of batches, which may lie differently on other ranks

    def apply(x: Any) -> Any:
        return case.apply(cj, comm, x)

    @cj.jit
    def everything(x: Any, t: Any, batch: Any, cotangent: Any) -> Any:
        y, pull = jax.vjp(apply, x)
        return {
            "alone": y,
            "jvp": jax.jvp(apply, (x,), (t,))[1],
            "vjp": pull(cotangent)[0],
            **{f"axis {axis}": jax.vmap(apply, axis, axis)(jnp.moveaxis(batch, 0, axis)) for axis in axes},
        }

    found = everything(xs[rank], ts[rank], batches[rank], cotangent)
    close(apply(jnp.asarray(xs[rank])), expected, dtype)
    close(found["alone"], expected, dtype)
    tangent = case.expect(ts, rank) if case.tangent is None else case.tangent(xs, ts, rank)
    close(found["jvp"], tangent, dtype)
    mine = np.array([np.vdot(tangent, cotangent), np.vdot(ts[rank], found["vjp"])])
    forward, backward = comm.allreduce(mine.astype(np.float64))
    close(forward, backward, dtype)
    stacked = np.stack([case.expect([values[i] for values in batches], rank) for i in range(3)])
    close(found["axis 0"], stacked, dtype)
    close(found["axis -1"], np.moveaxis(stacked, 0, -1), dtype)


def on_devices(joined: Any, function: Any) -> Any:
    """Map `function` over the devices of a clique: the first axis of operands and results has an entry for each."""

    def of_one(*operands: Any) -> Any:
        return jax.tree.map(lambda y: y[None], function(*jax.tree.map(lambda x: x[0], operands)))

    rows = PartitionSpec("d")
    mesh = Mesh(np.array(joined.devices), "d")
    return jax.shard_map(of_one, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)


def check_on_devices(comm: Any, joined: Any, case: Case, dtype: Any = np.float64) -> None:
    """A primitive between devices: alone by three ways of compiling, batched, and differentiated where that exists."""
    mine = range(joined.first, joined.first + len(joined.devices))
    xs, ts = case.inputs(joined.size, 1, dtype), case.inputs(joined.size, 2, dtype)
    batches = case.inputs(joined.size, 3, dtype, batch=3)
    expected = np.stack([case.expect(xs, rank) for rank in mine])
    cotangents = np.stack([np.random.default_rng([4, rank]).normal(size=expected[0].shape) for rank in mine])

    def apply(x: Any) -> Any:
        return case.apply(cj, joined, x)

    def everything(x: Any, t: Any, batch: Any, cotangent: Any) -> Any:
        found = {"batched": jax.vmap(apply, -1, -1)(jnp.moveaxis(batch, 0, -1))}
        if case.name != "allreduce prod":
            found["jvp"] = jax.jvp(apply, (x,), (t,))[1]
        if case.name not in ("allreduce prod", "bcast"):
            found["vjp"] = jax.vjp(apply, x)[1](cotangent)[0]
        return found

    rows, tangents, batch = (np.stack([values[rank] for rank in mine]) for values in (xs, ts, batches))
    for compiled in (cj.jit(on_devices(joined, apply)), jax.jit(on_devices(joined, apply)), on_devices(joined, apply)):
        close(compiled(rows), expected, dtype)
    found = cj.jit(on_devices(joined, everything))(rows, tangents, batch, cotangents.astype(dtype))
    stacked = [np.stack([case.expect([values[i] for values in batches], rank) for i in range(3)], -1) for rank in mine]
    close(found["batched"], np.stack(stacked), dtype)
    if "jvp" in found:
        tangent = [case.expect(ts, rank) if case.tangent is None else case.tangent(xs, ts, rank) for rank in mine]
        close(found["jvp"], np.stack(tangent), dtype)
    if "vjp" in found:
        mine_of_both = np.array([np.vdot(found["jvp"], cotangents), np.vdot(tangents, found["vjp"])])
        close(*comm.allreduce(mine_of_both), dtype)


def check_nan_wins(comm: Any, name: str, op: str) -> None:
    """NaN on any rank is the result on all, and the derivative is NaN there, as of NumPy's extremes in JAX."""
    size, ufunc = comm.size, {"min": np.minimum, "max": np.maximum}[op]
    parts = [numbers_with_nan(rank, size, size + 9, np.dtype("float32")) for rank in range(size)]
    parts = [np.asarray(jnp.asarray(part, name).astype("float32")) for part in parts]
    x, expected = jnp.asarray(parts[comm.rank], name), ufunc.reduce(parts)

    def program(x):
        blocks = jnp.stack([x] * size)
        return cj.allreduce(x, op), cj.reduce(x, op, size - 1), cj.reduce_scatter(blocks, op), comm.allreduce(x, op)

    for run in (program, cj.jit(program)):
        total, rooted, scattered, by_method = run(x)
        for y in (total, rooted if comm.rank == size - 1 else total, scattered, by_method):
            assert y.dtype == x.dtype
            np.testing.assert_array_equal(np.asarray(y).astype("float32"), expected)
    several = jax.vmap(lambda x: cj.allreduce(x, op))(jnp.stack([x, x]))
    np.testing.assert_array_equal(np.asarray(several).astype("float32"), np.stack([expected] * 2))
    if size > 1:
        _, tangent = jax.jvp(lambda x: cj.allreduce(x, op), (x,), (jnp.ones_like(x),))
        np.testing.assert_array_equal(np.isnan(np.asarray(tangent).astype("float32")), np.isnan(expected))
        assert (tangent[size + 1 :] == 1).all()
