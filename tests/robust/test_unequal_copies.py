"""Copies and numbers that should be equal and are not, under COLLOPS_CHECK: all ranks raise, and can continue."""

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


def added(x, number):
    x += number


def jax_solution(comm, traced=False, **unequal):
    """A solver as one compiled program, with an option that differs."""
    jax = pytest.importorskip("jax")
    x = collops.ones(8, comm=comm, engine="jax")
    options = {name: 0.5 * comm.rank for name in unequal}
    solve = lambda x: collops.cgls(collops.Identity(8, comm=comm), x, niter=2, **options).x  # noqa: E731
    return (jax.jit(solve) if traced else solve)(x)


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
    "scalings": lambda comm: collops.Sliding(np.eye(2), 8, 8, 2, 0, scalings=mine(comm, 4), comm=comm),
    "assigned, forward": lambda comm: operator(comm) @ assigned(comm),
    "assigned, adjoint": lambda comm: operator(comm).H.H.H @ (operator(comm) @ assigned(comm)),
    "assigned, norm": lambda comm: assigned(comm).norm(),
    "assigned, largest": lambda comm: assigned(comm).norm(np.inf),
    "assigned, sum": lambda comm: assigned(comm).sum(),
    "assigned, dot": lambda comm: assigned(comm).dot(collops.ones(replicated(comm), comm=comm)),
    "assigned, vdot": lambda comm: collops.ones(replicated(comm), comm=comm).vdot(assigned(comm)),
    "assigned, halo": lambda comm: assigned(comm).halo(1),
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
    "Nuclear": lambda comm: collops.Nuclear((2, 4), 1 + comm.rank).prox(collops.ones(replicated(comm), comm=comm), 1.0),
    "compiled": lambda comm: jax_solution(comm, damp=True),
    "compiled, traced": lambda comm: jax_solution(comm, traced=True, atol=True),
    "BROADCAST": lambda comm: of_compat(comm, "BROADCAST"),
    "UNSAFE_BROADCAST": lambda comm: of_compat(comm, "UNSAFE_BROADCAST"),
}


def check_unequal(comm, function, *arguments):
    with pytest.raises((LayoutError, InputError)) as caught:
        function(*arguments)
    assert caught.value.on_all_ranks
    assert "differ" in str(caught.value)
    assert float(collops.ones(comm.size, comm=comm).sum()) == comm.size


@pytest.mark.parametrize("name", UNEQUAL)
def test_unequal_copies(checked, name):
    check_unequal(checked, UNEQUAL[name], checked)


NUMBERS = {
    "times": lambda x, number: x * number,
    "float": lambda x, number: float(number) / x,
    "NumPy": lambda x, number: x - np.float32(number),
    "complex": lambda x, number: x + 1j * number,
    "0-d": lambda x, number: x + np.array(number),
    "+=": added,
    "+= float": lambda x, number: added(x, float(number)),
    "comparison": lambda x, number: x > number,
    "ufunc": np.maximum,
    "fill": lambda x, number: x.fill(number),
    "axpby": lambda x, number: collops.axpby(number, x, 1.0, x),
    "axpby, pair": lambda x, number: collops.axpby(1.0, x, (-1.0, np.array(1.0 + number)), x),
    "update": lambda x, number: collops.array.update_solution_and_direction(x, number, x.copy(), 1.0, x.copy()),
    "where": lambda x, number: collops.where(x > 0, x, float(number)),
    "full": lambda x, number: collops.full(x.layout, number, comm=x.comm),
    "full_like": collops.array.full_like,
    "random": lambda x, number: collops.random(x.layout, seed=number, comm=x.comm),
    "Box": lambda x, number: collops.Box(0, 1 + number).prox(x, 1.0),
    "Box of arrays": lambda x, number: collops.Box(x, 1 + number).prox(x, 1.0),
    "L1": lambda x, number: collops.L1(1 + number).prox(x, 1.0),
    "L2": lambda x, number: collops.L2().prox(x, 1.0 + number),
    "Euclidean": lambda x, number: collops.Euclidean(1 + number).proxdual(x, 1.0),
    "L21": lambda x, number: collops.L21(1, 1 + number).prox(collops.StackedArray([x]), 1.0),
    "scaled": lambda x, number: (2.0 + number) * collops.Identity(x.layout, comm=x.comm) @ x,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_unequal_numbers(checked, name):
    """A number of each rank's own would be multiplied, for instance, with its part of a split array, or its copy."""
    for layout in (replicated(checked), Layout.split(8, checked.size)):
        x = collops.ones(layout, comm=checked)
        NUMBERS[name](x, 1)  # the same on all ranks
        check_unequal(checked, NUMBERS[name], x, checked.rank)
    both = collops.StackedArray([x, x])
    if name in ("times", "+= float", "where", "axpby"):
        check_unequal(checked, NUMBERS[name], both, checked.rank)


def test_numbers_of_stacks(checked):
    """Ranks agree equally often where the parts of a stack follow each other in memory on some of them only."""
    rows = [16] + [15] * (checked.size - 1)
    layout = collops.StackedLayout([Layout.split(sum(rows), checked.size, sizes=rows)] * 2)
    x, y = (collops.empty(layout, comm=checked) for _ in range(2))
    assert (x._local_block is None) == (checked.rank > 0)
    x.fill(1.0)
    y.fill(2.0)
    y = collops.axpby(3.0, x, 1.0, y, out=y)
    y, square = collops.array.axpby_and_square(1.0, x, 1.0, y, out=y)
    assert float(collops.dots(square)[0]) == 36 * x.size


def test_numbers_of_groups(checked):
    """Each group of a mask has its own numbers, and one rank of a communicator of its own any."""
    x = collops.ones(Layout.replicated(3, checked.size, mask=range(checked.size)), comm=checked)
    assert float((x * checked.rank).sum()) == 3 * checked.rank
    alone = checked.split(checked.rank)
    assert float((collops.ones(2, comm=alone) * (1.0 + checked.rank)).sum()) == 2 + 2 * checked.rank


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
    padded = np.full(8 * 16, checked.rank, np.uint8).view(np.longdouble)
    np.add(np.arange(8), 0.5, out=padded)  # leaves the padding, which has no value
    freed = [np.full(8 * 16, checked.rank + 1, np.uint8) for _ in range(9)]
    del freed  # temporary arrays get this memory, and keep it as their padding
    collops.from_local(padded, replicated(checked), comm=checked).check_replicated()
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
