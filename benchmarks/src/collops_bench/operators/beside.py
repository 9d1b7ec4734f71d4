"""An operator, forward and adjoint, and other libraries that do the same work on this rank's arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from collops.array import DistributedArray, Layout, dots, from_local, random
from collops.operators import LinearOperator
from collops.operators.memory import new_array
from collops_bench.operators.case import EAGER, OURS, REPLAYED, TOLERANCE, captured
from collops_bench.peers import PEER
from collops_bench.record import Check, Measurement, check
from collops_bench.registry import Context
from collops_bench.shared import agreement, messages_of_a_call
from collops_bench.timing import Plan, interleave

__all__ = ["Beside", "Program", "measure_beside"]


class Program(NamedTuple):
    """A product by another library."""

    run: Callable[[], Any]  # returns this rank's part of the result, of any shape
    factor: float = 1.0  # by which the result is multiplied to equal ours
    layout: Layout | None = None  # of the result, if it is another one than ours
    free: Callable[[], None] = lambda: None  # frees its memory. Collective


@dataclass(frozen=True)
class Beside:
    """An operator and its peers."""

    name: str  # name of the work
    parameters: Mapping[str, Any]  # sizes and options
    operator: LinearOperator
    dtype: str  # dtype of the arrays
    plan: Plan
    # from "forward" or "adjoint" and its argument to the programs by name, or the reasons why they are missing; the
    # names are the same on all ranks. Collective
    peers: Callable[[str, DistributedArray], Mapping[str, Program | str]]
    pylops_mpi: str = "it has no such operator"  # why PyLops-MPI is not measured
    headline: bool = False  # whether it is in the tables of speed


def measure_beside(context: Context, case: Beside) -> Iterator[Measurement]:
    """Yield the forward and the adjoint; the peer of each is the fastest program of all others. Collective."""
    operator = case.operator
    adjoint = _check_adjoint(context, case)
    for direction, layout, other in (
        ("forward", operator.domain, operator.range),
        ("adjoint", operator.range, operator.domain),
    ):
        x: Any = random(layout, seed=1, comm=context.comm, dtype=case.dtype, engine=context.engine)
        out = new_array(other, x, x.dtype)
        ours = EAGER if context.engine.memory == "device" else OURS
        product = partial(getattr(operator, direction), x, out=out)
        others = case.peers(direction, x)
        missing = {name: item for name, item in others.items() if isinstance(item, str)}
        found = {name: item for name, item in others.items() if isinstance(item, Program)}
        locals_: dict[str, Callable[[], Any]] = {ours: lambda product=product: product().local_array.ravel()}
        locals_ |= {name: partial(_like_ours, context, item, other) for name, item in found.items()}
        checks = agreement(context, f"{direction} of {case.name}", locals_, TOLERANCE[case.dtype])
        programs: dict[str, Callable[[], Any]] = {ours: product} | {name: item.run for name, item in found.items()}
        timings = interleave(programs, context.comm, context.engine, case.plan)
        for item in found.values():
            item.free()
        peer = min(found, key=lambda name: timings[name].wall.median, default=next(iter(others)))
        if ours == EAGER:
            if operator.capturable:
                timings |= captured(context, product, case.plan)
            else:
                missing[REPLAYED] = "it cannot be captured"
        yield Measurement(
            f"{case.name}, {direction}",
            case.parameters,
            timings,
            missing | {PEER: case.pylops_mpi},
            ours=ours,
            peer=peer,
            checks=[adjoint, *checks],
            messages=messages_of_a_call(product),
            headline=f"{case.name}, {direction}" if case.headline else None,
        )


def _check_adjoint(context: Context, case: Beside) -> Check:
    """Check that the adjoint is one by a dot test, which also runs where no peer can be had. Collective."""
    operator, options = case.operator, {"comm": context.comm, "dtype": case.dtype, "engine": context.engine}
    x: Any = random(operator.domain, seed=2, **options)
    y: Any = random(operator.range, seed=3, **options)
    forward: Any = operator.forward(x)
    adjoint: Any = operator.adjoint(y)
    error = abs(dots((forward, y))[0].item() - dots((x, adjoint))[0].item()) / float(forward.norm() * y.norm())
    return check(context.comm, f"dot test of {case.name}", error, TOLERANCE[case.dtype])


def _like_ours(context: Context, program: Program, layout: Any) -> Any:
    """Return the result of a program, times its factor, as this rank's vector of it in `layout`. Collective."""
    result = program.run()
    if program.layout is not None:
        result = from_local(result, program.layout, comm=context.comm).redistribute(layout).local_array
    return program.factor * context.engine.to_host(result).ravel()
