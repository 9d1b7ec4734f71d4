"""Ranks never disagree on the order of collectives, whatever they compute besides and however calls are nested."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import collops
import collops.jax as cj
from collops.jax.communicators import NativeComm, native_comm
from tests.jax import programs
from tests.jax.checks import close

PROGRAMS = int(os.environ.get("COLLOPS_RANDOM_PROGRAMS", "12"))  # 1000 take minutes; each rank count has its own
GROUP = 3  # programs in one compilation


@pytest.mark.parametrize("first", range(0, PROGRAMS, GROUP))
def test_random_programs(comm, first):
    seeds = [1000 * comm.size + seed for seed in range(first, min(first + GROUP, PROGRAMS))]
    programs.check_programs(comm, seeds, jax.jit if first % 2 else cj.jit, calls=2)


@pytest.mark.parametrize("seed", range(2))
def test_derivatives_of_random_programs(comm, seed):
    """A program without maxima and loops of unknown length is linear: its reverse derivative passes a dot test.

    In the derivative of a scan JAX moves what is the same in every turn out of the loop, so that all ranks have to
    agree on what changes in a turn: work that is tied to operands of collectives on some ranks only is left out here.
    """

    def linear(steps):
        kept = [step for step in steps if step[0] == "do" and step[1] != "max"]
        return kept + [(nest, linear(inner), n) for nest, inner, n in (s for s in steps if s[0] not in ("do", "while"))]

    steps = linear([step for s in range(3) for step in programs.random_program(7 * seed + s)])
    x, y = (tuple(programs.registers_of(comm.size, number)[comm.rank]) for number in (1, 2))

    @cj.jit
    def both(x, y):
        result, pull = jax.vjp(lambda x: programs.run(comm, steps, x, seed, tied=False), x)
        return result, pull(y)[0]

    forward, backward = both(x, y)
    dots = [np.vdot(jnp.concatenate(a), jnp.concatenate(b)) for a, b in ((forward, y), (x, backward))]
    close(*comm.allreduce(np.array(dots)))


def test_calls_one_after_the_other(comm):
    """Programs that were only dispatched, of both kinds and eager, with values that do not depend on each other."""
    small, large = jnp.ones(2), jnp.ones((200, 200))
    slow = cj.jit(lambda x: cj.allreduce(x @ x @ x, "max", comm=comm))
    quick = cj.jit(lambda x: cj.allreduce(x, comm=comm))
    of_jax = jax.jit(lambda x: cj.allreduce(x, "prod", comm=comm))
    results = []
    for turn in range(6):
        if turn % comm.size == comm.rank:
            jnp.linalg.norm(large @ large)  # others are ahead
        results += [slow(large), quick(small), cj.allreduce(small, "min", comm=comm), of_jax(small), quick(large)]
    for a, b, c, d, e in zip(*[iter(results)] * 5, strict=True):
        found = [float(jnp.ravel(value)[0]) for value in (a, b, c, d, e)]
        assert found == [40000.0, comm.size, 1.0, 1.0, comm.size]


def test_results_that_only_some_ranks_use(comm):
    """What a rank ignores it takes part in all the same, messages without results and barriers included."""

    @cj.jit
    def program(x):
        unused = cj.allreduce(x, comm=comm)
        cj.send(x + 1, (comm.rank + 1) % comm.size, comm=comm)
        cj.barrier(comm=comm)
        jax.lax.fori_loop(0, 3, lambda i, y: (cj.barrier(comm=comm), y)[1], x)
        y = cj.recv(x, (comm.rank - 1) % comm.size, comm=comm)
        return y + unused if comm.rank == 0 else y

    expected = 1.0 + (comm.rank - 1) % comm.size + (sum(range(comm.size)) if comm.rank == 0 else 0)
    np.testing.assert_array_equal(program(jnp.full(4, float(comm.rank))), np.full(4, expected))
    text = program.lower(jnp.ones(4)).as_text()
    assert text.count("@collops_host_barrier") == 2


def test_gradient_of_a_loss_on_one_rank(comm):
    """The loss of other ranks does not depend on the collective, but its derivative needs them."""
    gradient = jax.grad(lambda x: cj.allreduce(x, comm=comm).sum() * (comm.rank == 0))(jnp.ones(3))
    np.testing.assert_array_equal(gradient, np.ones(3))


def test_two_communicators(comm):
    part = comm.split(comm.rank % 2)

    @cj.jit
    def program(x):
        return cj.allreduce(x, comm=part), cj.allreduce(x, "max", comm=comm), cj.allreduce(2 * x, comm=part)

    within, across, twice = program(jnp.float32(comm.rank))
    members = [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2]
    assert (float(within), float(across), float(twice)) == (sum(members), comm.size - 1, 2 * sum(members))


def test_no_effect_is_left(comm):
    """Otherwise JAX would start the program by Python code; with ``jax.jit`` it does."""
    plain = jax.make_jaxpr(lambda x: cj.allreduce(x, comm=comm))(1.0)
    assert plain.effects
    program = cj.jit(lambda x: cj.allreduce(x, comm=comm))
    in_turn = jax.make_jaxpr(lambda token, x: program._in_turn(x, _collops_token=token))
    assert not in_turn(jnp.zeros(0, bool), 1.0).effects
    assert not jax.make_jaxpr(program._alone)(1.0).effects


def test_what_is_recorded(comm, monkeypatch):
    """On GPUs XLA may launch a program's collectives as a whole, but not those in a branch."""
    found = []
    plain = NativeComm.handlers
    monkeypatch.setattr(NativeComm, "handlers", lambda known, *what: found.append(what) or plain(known, *what))

    def total(x):
        return cj.allreduce(x, comm=comm)

    def branch(x):
        return jax.lax.cond(x[0] > 0, jax.jit(total), lambda x: x, x)

    def loop(step):
        return lambda x: jax.lax.scan(lambda x, _: (step(x), None), x, None, length=2)[0]

    def after_branch(x):
        return total(jax.lax.cond(x[0] > 0, lambda x: -x, lambda x: x, x))

    for program, expected in ((loop(total), True), (after_branch, True), (branch, False), (loop(branch), False)):
        cj.jit(program)(jnp.ones(2))
        assert found == [("cpu", expected)]
        found.clear()
    jax.jit(lambda x: total(2 * x))(jnp.ones(2))
    assert found == [("cpu", False)]


def test_missing_ranks_become_an_error(comm, monkeypatch):
    """Nobody waits for ever inside a program. Who gave up on others does not meet them again on that communicator."""
    native_comm(comm)
    monkeypatch.setenv("COLLOPS_TIMEOUT", "0.2")  # of this communicator alone
    monkeypatch.setattr("collops.comm.failure._GRACE_SECONDS", 1.0)  # the other ranks never answer
    part = comm if comm.control is None else collops.from_mpi4py(comm.control.Dup())
    native_comm(part)
    # With enough work before it, JAX goes on while the program runs: the error comes later, with the results.
    lonely = cj.jit(lambda x: cj.recv((x @ x @ x)[0], comm.size - 1, 9, comm=part))
    if comm.rank == 0:
        reasons = ("nothing was sent",) if comm.size == 1 else ("the deadline is 0.2 s",) * 2
        for reason in reasons:
            with pytest.raises(RuntimeError, match=reason):
                jax.block_until_ready(lonely(jnp.ones((500, 500))))
    assert float(cj.allreduce(jnp.ones(()), comm=comm)) == comm.size
