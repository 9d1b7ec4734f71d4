"""Copies that should be equal and are not, under COLLOPS_CHECK: every rank gets the error, and can continue."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import collops
from collops import DistributedArray, Layout
from collops.errors import InputError, LayoutError
from collops.profile import count_messages
from tests.robust.test_disagreement import build


@pytest.fixture(scope="module", params=["1", "calls"])
def checked(comm, request):
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    return build(comm, request.param)


def mine(comm, count=8):
    """Random numbers without a common seed."""
    return np.random.default_rng(100 + comm.rank).normal(size=count)


def replicated(comm, count=8):
    return Layout.replicated(count, comm.size)


def assigned(comm):
    x = collops.ones(replicated(comm), comm=comm)
    x.local_array = mine(comm)
    return x


def written(comm):
    x = collops.ones(replicated(comm), comm=comm)
    x.local_array[-1] += comm.rank
    return x


def operator(comm):
    return collops.VStack([np.eye(8)], comm)


def of_compat(comm, way):
    import collops.compat.pylops_mpi as pylops_mpi

    partition = getattr(pylops_mpi.Partition, way)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("collops.compat.pylops_mpi._arrays.communicator", lambda _: comm)  # the world is not checked
        pylops_mpi.DistributedArray(8, partition=partition, local_array=mine(comm))


def of_groups(comm):
    """Copies are compared within the groups of a mask; the last group has the other ranks."""
    mask = [0] + [1] * (comm.size - 1)
    layout = Layout.replicated(3, comm.size, mask=mask)
    collops.from_local(np.full(3, mask[comm.rank]), layout, comm=comm)
    layout = Layout.replicated(3, comm.size, mask=[0] * comm.size)
    collops.from_local(np.full(3, mask[comm.rank]), layout, comm=comm)


UNEQUAL = {
    "from_local": lambda comm: collops.from_local(mine(comm), replicated(comm), comm=comm),
    "full": lambda comm: collops.full(replicated(comm), comm.rank, comm=comm),
    "full_like": lambda comm: collops.array.full_like(collops.ones(replicated(comm), comm=comm), 2.0 * comm.rank),
    "random": lambda comm: collops.random(replicated(comm), seed=comm.rank, comm=comm),
    "constructor": lambda comm: DistributedArray(replicated(comm), comm, mine(comm)),
    "dtypes": lambda comm: DistributedArray(replicated(comm), comm, np.ones(8, "f4" if comm.rank else "f8")),
    "not a number": lambda comm: DistributedArray(
        replicated(comm, 2), comm, np.array([1, 1.0 if comm.rank else np.nan])
    ),
    "from_global": lambda comm: collops.from_global(mine(comm), replicated(comm), comm=comm),
    "from_global, split": lambda comm: collops.from_global(mine(comm), comm=comm),
    "groups": of_groups,
    "Diagonal": lambda comm: collops.Diagonal(mine(comm), comm=comm),
    "Restriction": lambda comm: collops.Restriction(8, [0, 3 + comm.rank], comm=comm),
    "filters": lambda comm: collops.NonStationaryConvolve1D(8, mine(comm, 6).reshape(2, 3), [1, 5], comm=comm),
    "assigned, forward": lambda comm: operator(comm) @ assigned(comm),
    "assigned, adjoint": lambda comm: operator(comm).H.H.H @ (operator(comm) @ assigned(comm)),
    "assigned, gather": lambda comm: assigned(comm).gather(),
    "assigned, redistribute": lambda comm: assigned(comm).redistribute(Layout.split(8, comm.size)),
    "written, stacked": lambda comm: (
        collops.StackedBlockDiag([operator(comm)] * 2)
        @ collops.StackedArray([collops.ones(replicated(comm), comm=comm), written(comm)])
    ),
    "x0": lambda comm: collops.cgls(
        operator(comm), collops.ones(operator(comm).range, comm=comm), x0=written(comm), niter=2
    ),
    "y": lambda comm: collops.cg(collops.Identity(replicated(comm), comm=comm), written(comm), niter=2),
    "BROADCAST": lambda comm: of_compat(comm, "BROADCAST"),
    "UNSAFE_BROADCAST": lambda comm: of_compat(comm, "UNSAFE_BROADCAST"),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_unequal_copies(checked, name):
    with pytest.raises((LayoutError, InputError)) as caught:
        UNEQUAL[name](checked)
    assert caught.value.on_all_ranks
    assert "differ" in str(caught.value)
    assert float(collops.ones(checked.size, comm=checked).sum()) == checked.size


def test_the_advice(checked):
    with pytest.raises(LayoutError, match=r"rank 1 from rank 0.*comm.bcast\(values\)"):
        collops.from_local(mine(checked), replicated(checked), comm=checked)
    x = collops.from_local(checked.bcast(mine(checked)), replicated(checked), comm=checked)
    A = operator(checked)
    assert float((A @ x).norm()) == pytest.approx(float(x.norm()) * checked.size**0.5)


def test_equal_copies(checked):
    """NaN is equal to NaN, whatever its bits, and 0.0 to -0.0."""
    for dtype in ("f4", "f8", "c16", "i4", "?", "f2"):
        values = np.arange(8).astype(dtype)
        if values.dtype.kind in "fc":
            values[3] = -np.nan if checked.rank % 2 else np.nan
            values[4] = 0.0 if checked.rank % 2 else -0.0
        x = collops.from_local(values, replicated(checked), comm=checked)
        x.check_replicated()
    collops.from_global(values, comm=checked)
    collops.empty(replicated(checked), comm=checked)  # values that nobody has set


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_arrays_of_jax(checked):
    import jax

    with pytest.raises(LayoutError, match="differ"):
        collops.from_local(jax.numpy.asarray(mine(checked)), replicated(checked), comm=checked)
    x = collops.from_local(jax.numpy.ones(8), replicated(checked), comm=checked)
    assert np.array_equal(jax.jit(lambda x: 2 * x)(x).gather(), 2 * np.ones(8))


def test_nothing_is_sent_without_the_checks(comm):
    layout = replicated(comm)
    with count_messages() as counted:
        x = DistributedArray(layout, comm, np.ones(8))
        x = collops.from_global(np.ones(8), layout, comm=comm)
        A = collops.Identity(layout, comm=comm)
        x.gather(), x.redistribute(layout), A @ x, A.H @ x, collops.Diagonal(np.ones(8), layout, comm=comm)
    assert str(counted) == "MessageCounts(none)"
