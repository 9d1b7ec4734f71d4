"""Derivatives and halos of arrays split along their first axis, and stacks with very little local work."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import isqrt

import numpy as np

from collops.array import Layout, random, zeros
from collops.operators import (
    BlockDiag,
    FirstDerivative,
    Gradient,
    Halo,
    HStack,
    Laplacian,
    SecondDerivative,
    StackedVStack,
    VStack,
)
from collops_bench.operators.case import Case, Size, of_peer, sizes_of
from collops_bench.peers import PEER, Peer
from collops_bench.record import Measurement
from collops_bench.registry import Context
from collops_bench.shared import CHECKED_ITERATIONS, agreement, messages_of_an_iteration, solvers_of_collops
from collops_bench.timing import Plan, interleave_iterations

__all__ = ["cases", "measure_solver", "stacks"]

_OPERATORS = {
    "FirstDerivative": FirstDerivative,
    "SecondDerivative": SecondDerivative,
    "Laplacian": Laplacian,
    "Gradient": Gradient,
}
_STACKS = {"VStack": (VStack, ("model",)), "HStack": (HStack, ("data",)), "BlockDiag": (BlockDiag, ())}
_ON_DEVICES = (16384, 2048)
_IMAGES = ((8192, 4096), (1024, 512))


def cases(context: Context) -> Iterator[Case]:
    """Yield every derivative in every size."""
    comm = context.comm
    for dims, dtype, plan in _arrays(context):
        parameters = {"shape": list(dims), "dtype": dtype}
        for name, kind in _OPERATORS.items():
            operator = kind(dims, comm=comm, dtype=dtype)
            make = of_peer(f"MPI{name}", dims, dtype=dtype)
            headline = name in ("FirstDerivative", "Laplacian") and min(dims) > 1000
            yield Case(name, parameters, operator, make, dtype=dtype, headline=headline, plan=plan)
        operator = Halo(dims, 1, comm=comm, dtype=dtype)
        yield Case(
            "Halo",
            parameters,
            operator,
            of_peer("MPIHalo", dims, 1, proc_grid_shape=(comm.size, 1), dtype=dtype),
            dtype=dtype,
            plan=plan,
            # The peer omits the zeros beyond the ends of the array.
            compared=lambda values: values[values != 0],
            adjoint_missing="its adjoint cuts the halo off instead of adding it back",
        )


def _arrays(context: Context) -> list[tuple[tuple[int, int], str, Plan]]:
    """Return shapes, dtypes and how much to measure."""
    if context.engine.memory == "device":
        sides = _ON_DEVICES[-1:] if context.options.quick else _ON_DEVICES
        return [((side, side), "float32", Plan(rounds=5, seconds=0.05)) for side in sides]
    return [(_shape(size, context.comm.size), size.dtype, size.plan) for size in sizes_of(context)]


def _shape(size: Size, ranks: int) -> tuple[int, int]:
    """Return the shape of a nearly square array with so many elements per rank."""
    columns = isqrt(size.elements)
    while size.elements % columns:
        columns -= 1
    return size.elements // columns * ranks, columns


def measure_solver(context: Context, peer: Peer | str) -> Iterator[Measurement]:
    """Yield CGLS over a BlockDiag of first derivatives on top of a Laplacian, for a large and for a small image."""
    from pylops import FirstDerivative as FirstDerivativeOfPylops

    comm = context.comm
    for dims in _IMAGES[1:] if context.options.quick else _IMAGES:
        layout = Layout.split(dims, comm.size)
        local = FirstDerivativeOfPylops(layout.local_shape(comm.rank), axis=0, dtype="float32")
        laplacian = Laplacian(layout, comm=comm, dtype="float32").flat
        operator = StackedVStack([BlockDiag([local], comm=comm), laplacian])
        # No model explains noise, so that no program stops early.
        data = random(operator.range, seed=3, comm=comm, dtype="float32", engine=context.engine)
        solvers, missing = solvers_of_collops(context, operator, data)
        program, *_ = solvers
        sent = messages_of_an_iteration(next(iter(solvers.values())))
        if isinstance(peer, str):
            missing[PEER] = peer
        else:
            module = peer.module
            peer_op = module.MPIStackedVStack([peer.block_diag([local]), module.MPILaplacian(dims, dtype="float32")])
            start = peer.like(zeros(operator.domain, comm=comm, dtype="float32", engine=context.engine), False)
            solvers[PEER] = partial(peer.cgls, peer_op, peer.like(data, False), start)
        short, long = (5, 15) if context.options.quick else (20, 120)
        programs = {name: partial(solve, CHECKED_ITERATIONS) for name, solve in solvers.items()}
        yield Measurement(
            "CGLS of [BlockDiag of first derivatives; Laplacian]",
            {"shape": list(dims), "dtype": "float32", "iterations": [short, long]},
            interleave_iterations(solvers, comm, context.engine, Plan(rounds=5), short=short, long=long),
            missing,
            ours=program,
            peer=PEER,
            checks=agreement(context, f"solution after {CHECKED_ITERATIONS} iterations", programs, 1e-3),
            messages=sent,
            headline=f"CGLS iteration, [BlockDiag; Laplacian] of {dims[0]} x {dims[1]}",
        )


def stacks(context: Context) -> Iterator[Case]:
    """Yield every stack in every size."""
    from pylops import Diagonal

    for size in sizes_of(context):
        values = np.random.default_rng(context.comm.rank).standard_normal(size.elements).astype(size.dtype)
        local = Diagonal(context.engine.from_host(values), dtype=size.dtype)
        for name, (stack, replicated) in _STACKS.items():
            yield Case(
                f"{name} of diagonals",
                {"elements_per_rank": size.elements, "dtype": size.dtype},
                stack([local], comm=context.comm),
                of_peer(f"MPI{name}", ops=[local]),
                dtype=size.dtype,
                plan=size.plan,
                replicated=replicated,
            )
