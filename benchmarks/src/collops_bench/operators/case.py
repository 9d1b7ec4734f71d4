"""An operator and its adjoint, compared with the operator of the peer on the same arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from collops.array import random
from collops.backend import engine_of
from collops.operators import LinearOperator
from collops.operators.memory import new_array
from collops_bench.peers import PEER, Peer
from collops_bench.record import Measurement
from collops_bench.registry import Context
from collops_bench.shared import agreement, messages_of_a_call
from collops_bench.timing import Captured, Plan, Timing, interleave

__all__ = ["EAGER", "OURS", "REPLAYED", "TOLERANCE", "Case", "Size", "captured", "measure_case", "of_peer", "sizes_of"]

OURS, EAGER, REPLAYED = "collops", "collops, eager", "collops, replayed"
_CALLS_IN_A_GRAPH = 20
_SMALL, _LARGE = 2000, 10_000_000  # elements of a rank
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "complex64": 1e-5, "complex128": 1e-12}


@dataclass(frozen=True)
class Case:
    """An operator and the operator of the peer."""

    name: str  # name of the operator
    parameters: Mapping[str, Any]  # sizes and options
    operator: LinearOperator  # ours
    # returns the operator of the peer, with the same local values as ours, ravelled
    peer: Callable[[Peer], Any] | None = None
    dtype: str = "float64"  # dtype of the arrays
    headline: bool = False  # whether it is in the README's table
    missing: str = "it has no such operator"  # why there is no `peer`
    plan: Plan = field(default_factory=Plan)  # how much to measure
    replicated: tuple[str, ...] = ()  # of ``"model"`` and ``"data"``
    # selects the values of this rank's result that are compared; all of them by default
    compared: Callable[[Any], Any] | None = None
    adjoint_missing: str | None = None  # why the peer's adjoint is not comparable


def of_peer(name: str, *arguments: Any, **options: Any) -> Callable[[Peer], Any]:
    """Return a function that creates the operator of the peer with this name and these arguments."""
    return lambda peer: attrgetter(name)(peer.module)(*arguments, **options)


def measure_case(context: Context, peer: Peer | str, case: Case) -> Iterator[Measurement]:
    """Yield the forward and the adjoint. Collective."""
    operator, engine = case.operator, context.engine
    model = random(operator.domain, seed=1, comm=context.comm, dtype=case.dtype, engine=engine)
    data = random(operator.range, seed=2, comm=context.comm, dtype=case.dtype, engine=engine)
    peer_op: Any = None
    missing = {}
    if isinstance(peer, str) or case.peer is None:
        missing[PEER] = peer if isinstance(peer, str) else case.missing
    else:
        peer_op = case.peer(peer)
    for direction, side, argument, expected in (
        ("forward", "model", model, operator.range),
        ("adjoint", "data", data, operator.domain),
    ):
        product = getattr(operator, direction)
        programs: dict[str, Callable[[], Any]] = {}
        if engine.memory == "device":
            result = new_array(expected, argument, argument.dtype)
            programs[EAGER] = partial(product, argument, out=result)
        else:
            programs[OURS] = partial(product, argument)
        without = dict(missing)
        if direction == "adjoint" and case.adjoint_missing is not None:
            without[PEER] = case.adjoint_missing
        elif peer_op is not None and not isinstance(peer, str):
            apply = peer_op.matvec if direction == "forward" else peer_op.rmatvec
            programs[PEER] = partial(apply, peer.like(argument, side in case.replicated))
        yield _measure(context, case, direction, programs, without)


def _measure(
    context: Context,
    case: Case,
    direction: str,
    programs: dict[str, Callable[[], Any]],
    missing: dict[str, str],
) -> Measurement:
    comm, engine = context.comm, context.engine
    program_of_collops, *_ = programs
    what = f"{direction} of {case.name}"
    local = {name: partial(_local_values, program, case.compared) for name, program in programs.items()}
    checks = agreement(context, what, local, TOLERANCE[case.dtype])
    timings = interleave(programs, comm, engine, case.plan)
    if engine.memory == "device":
        if case.operator.capturable:
            timings |= captured(context, programs[EAGER], case.plan)
        else:
            missing[REPLAYED] = "it cannot be captured"
    return Measurement(
        f"{case.name}, {direction}",
        case.parameters,
        timings,
        missing,
        ours=program_of_collops,
        peer=PEER,
        checks=checks,
        messages=messages_of_a_call(programs[program_of_collops]),
        headline=f"{case.name}, {direction}" if case.headline else None,
    )


def captured(context: Context, program: Callable[[], Any], plan: Plan) -> dict[str, Timing]:
    """Time our program in a replayed CUDA graph. Collective."""
    graph = Captured(context.engine.xp, program, _CALLS_IN_A_GRAPH)
    timing = interleave({REPLAYED: graph.replay}, context.comm, context.engine, plan)[REPLAYED]
    return {REPLAYED: graph.of_one_call(timing)}


def _local_values(program: Callable[[], Any], compared: Callable[[Any], Any] | None) -> Any:
    """Return this rank's values of a result, of ours or of the peer's, as one vector, or the selected ones."""
    result = program()
    parts = result.leaves if hasattr(result, "leaves") else getattr(result, "distarrays", [result])
    arrays = [part.local_array.reshape(-1) for part in parts]
    values = arrays[0] if len(arrays) == 1 else engine_of(arrays[0]).xp.concatenate(arrays)
    return values if compared is None else compared(values)


class Size(NamedTuple):
    """Elements per rank, their dtype, and how much to measure."""

    elements: int
    dtype: str
    plan: Plan


def sizes_of(context: Context) -> list[Size]:
    """Return the sizes to measure, the small one first."""
    if context.options.quick:
        return [Size(_SMALL, "float64", Plan(rounds=3, seconds=0.01))]
    if context.engine.memory == "device":
        plan = Plan(rounds=5, seconds=0.03)
        return [Size(_SMALL, "float32", plan), Size(_LARGE, "float32", plan)]
    # The bound limits the total to minutes, although some calls of the peer take seconds.
    return [
        Size(_SMALL, "float64", Plan(seconds=0.05)),
        Size(_LARGE, "float64", Plan(rounds=5, seconds=0.3, bound=2.0)),
    ]
