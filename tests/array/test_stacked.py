"""Stacked arrays against one concatenated NumPy vector."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import collops.array as ca
from collops import profile
from collops.array import Layout, StackedArray, StackedLayout
from collops.errors import LayoutError, UnsupportedTypeError
from tests.array.cases import layouts, masks, tolerance, values


def stacks(comm, dtype=np.float64, seed=0):
    """A nested stack of every sort of layout, and the vector of all its elements."""
    leaves, parts = [], []
    for number, layout in enumerate([*layouts((5, 4), comm.size), Layout.replicated(2, comm.size)]):
        parts.append(values(layout.shape, dtype, seed=seed + number))
        leaves.append(ca.from_global(parts[-1], layout, comm=comm))
    return StackedArray([leaves[0], StackedArray(leaves[1:])]), np.concatenate([part.ravel() for part in parts])


def flat(stacked):
    return np.concatenate([leaf.gather().ravel() for leaf in stacked.leaves])


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_reductions(comm, dtype):
    x, a = stacks(comm, dtype)
    y, b = stacks(comm, dtype, seed=50)
    near = tolerance(dtype)
    one = 0 if comm.size == 1 else 1
    checks = [
        (lambda: x.vdot(y), np.vdot(a, b)),
        (lambda: x.dot(y), np.dot(a, b)),
        (lambda: x.vdot(x), np.vdot(a, a).real),
        (x.norm, np.linalg.norm(a)),
        (lambda: x.norm(1), np.linalg.norm(a, 1)),
        (lambda: x.norm(3), np.linalg.norm(a, 3)),
        (lambda: x.norm(np.inf), np.linalg.norm(a, np.inf)),
        (x.sum, a.sum()),
        (x.mean, a.mean()),
        (x.any, a.any()),
    ]
    if not np.iscomplexobj(a):
        checks += [(x.min, a.min()), (x.max, a.max())]
    for work, expected in checks:
        with profile.count_messages() as messages:
            result = work()
        assert messages.total == messages["allreduce"] == one
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, **near)


def test_arithmetic(comm):
    x, a = stacks(comm)
    y, b = stacks(comm, seed=50)
    with profile.count_messages() as messages:
        results = [(2 * x - y / 3, 2 * a - b / 3), (-x, -a), (x**2, a**2), (1 / (3 + x * x), 1 / (3 + a * a))]
        results += [(x < y, a < b), (abs(x), abs(a)), (np.hypot(x, y), np.hypot(a, b)), (x.copy(), a)]
        results += [(x.conj(), a), (x.astype(np.complex64), a.astype(np.complex64)), (ca.zeros_like(x), 0 * a)]
        results += [(ca.where(x > 0, x, y), np.where(a > 0, a, b)), (ca.where(x > 0, 3, x), np.where(a > 0, 3, a))]
        results += [(np.modf(x)[1], np.modf(a)[1])]
    assert messages.total == 0
    for result, expected in results:
        assert result.dtype == expected.dtype
        assert result.layout is x.layout
        np.testing.assert_array_equal(flat(result), expected)
    locals_before = [leaf.local_array for leaf in x.leaves]
    same = x
    x += y
    x *= 2
    assert x is same
    assert all(leaf.local_array is local for leaf, local in zip(x.leaves, locals_before, strict=True))
    np.testing.assert_array_equal(flat(x), 2 * (a + b))
    out = ca.empty_like(x)
    assert np.add(x, y, out=out) is out
    np.testing.assert_array_equal(flat(out), 2 * (a + b) + b)
    x.fill(1)
    assert float(x.sum()) == x.size == a.size


def test_refusals(comm):
    x, _ = stacks(comm)
    with pytest.raises(UnsupportedTypeError):
        x + np.zeros(3)
    with pytest.raises(UnsupportedTypeError):
        x + x.leaves[0]
    with pytest.raises(UnsupportedTypeError):
        x.leaves[0] * x
    with pytest.raises(LayoutError, match="as many parts"):
        x + StackedArray([x])
    with pytest.raises(LayoutError, match="axes"):
        x.sum(axis=0)
    with pytest.raises(UnsupportedTypeError):
        StackedArray([np.zeros(3)])
    with pytest.raises(LayoutError, match="at least one"):
        StackedArray([])
    with pytest.raises(UnsupportedTypeError, match="ranks"):
        np.add.reduce(x)
    with pytest.raises(TypeError):
        operator.add(x, object())
    with pytest.raises(UnsupportedTypeError, match="booleans"):
        ca.where(x, 3, x)
    with pytest.raises(UnsupportedTypeError):
        ca.where(x > 0, 3, x.leaves[0])
    with pytest.raises(UnsupportedTypeError, match="numbers"):
        ca.where(x > 0, 3, "text")


def test_structure(comm):
    x, a = stacks(comm)
    assert x.shape == (a.size,)
    assert x.size == a.size
    assert len(x) == 2
    assert x[1] is x.arrays[1]
    assert tuple(x) == x.arrays  # by identity, which comes first
    assert x.nbytes == a.nbytes
    made = ca.zeros(x.layout, comm=comm)
    assert made.layout is x.layout
    nested = x.gather()
    np.testing.assert_array_equal(nested[0].ravel(), a[: nested[0].size])
    root = x.gather(root=0)
    assert (root is not None) == (comm.rank == 0)
    others = [Layout.split(leaf.shape, comm.size, leaf.ndim - 1) for leaf in x.leaves]
    target = StackedLayout([others[0], StackedLayout(others[1:])])
    moved = x.redistribute(target)
    assert moved.layout is target
    np.testing.assert_array_equal(flat(moved), a)
    with pytest.raises(LayoutError):
        x.redistribute(StackedLayout([x.layout]))
    x.check_replicated()


def test_masks_must_agree(comm):
    without_first = [(0, *[1] * (comm.size - 1))] if comm.size > 2 else []  # a group of several ranks without rank 0
    for mask in [*masks(comm.size), *without_first]:
        split = ca.ones(Layout.split(6, comm.size, mask=mask), comm=comm)
        whole = ca.ones(Layout.replicated(2, comm.size), comm=comm)
        mine = sum(split.layout.local_size(r) for r in range(comm.size) if mask[r] == mask[comm.rank])
        stacked = StackedArray([split, whole])
        assert float(stacked.sum()) == float(stacked.vdot(stacked)) == mine + 2
        assert float(stacked.mean()) == 1
        with pytest.raises(LayoutError, match="mask"):
            StackedArray([split, ca.ones(6, comm=comm)])
