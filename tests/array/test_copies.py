"""Documented copies share no memory with what they were made of, and can be written to."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import collops
from collops import Layout

SIZES = 48, 1 << 21  # JAX reads large unaligned arrays after its call has returned


def buffer(size, offset, dtype=np.float32):
    """An array of ones whose address is `offset` bytes beyond a multiple of 64, which decides how JAX takes it."""
    memory = np.zeros(size * np.dtype(dtype).itemsize + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    array = memory[begin : begin + size * np.dtype(dtype).itemsize].view(dtype)
    array[:] = 1
    return array


def after_a_change(make):
    """The values of arrays that were made of a buffer, which then was used for something else."""
    for size in SIZES:
        for offset in (0, 4, 16):
            for dtype in (np.float32, np.float64):
                given = buffer(size, offset, dtype)
                made = make(given)
                given[:] = 2
                yield np.asarray(getattr(made, "local_array", made))


WAYS = {
    "from_global": lambda given: collops.from_global(given, engine="jax"),
    "replicated": lambda given: collops.from_global(
        given, Layout.replicated(given.shape, collops.world().size), engine="jax"
    ),
    "dtype": lambda given: collops.from_global(given, engine="jax", dtype="float32"),
    "root": lambda given: collops.from_global(given, root=0, engine="jax"),
    "numpy": collops.from_global,
    "rows": lambda given: collops.from_global(given.reshape(-1, 3)[:, ::-1] if given.size % 3 == 0 else given),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_buffer_that_is_used_again(comm, name):
    if name not in ("numpy", "rows"):
        pytest.importorskip("jax")
    for values in after_a_change(WAYS[name]):
        assert np.all(values == 1)


@pytest.mark.parametrize("name", ["allreduce", "bcast", "allgather", "reduce", "pytree"])
def test_collectives_of_buffers(comm, name):
    pytest.importorskip("jax")
    pytest.importorskip("collops_native")
    import collops.jax as cj

    ways = {
        "allreduce": lambda given: cj.allreduce(given, "max"),
        "reduce": lambda given: cj.reduce(given, "max"),
        "pytree": lambda given: cj.allreduce({"a": given}, "max")["a"],
    }
    for values in after_a_change(ways.get(name) or getattr(cj, name)):
        assert np.all(values == 1)


def test_shots_of_one_buffer(comm):
    pytest.importorskip("jax")
    shot, shots = buffer(1 << 20, 0), []
    for number in range(3):
        shot[:] = number
        shots.append(collops.from_global(shot, engine="jax"))
    assert [float(one.max()) for one in shots] == [0, 1, 2]


OPERATORS = {
    "Diagonal": (lambda given: collops.Diagonal(given[:16]), False),
    "filters": (lambda given: collops.NonStationaryConvolve1D(16, given[:6].reshape(2, 3), [4, 12]), False),
    "CSRMatrix": (lambda given: collops.CSRMatrix.from_global(scipy.sparse.csr_array(given.reshape(6, 8))), False),
    "dense": (lambda given: collops.BlockDiag([given[:16].reshape(4, 4)]), True),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_what_operators_keep(comm, name):
    """Diagonals, filters and sparse matrices are copied; a dense matrix is not."""
    make, shared = OPERATORS[name]
    given = buffer(48, 0, np.float64)
    A = make(given)
    given[:] = 3
    x = collops.ones(A.domain)
    assert np.array_equal((A @ x).gather(), (3 if shared else 1) * (make(np.ones(48)) @ x).gather())


@pytest.mark.parametrize("offset", [0, 4, 16])
def test_a_matrix_that_changes_after_its_product(comm, offset):
    pytest.importorskip("jax")
    given = buffer(1 << 20, offset).reshape(1024, 1024)
    A = collops.BlockDiag([given])
    y = A @ collops.ones(A.domain, dtype="float32", engine="jax")
    given[:] = 2
    assert np.all(np.asarray(y.local_array) == 1024)


class Reused:
    """An operator of a user, the identity, which returns the same memory at every call."""

    shape, dtype = (1 << 20, 1 << 20), np.dtype(np.float32)

    def __init__(self):
        self.memory = np.zeros(self.shape[0], self.dtype)

    def matvec(self, x):
        self.memory[:] = x
        return self.memory

    rmatvec = matvec


def test_an_operator_that_uses_its_memory_again(comm):
    pytest.importorskip("jax")
    A = collops.BlockDiag([Reused()])
    given = [collops.full(A.domain, number, dtype="float32", engine="jax") for number in range(4)]
    for apply in (A.forward, A.adjoint):
        made = [apply(x) for x in given]
        assert [(float(y.min()), float(y.max())) for y in made] == [(number, number) for number in range(4)]


def test_numpy_arrays_of_jax_can_be_written_to(comm):
    jnp = pytest.importorskip("jax.numpy")
    values = jnp.arange(12.0).reshape(4, 3)
    for options in ({}, {"dtype": "float64"}, {"root": 0}, {"layout": Layout.replicated((4, 3), comm.size)}):
        x = collops.from_global(values, engine="numpy", **options)
        assert x.local_array.flags.writeable
        x += 1
        assert np.array_equal(x.gather(), np.arange(12.0).reshape(4, 3) + 1)
    assert np.array_equal(values, np.arange(12.0).reshape(4, 3))


@pytest.mark.parametrize("layout", ["split", "replicated"])
def test_results_have_memory_of_their_own(comm, layout):
    a = np.arange(12.0).reshape(4, 3)
    x = collops.from_global(a, getattr(Layout, layout)(a.shape, comm.size))
    expected = x.gather()
    made = [
        *(x.gather(), x.copy().local_array, x.astype("float64").local_array, x.conj().local_array, (+x).local_array),
        *(x.redistribute(other).local_array for other in (x.layout, Layout.replicated(a.shape, comm.size))),
        *(x.halo(1).local_array, x.halo(0).local_array, (collops.Identity(x.layout) @ x).local_array),
        collops.cg(collops.Identity(x.layout), collops.ones(x.layout), x0=x, niter=1).x.local_array,
    ]
    for array in made:
        assert array.flags.writeable and not np.shares_memory(array, x.local_array) and not np.shares_memory(array, a)
        array[...] = -1
    assert np.array_equal(x.gather(), expected)


def test_an_array_of_jax_outlives_the_donation_of_its_source(comm):
    jax = pytest.importorskip("jax")
    values = jax.numpy.arange(12.0)
    x = collops.from_global(values)
    jax.jit(lambda v: v + 1, donate_argnums=0)(values)
    assert np.array_equal(x.gather(), np.arange(12.0))
