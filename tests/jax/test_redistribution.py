"""Derivatives of changes of layout: what several ranks hold is one value, and so is its cotangent."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

import collops
from collops import Layout
from collops.operators import Fredholm1

SHAPE = (5, 4)


def layouts(size: int) -> list[Layout]:
    """Whole everywhere, in rows (some ranks have none), in columns; on four ranks, halves in two copies."""
    rows = [2, 3] if size == 2 else [5] if size == 1 else [2, 0, 3, *[0] * (size - 3)]
    found = [Layout.replicated(SHAPE, size), Layout.split(SHAPE, size, sizes=rows), Layout.split(SHAPE, size, 1)]
    return [*found, Layout(SHAPE, 4, (2, 2), (0, None))] if size == 4 else found


def numbers(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def spread(values: np.ndarray, layout: Layout, comm):
    return collops.from_global(values, layout, comm=comm, engine="jax")


def test_adjoint_is_the_way_back(comm):
    pairs = list(itertools.permutations(layouts(comm.size), 2))
    xs = [spread(numbers(1), source, comm) for source, _ in pairs]
    ys = [spread(numbers(2), target, comm) for _, target in pairs]

    @jax.jit
    def all_of_them(xs, ys):
        moves = [jax.vjp(lambda x, y=y: x.redistribute(y.layout), x) for x, y in zip(xs, ys, strict=True)]
        return [(moved, back(y)[0]) for (moved, back), y in zip(moves, ys, strict=True)]

    for (source, target), (moved, slope) in zip(pairs, all_of_them(xs, ys), strict=True):
        np.testing.assert_array_equal(np.asarray(moved.local_array), numbers(1)[target.slices(comm.rank)])
        np.testing.assert_array_equal(np.asarray(slope.local_array), numbers(2)[source.slices(comm.rank)])


@pytest.mark.parametrize("place", [0, 1])
def test_derivatives_are_those_of_differences(comm, place):
    """Of a function that goes through every layout, in both modes and batched."""
    kinds = layouts(comm.size)
    weights = [spread(numbers(seed), kind, comm) for seed, kind in enumerate([*kinds, kinds[0], kinds[-1]])]

    def energy(x):
        for weight in weights:
            x = x.redistribute(weight.layout)
            x = x * weight + x * x
        return x.vdot(x)

    x, t = (spread(numbers(seed), kinds[place], comm) for seed in (8, 9))
    step = 1e-6

    @jax.jit
    def everything(x, t):
        steps = jax.tree.map(lambda x, t: jax.numpy.stack([x + step * t, x - step * t]), x, t)
        slope, tangent = jax.grad(energy)(x), jax.jvp(energy, (x,), (t,))[1]
        return slope.vdot(t), tangent, jax.vmap(energy)(steps)

    backward, forward, (above, below) = everything(x, t)
    np.testing.assert_allclose([backward, forward], (above - below) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("model", ["split", "replicated"])
def test_an_operator_of_whole_arrays(comm, model):
    own = Layout.split((4,), comm.size).slices(comm.rank)
    A = Fredholm1(jax.numpy.asarray(numbers(1, (4, 3, 2))[own]), 1, comm=comm, model=model, data="replicated")
    x, y = (spread(numbers(2, layout.shape), layout, comm) for layout in (A.domain, A.range))
    (slope,) = jax.jit(lambda x, y: jax.vjp(A.forward, x)[1](y))(x, y)
    np.testing.assert_allclose(np.asarray(slope.local_array), np.asarray(A.adjoint(y).local_array), rtol=1e-12)
