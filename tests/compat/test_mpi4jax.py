"""Programs of mpi4jax on ours and, where it is installed, on mpi4jax itself: both against NumPy."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

if importlib.util.find_spec("jax") is None or importlib.util.find_spec("mpi4py") is None:
    pytest.skip("JAX or mpi4py is not installed", allow_module_level=True)
if importlib.util.find_spec("collops_native") is None and "COLLOPS_NATIVE" not in os.environ:
    pytest.skip("the native library is not built: pip install ./native", allow_module_level=True)

import jax
import jax.numpy as jnp
from jax import lax
from mpi4py import MPI

import collops.compat.mpi4jax as ours
from collops.errors import InputError, LayoutError, UnsupportedTypeError

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
LEFT, RIGHT = (RANK - 1) % SIZE, (RANK + 1) % SIZE
BEFORE, AFTER = (RANK - 1 if RANK else MPI.PROC_NULL), (RANK + 1 if RANK < SIZE - 1 else MPI.PROC_NULL)
NEEDS_OTHERS = pytest.mark.skipif(SIZE == 1, reason="these messages need another rank")
WITH_PEER = pytest.mark.skipif(importlib.util.find_spec("mpi4jax") is None, reason="mpi4jax is not installed")


@pytest.fixture(params=["collops", pytest.param("mpi4jax", marks=WITH_PEER)])
def package(request, jax_double):
    """Both packages, which run the same programs."""
    return ours if request.param == "collops" else importlib.import_module("mpi4jax")


@pytest.fixture(params=["eager", "jit"])
def compiled(request):
    return jax.jit if request.param == "jit" else lambda function: function


def values(rank):
    return np.arange(1.0, 7.0).reshape(2, 3) * (rank + 1)


EVERY = np.stack([values(rank) for rank in range(SIZE)])
ROOT = SIZE - 1
COLLECTIVES = {
    "allgather": (lambda m, x: m.allgather(x), EVERY),
    "allreduce": (lambda m, x: m.allreduce(x, op=MPI.SUM), EVERY.sum(0)),
    "allreduce on a communicator": (lambda m, x: m.allreduce(x, MPI.SUM, comm=COMM), EVERY.sum(0)),
    "alltoall": (lambda m, x: m.alltoall(jnp.stack([x + r for r in range(SIZE)])), EVERY + RANK),
    "bcast": (lambda m, x: m.bcast(x, ROOT), EVERY[ROOT]),
    "gather": (lambda m, x: m.gather(x, root=ROOT), EVERY if RANK == ROOT else EVERY[RANK]),
    "reduce": (lambda m, x: m.reduce(x, MPI.SUM, ROOT), EVERY.sum(0) if RANK == ROOT else EVERY[RANK]),
    "scan": (lambda m, x: m.scan(x, op=MPI.SUM), EVERY[: RANK + 1].sum(0)),
    "scatter": (
        lambda m, x: m.scatter(jnp.stack([x * r for r in range(SIZE)]) if RANK == ROOT else x, ROOT),
        EVERY[ROOT] * RANK,
    ),
    "sendrecv": (lambda m, x: m.sendrecv(x, x, source=LEFT, dest=RIGHT), EVERY[LEFT]),
    "sendrecv with a tag": (lambda m, x: m.sendrecv(x, x, LEFT, RIGHT, sendtag=9), EVERY[LEFT]),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(package, compiled, name):
    program, expected = COLLECTIVES[name]
    result = compiled(lambda x: program(package, x))(jnp.asarray(values(RANK)))
    np.testing.assert_allclose(result, expected, rtol=1e-15)


def test_barrier_and_nothing_from_send(package, compiled):
    def program(x):
        assert not package.barrier() and not package.barrier(comm=COMM)
        if RANK % 2:
            assert not package.send(x, RANK - 1)
        elif RANK + 1 < SIZE:
            x = package.recv(x, RANK + 1)
        package.barrier()
        return x

    expected = EVERY[RANK + 1] if RANK % 2 == 0 and RANK + 1 < SIZE else EVERY[RANK]
    np.testing.assert_array_equal(compiled(program)(jnp.asarray(values(RANK))), expected)


INTEGERS = [np.array([12, 7, 0, 1], np.int32) * (rank + 1) + rank for rank in range(SIZE)]
TRUTHS = [np.array([True, rank % 2 == 0, False, rank == 0]) for rank in range(SIZE)]
REDUCTIONS = {
    "SUM": (np.add, INTEGERS),
    "PROD": (np.multiply, INTEGERS),
    "MIN": (np.minimum, INTEGERS),
    "MAX": (np.maximum, INTEGERS),
    "BAND": (np.bitwise_and, INTEGERS),
    "BOR": (np.bitwise_or, INTEGERS),
    "BXOR": (np.bitwise_xor, INTEGERS),
    "LAND": (np.logical_and, TRUTHS),
    "LOR": (np.logical_or, TRUTHS),
    "LXOR": (np.logical_xor, TRUTHS),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(package, compiled, name):
    ufunc, arrays = REDUCTIONS[name]
    op = getattr(MPI, name)
    program = compiled(lambda x: (package.allreduce(x, op), package.reduce(x, op, 0), package.scan(x, op)))
    everything, on_root, before = program(jnp.asarray(arrays[RANK]))
    np.testing.assert_array_equal(everything, ufunc.reduce(arrays))
    np.testing.assert_array_equal(on_root, ufunc.reduce(arrays) if RANK == 0 else arrays[RANK])
    np.testing.assert_array_equal(before, ufunc.reduce(arrays[: RANK + 1]))
    assert everything.dtype == on_root.dtype == before.dtype == arrays[RANK].dtype


def test_products_of_complex_numbers(package):
    factors = [np.array([1 + 2j, 3 - 1j]) * (rank + 1) for rank in range(SIZE)]
    np.testing.assert_allclose(package.allreduce(jnp.asarray(factors[RANK]), MPI.PROD), np.prod(factors, axis=0))


@pytest.mark.parametrize("name, argument, extreme", [("MAXLOC", np.argmax, np.max), ("MINLOC", np.argmin, np.min)])
def test_locations_of_extremes(jax_double, compiled, name, argument, extreme):
    """Pairs of a value and its rank; of equal values the first. In mpi4jax, MPI refuses arrays of numbers here."""
    column = np.array([[3.0, (5 * rank) % 3, -rank] for rank in range(SIZE)])
    pairs = jnp.stack([column[RANK], np.full(3, RANK)], axis=-1)
    found = compiled(lambda x: ours.allreduce(x, getattr(MPI, name)))(pairs)
    np.testing.assert_array_equal(found, np.stack([extreme(column, axis=0), argument(column, axis=0)], axis=-1))


def weights(rank):
    return np.cos(np.arange(6.0) + rank).reshape(2, 3)


def test_gradient_of_a_sum(package, compiled):
    """The cotangent of a sum is that of this rank's result."""

    def loss(x):
        return jnp.sum(package.allreduce(x**2, MPI.SUM) * weights(RANK))

    gradient = compiled(jax.grad(loss))(jnp.asarray(values(RANK)))
    np.testing.assert_allclose(gradient, 2 * values(RANK) * weights(RANK), rtol=1e-14)


def test_tangent_and_batch_of_a_sum(package, compiled):
    x, t = jnp.asarray(values(RANK)), jnp.asarray(weights(RANK))
    y, tangent = compiled(lambda x, t: jax.jvp(lambda x: package.allreduce(x, MPI.SUM), (x,), (t,)))(x, t)
    np.testing.assert_allclose(y, EVERY.sum(0), rtol=1e-14)
    np.testing.assert_allclose(tangent, sum(weights(rank) for rank in range(SIZE)), rtol=1e-14, atol=1e-15)
    batched = compiled(jax.vmap(lambda x: package.allreduce(x, MPI.SUM), in_axes=1, out_axes=1))(x)
    np.testing.assert_allclose(batched, EVERY.sum(0), rtol=1e-14)


def test_transpose_of_a_sum_is_the_identity_and_twice_the_sum(package):
    def once(x):
        (y,) = jax.linear_transpose(lambda x: package.allreduce(x, MPI.SUM), x)(x)
        return y

    x = jnp.asarray(values(RANK))
    np.testing.assert_array_equal(once(x), values(RANK))
    np.testing.assert_allclose(jax.linear_transpose(once, x)(x)[0], EVERY.sum(0), rtol=1e-15)


@pytest.mark.parametrize("tag", [0, 5])
def test_gradient_and_batch_of_a_message(package, compiled, tag):
    """The cotangent travels back, also where the message was received with any tag."""

    def ring(x):
        return package.sendrecv(x, x, source=LEFT, dest=RIGHT, sendtag=tag)

    x = jnp.asarray(values(RANK))
    gradient = compiled(jax.grad(lambda x: jnp.sum(ring(x**2) * weights(RANK))))(x)
    np.testing.assert_allclose(gradient, 2 * values(RANK) * weights(RIGHT), rtol=1e-14)
    np.testing.assert_array_equal(compiled(jax.vmap(ring))(x), EVERY[LEFT])


def test_derivatives_that_mpi4jax_refuses(jax_double):
    """Tangents of messages, derivatives of other reductions, gradients of the other collectives."""
    x, t = jnp.asarray(values(RANK)), jnp.asarray(weights(RANK))
    _, tangent = jax.jvp(lambda x: ours.sendrecv(x, x, source=LEFT, dest=RIGHT), (x,), (t,))
    np.testing.assert_array_equal(tangent, weights(LEFT))
    _, tangent = jax.jvp(lambda x: ours.allreduce(x, MPI.MAX), (x,), (t,))
    np.testing.assert_array_equal(tangent, weights(SIZE - 1))
    gradient = jax.grad(lambda x: jnp.sum(ours.bcast(x, ROOT) * weights(RANK)))(x)
    expected = sum(weights(rank) for rank in range(SIZE)) if RANK == ROOT else np.zeros((2, 3))
    np.testing.assert_allclose(gradient, expected, rtol=1e-14, atol=1e-15)
    gradient = jax.grad(lambda x: jnp.sum(ours.scan(x, MPI.SUM) * weights(RANK)))(x)
    np.testing.assert_allclose(gradient, sum(weights(rank) for rank in range(RANK, SIZE)), rtol=1e-14, atol=1e-15)
    gradient = jax.grad(lambda x: jnp.sum(ours.allgather(x)[RIGHT] * weights(RANK)))(x)
    np.testing.assert_allclose(gradient, weights(LEFT), rtol=1e-14, atol=1e-15)


def test_programs_that_mpi4jax_refuses(jax_double):
    """Batches of other collectives, rematerialisation, half precision, and lists, which are pytrees."""
    x = jnp.asarray(values(RANK))
    np.testing.assert_array_equal(jax.vmap(ours.allgather)(x), EVERY.swapaxes(0, 1))
    gradient = jax.grad(jax.checkpoint(lambda x: jnp.sum(ours.allreduce(jnp.sin(x), MPI.SUM) ** 2)))(x)
    np.testing.assert_allclose(gradient, 2 * np.sin(EVERY).sum(0) * np.cos(values(RANK)), rtol=1e-13)
    half = ours.allreduce(x.astype("float16"), MPI.SUM)
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, EVERY.sum(0))
    one, two = ours.allreduce([1.5, 2.0 * RANK], MPI.SUM)
    assert (one, two) == (1.5 * SIZE, SIZE * (SIZE - 1))


@NEEDS_OTHERS
def test_any_source_any_tag_and_status(package, compiled):
    """Rank 0 receives from all others in the order of arrival; one status serves many calls."""
    status = MPI.Status()
    receive = compiled(lambda x: package.recv(x, status=status))
    x = jnp.asarray(values(RANK))
    if RANK > 0:
        compiled(lambda x: package.send(x, 0, tag=40 + RANK))(x)
        return
    found = {}
    for _ in range(SIZE - 1):
        message = np.asarray(receive(x))
        found[status.Get_source()] = status.Get_tag()
        np.testing.assert_array_equal(message, EVERY[status.Get_source()])
        assert status.Get_count(MPI.DOUBLE) == message.size
    assert found == {rank: 40 + rank for rank in range(1, SIZE)}


@NEEDS_OTHERS
def test_default_tag_of_an_exchange(package, compiled):
    status = MPI.Status()
    exchange = compiled(lambda x: package.sendrecv(x, x, LEFT, RIGHT, status=status))
    np.testing.assert_array_equal(exchange(jnp.asarray(values(RANK))), EVERY[LEFT])
    assert status.Get_tag() == 0


@NEEDS_OTHERS
def test_status_of_an_exchange(package, compiled):
    status = MPI.Status()
    exchange = compiled(lambda x: package.sendrecv(x, x, LEFT, RIGHT, sendtag=3 + RANK, status=status))
    np.testing.assert_array_equal(exchange(jnp.asarray(values(RANK))), EVERY[LEFT])
    assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.DOUBLE)) == (LEFT, 3 + LEFT, 6)


def test_tags_choose_among_messages_to_oneself(jax_double):
    """On one rank messages wait for a receive too; a receive of any tag takes the oldest."""
    alone = MPI.COMM_SELF
    for tag in (1, 2, 3):
        ours.send(jnp.full(2, float(tag)), 0, tag=tag, comm=alone)
    order = [ours.recv(jnp.zeros(2), 0, tag=2, comm=alone)]
    order += [ours.recv(jnp.zeros(2), comm=alone), ours.recv(jnp.zeros(2), MPI.ANY_SOURCE, comm=alone)]
    assert [float(message[0]) for message in order] == [2.0, 1.0, 3.0]


def test_messages_to_nobody(package, compiled):
    """A chain without a ring: the ends receive from and send to nobody."""

    def shifted(x):
        package.send(x, MPI.PROC_NULL)
        return package.sendrecv(x, x, source=BEFORE, dest=AFTER)

    result = compiled(shifted)(jnp.asarray(values(RANK)))
    if RANK > 0:
        np.testing.assert_array_equal(result, EVERY[RANK - 1])


def test_what_comes_from_nobody(jax_double, compiled):
    """The given array, as a receive buffer in MPI; in mpi4jax memory that nothing has been written to."""
    x = jnp.asarray(values(RANK))
    np.testing.assert_array_equal(compiled(lambda x: ours.recv(x, MPI.PROC_NULL))(x), values(RANK))
    first = compiled(lambda x: ours.sendrecv(x, 2 * x, source=BEFORE, dest=AFTER))(x)
    np.testing.assert_array_equal(first, EVERY[RANK - 1] if RANK else 2 * values(0))

    def loss(x):
        return jnp.sum(ours.sendrecv(x, jnp.zeros((2, 3)), source=BEFORE, dest=AFTER) * weights(RANK))

    expected = weights(RANK + 1) if RANK < SIZE - 1 else np.zeros((2, 3))
    np.testing.assert_array_equal(compiled(jax.grad(loss))(x), expected)
    # Rematerialisation leaves out messages that the result does not depend on.
    np.testing.assert_array_equal(compiled(jax.grad(jax.checkpoint(loss)))(x), expected)


@NEEDS_OTHERS
def test_status_of_a_message_from_nobody(package, compiled):
    status = MPI.Status()
    compiled(lambda x: package.recv(x, MPI.PROC_NULL, status=status))(jnp.ones(3)).block_until_ready()
    assert (status.Get_source(), status.Get_tag()) == (MPI.PROC_NULL, MPI.ANY_TAG)
    assert status.Get_count(MPI.DOUBLE) == 0


def test_halves_of_the_world(package, compiled):
    """Communicators of mpi4py: each half reduces among its own ranks."""
    half = COMM.Split(RANK % 2, RANK)
    total = compiled(lambda x: package.allreduce(x, MPI.SUM, comm=half))(jnp.asarray(values(RANK)))
    np.testing.assert_allclose(total, EVERY[RANK % 2 :: 2].sum(0), rtol=1e-15)
    half.Free()


def test_tokens_of_old_programs(jax_double, compiled):
    """Programs for versions before 0.8 pass a token, and unpack a result and a token."""

    def program(x):
        token = lax.create_token()
        x, token = ours.allreduce(x, op=MPI.SUM, token=token)
        token = ours.barrier(token=token)
        y, token = ours.sendrecv(x * (RANK + 1), x, source=LEFT, dest=RIGHT, token=token)
        if RANK % 2:
            token = ours.send(y, RANK - 1, token=token)
        elif RANK + 1 < SIZE:
            _, token = ours.recv(y, RANK + 1, token=token)
        parts, token = ours.allgather(y, comm=COMM, token=token)
        first, token = ours.bcast(parts, root=0, token=token)
        return first

    expected = np.stack([EVERY.sum(0) * ((rank - 1) % SIZE + 1) for rank in range(SIZE)])
    np.testing.assert_allclose(compiled(program)(jnp.asarray(values(RANK))), expected, rtol=1e-15)
    assert ours.reduce(jnp.ones(2), MPI.SUM, 0, token=None)[1] is None


ALLTOALL = rf"Alltoall input must have shape \(nproc, ...\).*{SIZE} blocks"  # mpi4jax's words, then ours
BAD = {
    "a user's operation": (UnsupportedTypeError, "user has defined", lambda x: ours.allreduce(x, OPERATION)),
    "replace": (UnsupportedTypeError, "no reduction", lambda x: ours.allreduce(x, MPI.REPLACE)),
    "bits of floats": (UnsupportedTypeError, "integers", lambda x: ours.allreduce(x, MPI.BAND)),
    "logic of floats": (UnsupportedTypeError, "integers", lambda x: ours.scan(x, MPI.LAND)),
    "order of complex numbers": (UnsupportedTypeError, "complex", lambda x: ours.scan(x + 1j, MPI.MAX)),
    "no pairs": (UnsupportedTypeError, "pairs", lambda x: ours.reduce(x, MPI.MAXLOC, 0)),
    "an average": (UnsupportedTypeError, "scan", lambda x: ours.scan(x, "avg")),
    "a root outside": (InputError, "root", lambda x: ours.bcast(x, SIZE)),
    "a root that is no number": (InputError, "root", lambda x: ours.gather(x, None)),  # pyright: ignore[reportArgumentType]
    "a rank outside": (InputError, "source", lambda x: ours.recv(x, SIZE)),
    "a negative tag": (InputError, "tag", lambda x: ours.send(x, 0, tag=-77)),
    "a communicator by name": (InputError, "communicator", lambda x: ours.allreduce(x, MPI.SUM, comm="world")),
    "a status of one's own": (InputError, "status", lambda x: ours.recv(x, 0, status={})),
    "too many blocks": (LayoutError, ALLTOALL, lambda x: ours.alltoall(jnp.ones((SIZE + 1, 2)))),
    "no blocks": (LayoutError, ALLTOALL, lambda x: ours.alltoall(jnp.ones(()))),
    "a text": (TypeError, "not a valid JAX", lambda x: ours.allreduce("text", MPI.SUM)),
    "a tangent from anyone": (InputError, "derivative", lambda x: jax.jvp(ours.recv, (x,), (x,))),
}
OPERATION = MPI.Op.Create(lambda a, b, datatype: None)


@pytest.mark.parametrize("name", BAD)
def test_bad_input(jax_double, name):
    """The same error on every rank before anything is sent, so that the next call works."""
    kind, text, call = BAD[name]
    with pytest.raises(kind, match=text):
        call(jnp.ones(3))
    assert float(ours.allreduce(1.0, MPI.SUM)) == SIZE


def test_scatter_of_a_wrong_size(jax_double):
    """As in mpi4jax, the root raises the error, without a message: other ranks do not know the shape."""
    if RANK == 0:
        for shape in ((SIZE + 1, 2), ()):
            with pytest.raises(LayoutError, match=r"Scatter input must have shape \(nproc, ...\).*blocks"):
                ours.scatter(jnp.ones(shape), 0)
    assert float(ours.allreduce(1.0, MPI.SUM)) == SIZE


@WITH_PEER
def test_names_and_arguments():
    peer = importlib.import_module("mpi4jax")
    assert sorted(ours.__all__) == sorted(peer.__all__)
    assert peer.__version__.startswith(ours.__version__)
    for name in peer.__all__:
        theirs, here = (inspect.signature(getattr(module, name)).parameters.values() for module in (peer, ours))
        assert [(p.name, p.kind) for p in theirs] == [(p.name, p.kind) for p in here]
        defaults = [[p.default for p in parameters if p.name != "token"] for parameters in (theirs, here)]
        assert defaults[0] == defaults[1], name


def test_uncompiled_calls_compile_once(jax_double):
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
    x = jnp.asarray(values(RANK))
    ours.allreduce(x * 1j, MPI.SUM)
    assert any("backend_compile" in event for event in compiled)
    compiled.clear()
    for _ in range(3):
        ours.allreduce(x * 1j, MPI.SUM)
    assert not any("backend_compile" in event for event in compiled)


@pytest.mark.skipif(SIZE > 1, reason="several ranks fill in the status")
def test_status_on_one_rank(jax_double):
    with pytest.raises(InputError, match="several ranks"):
        ours.recv(jnp.ones(3), 0, status=MPI.Status())


def test_support_of_devices(jax_double):
    assert ours.has_cuda_support() is (jax.default_backend() == "gpu")
    assert ours.has_sycl_support() is False


def test_messages_of_mpi4py_are_separate(jax_double):
    """A message of mpi4py on the same communicator is not received here: ours travel on a duplicate."""
    request = COMM.isend("mpi4py's", RIGHT, tag=0)
    received = ours.sendrecv(jnp.asarray(values(RANK)), jnp.zeros((2, 3)), source=LEFT, dest=RIGHT, comm=COMM)
    np.testing.assert_array_equal(received, EVERY[LEFT])
    assert COMM.recv(source=LEFT, tag=0) == "mpi4py's"
    request.wait()


# A program from end to end: waves on shallow water between two walls, periodic along x, with its rows split over ranks.

ROWS, COLUMNS, STEPS, RATE = 4 * SIZE + 2, 16, 30, 0.3


def bump():
    y, x = np.mgrid[0:ROWS, 0:COLUMNS]
    return np.exp(-0.1 * ((y - ROWS / 3) ** 2 + (x - COLUMNS / 2) ** 2))


def waves(h, row_after, row_before, total, xp, repeat):
    """Return the heights after all steps, and their energy. The first two functions get a row from a neighbour."""

    def step(state):
        h, u, v = state
        u = u - RATE * (xp.roll(h, -1, 1) - h)
        v = v - RATE * (xp.concatenate([h[1:], row_after(h)]) - h)
        flow = v - xp.concatenate([row_before(v), v[:-1]])
        return h - RATE * (u - xp.roll(u, 1, 1) + flow), u, v

    h, u, v = repeat(step, (h, xp.zeros_like(h), xp.zeros_like(h)))
    return h, total(xp.sum(h**2 + u**2 + v**2))


def distributed_waves(package, h):
    def row_after(h):
        row = package.sendrecv(h[:1], h[-1:], source=AFTER, dest=BEFORE)
        return h[-1:] if AFTER == MPI.PROC_NULL else row  # a wall: no slope

    def row_before(v):
        row = package.sendrecv(v[-1:], v[:1], source=BEFORE, dest=AFTER)
        return jnp.zeros_like(v[:1]) if BEFORE == MPI.PROC_NULL else row  # a wall: no flow

    def repeat(step, state):
        return lax.fori_loop(0, STEPS, lambda _, state: step(state), state)

    return waves(h, row_after, row_before, lambda e: package.allreduce(e, MPI.SUM), jnp, repeat)


def serial_waves(h, xp):
    def repeat(step, state):
        for _ in range(STEPS):
            state = step(state)
        return state

    return waves(h, lambda h: h[-1:], lambda v: xp.zeros_like(v[:1]), lambda e: e, xp, repeat)


def own_rows():
    bounds = np.linspace(0, ROWS, SIZE + 1).astype(int)
    return slice(bounds[RANK], bounds[RANK + 1])


def test_shallow_water(package):
    heights, energy = serial_waves(bump(), np)
    found, total = jax.jit(lambda h: distributed_waves(package, h))(jnp.asarray(bump()[own_rows()]))
    assert np.abs(heights - bump()).max() > 0.3
    np.testing.assert_allclose(found, heights[own_rows()], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(total, energy, rtol=1e-12)


def test_gradient_through_shallow_water(jax_double):
    """The gradient of the energy at the end by the heights at the start, against JAX on one process."""
    expected = jax.grad(lambda h: serial_waves(h, jnp)[1])(jnp.asarray(bump()))
    found = jax.jit(jax.grad(lambda h: distributed_waves(ours, h)[1]))(jnp.asarray(bump()[own_rows()]))
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found, expected[own_rows()], rtol=1e-11, atol=1e-13)


@pytest.mark.serial
def test_differences_have_their_tests():
    """The page names a test for each difference."""
    page = Path(__file__).parents[2] / "docs" / "from-mpi4jax.md"
    table = page.read_text("utf-8").partition("## What still differs")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[-1] for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 12
    assert [row for row in rows if row.strip("`| ") not in globals()] == []


SCRIPT = """
import sys
import jax
import jax.numpy as jnp
import mpi4jax
from mpi4py import MPI
from functools import partial

@partial(jax.jit, static_argnames="times")
def total(x, times):
    return times * mpi4jax.allreduce(x, op=MPI.SUM)

assert mpi4jax.__name__ == "collops.compat.mpi4jax", mpi4jax
print(total(jnp.ones(2), times=3), jax.grad(lambda x: total(x, times=3)[0])(jnp.ones(2)), type(total).__name__)
"""


@pytest.mark.serial
def test_scripts_run_unchanged(tmp_path):
    """``mpi4jax`` is ours, and ``jax.jit`` is the compiler with the fast dispatch."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "collops.compat.mpi4jax", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[3. 3.] [3. 0.] Jit\n"
