"""Checks of every primitive, on any device: alone, compiled, batched along any axis, and differentiated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import collops.jax as cj
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
