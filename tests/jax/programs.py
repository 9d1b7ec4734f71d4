"""Random programs of collectives: made from a seed, the same on every rank, with different work around them on each.

A program works on a few registers, arrays of one shape. Its steps mix a collective of one register into another;
registers that have nothing to do with each other leave XLA free to reorder the steps, if nothing else keeps their
order. Steps nest in loops, branches, inner programs, checkpoints and batches. NumPy runs the same steps on the
registers of all ranks at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import collops.jax as cj
from tests.jax.checks import close

SHAPE = (3,)
REGISTERS = 3
COLLECTIVES = ("sum", "max", "bcast", "gathered", "scattered", "ring", "alltoall", "exchange")
NESTS = ("scan", "while", "cond", "jit", "checkpoint", "vmap")
Step = tuple[Any, ...]


def check_programs(comm: Any, seeds: Sequence[int], compile: Callable[..., Any], calls: int) -> None:
    """Compile programs together, and compare what they do with NumPy's results, on other registers at each call."""
    made = [random_program(seed) for seed in seeds]

    def all_of_them(registers: Any) -> Any:
        return [run(comm, steps, own, seed) for steps, own, seed in zip(made, registers, seeds, strict=True)]

    compiled = compile(all_of_them)
    for call in range(calls):
        starts = [registers_of(comm.size, seed + call) for seed in seeds]
        found = compiled([tuple(start[comm.rank]) for start in starts])
        for steps, start, result in zip(made, starts, found, strict=True):
            for mine, expected in zip(result, expect(steps, start)[comm.rank], strict=True):
                close(mine, expected)


def registers_of(size: int, seed: int) -> list[list[np.ndarray]]:
    """Draw the registers of all ranks, indexed by rank and register."""
    return [
        [np.random.default_rng([seed, rank, i]).normal(size=SHAPE) for i in range(REGISTERS)] for rank in range(size)
    ]


def random_program(seed: int) -> list[Step]:
    """Steps: ``("do", collective, from, into, number)`` or ``(nest, steps, number)``."""
    rng = np.random.default_rng(seed)
    return _steps(rng, int(rng.integers(2, 5)), 2)


def _steps(rng: Any, count: int, depth: int) -> list[Step]:
    steps: list[Step] = []
    for _ in range(count):
        if depth and rng.random() < 0.35:
            nest = NESTS[rng.integers(len(NESTS))]
            steps.append((nest, _steps(rng, int(rng.integers(1, 3)), depth - 1), int(rng.integers(1, 4))))
        else:
            source, target = rng.integers(REGISTERS, size=2)
            steps.append(
                ("do", COLLECTIVES[rng.integers(len(COLLECTIVES))], int(source), int(target), int(rng.integers(8)))
            )
    return steps


def run(comm: Any, steps: list[Step], registers: tuple[Any, ...], seed: int, tied: bool = True) -> tuple[Any, ...]:
    """Run a program on this rank's registers, traced or not.

    The work that a rank does besides is `tied` where some of its results (all 0) are added to a register.
    """
    for place, step in enumerate(steps):
        registers = _distracted(comm, registers, seed + place, tied)
        registers = _run_step(comm, step, registers, seed, tied)
    return registers


def _run_step(comm: Any, step: Step, registers: tuple[Any, ...], seed: int, tied: bool) -> tuple[Any, ...]:
    if step[0] == "do":
        _, collective, source, target, number = step
        mixed = list(registers)
        mixed[target] = 0.5 * mixed[target] + 0.25 * _collective(comm, collective, registers[source], number)
        return tuple(mixed)
    nest, steps, number = step

    def inside(registers: tuple[Any, ...]) -> tuple[Any, ...]:
        return run(comm, steps, registers, seed + number, tied)

    if nest == "scan":
        return jax.lax.scan(lambda carry, _: (inside(carry), None), registers, None, length=number)[0]
    if nest == "while":
        return jax.lax.while_loop(
            lambda state: state[0] < number, lambda state: (state[0] + 1, inside(state[1])), (0, registers)
        )[1]
    if nest == "cond":
        return jax.lax.cond(number > 1, inside, lambda registers: registers, registers)
    if nest == "vmap":
        both = jax.tree.map(lambda x: jnp.stack([x, 2 * x], axis=-1), registers)
        both = jax.vmap(inside, in_axes=-1, out_axes=-1)(both)
        return jax.tree.map(lambda x: x[..., 0] + 0.5 * x[..., 1], both)
    return (jax.jit if nest == "jit" else jax.checkpoint)(inside)(registers)


def _collective(comm: Any, name: str, x: Any, number: int) -> Any:
    size, rank = comm.size, comm.rank
    root, shift = number % size, number % 3
    weights = jnp.arange(1.0, size + 1)[:, None] / size
    if name == "sum":
        return cj.allreduce(x, comm=comm)
    if name == "max":
        return cj.allreduce(x, "max", comm=comm)
    if name == "bcast":
        return cj.bcast(x, root, comm=comm)
    if name == "gathered":
        return jnp.sum(weights * cj.allgather(x, comm=comm), axis=0)
    if name == "scattered":
        return cj.reduce_scatter(weights * x, comm=comm)
    if name == "alltoall":
        return jnp.sum(cj.alltoall(weights * x, comm=comm), axis=0)
    after, before = (rank + shift) % size, (rank - shift) % size
    if name == "ring":
        return cj.sendrecv(x, 0 * x, before, after, 1, 1, comm=comm)
    first, second = cj.neighbor_exchange([x, 3 * x], [0 * x, 0 * x], [after, before], [before, after], comm=comm)
    return first + second


def _distracted(comm: Any, registers: tuple[Any, ...], seed: int, tied: bool) -> tuple[Any, ...]:
    """Let this rank, and no other, compute something that changes nothing; some of it nobody uses."""
    rng = np.random.default_rng([seed, comm.rank])
    changed = list(registers)
    for _ in range(int(rng.integers(0, 3))):
        which = int(rng.integers(REGISTERS))
        x = jnp.sin(changed[which]) @ jnp.asarray(rng.normal(size=(SHAPE[0], 40)))
        if tied and rng.random() < 0.5:
            changed[which] = changed[which] + 0 * jnp.tanh(x).sum()
    return tuple(changed)


def expect(steps: list[Step], registers: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """Run a program by NumPy on all ranks' registers, indexed by rank and register."""
    for step in steps:
        registers = _expect_step(step, registers)
    return registers


def _expect_step(step: Step, registers: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    if step[0] == "do":
        _, collective, source, target, number = step
        given = np.stack([own[source] for own in registers])
        results = _expect_collective(collective, given, number)
        return [
            [0.5 * x + 0.25 * results[rank] if i == target else x for i, x in enumerate(own)]
            for rank, own in enumerate(registers)
        ]
    nest, steps, number = step
    if nest == "vmap":
        first = expect(steps, registers)
        second = expect(steps, [[2 * x for x in own] for own in registers])
        return [[a + 0.5 * b for a, b in zip(*pair, strict=True)] for pair in zip(first, second, strict=True)]
    times = {"scan": number, "while": number, "cond": int(number > 1)}.get(nest, 1)
    for _ in range(times):
        registers = expect(steps, registers)
    return registers


def _expect_collective(name: str, xs: np.ndarray, number: int) -> np.ndarray:
    size = len(xs)
    root, shift = number % size, number % 3
    weights = np.arange(1.0, size + 1) / size
    whole = {
        "sum": lambda: xs.sum(0),
        "max": lambda: xs.max(0),
        "bcast": lambda: xs[root],
        "gathered": lambda: weights @ xs,
    }
    if name in whole:
        return np.stack([whole[name]()] * size)
    if name in ("scattered", "alltoall"):
        return weights[:, None] * xs.sum(0)
    from_before = np.roll(xs, shift, axis=0)
    return from_before if name == "ring" else from_before + 3 * np.roll(xs, -shift, axis=0)
