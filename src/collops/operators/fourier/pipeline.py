"""A chain of local transforms and moves between layouts, and the memory that its arrays pass through."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from collops.array.redistribute import Move
from collops.operators.fourier.workspace import Workspace

__all__ = ["Between", "MoveStep", "Pipeline"]


class Between(NamedTuple):
    """What comes between two steps, on this rank.

    Attributes
    ----------
    shape : tuple of int
    real : bool
        Whether the values are real.
    """

    shape: tuple[int, ...]
    real: bool


class MoveStep:
    """A change of layout. Collective.

    Parameters
    ----------
    forward, back : Move
        From the one layout to the other, and back.
    """

    in_place = False

    @staticmethod
    def elements(shape: tuple[int, ...]) -> int:
        """Return how many complex numbers are needed beside input and result."""
        return 0

    def __init__(self, forward: Move, back: Move) -> None:
        self._forward = forward
        self._back = back

    def forward(self, source: Any, target: Any, workspace: Workspace, owned: bool) -> None:
        """Fill `target` from `source`. One all-to-all-v at most."""
        self._forward(source, target)

    def adjoint(self, source: Any, target: Any, workspace: Workspace, owned: bool) -> None:
        """Fill `target` from `source`. One all-to-all-v at most."""
        self._back(source, target)


class Pipeline:
    """Steps one after the other.

    Parameters
    ----------
    steps : sequence of AxisTransform, ToComplex and MoveStep
        At least one.
    between : sequence of Between
        What goes into the first step, comes between each two, and comes out of the last.

    Attributes
    ----------
    size : int
        Complex numbers in the largest array that is needed on the way.
    """

    def __init__(self, steps: Sequence[Any], between: Sequence[Between]) -> None:
        self.size = max(
            *(-(-math.prod(shape) // 2) if real else math.prod(shape) for shape, real in between),
            *(step.elements(before.shape) for step, before in zip(steps, between, strict=False)),
        )
        self._forward = _program([step.forward for step in steps], steps, between)
        self._adjoint = _program([step.adjoint for step in reversed(steps)], steps[::-1], between[::-1])
        self._first, self._last = between[0], between[-1]

    def forward(self, local: Any, out: Any, workspace: Workspace) -> None:
        """Fill `out` from this rank's part of the model."""
        self._run(self._forward, local, self._first, out, self._last, workspace)

    def adjoint(self, local: Any, out: Any, workspace: Workspace) -> None:
        """Fill `out` from this rank's part of the data."""
        self._run(self._adjoint, local, self._last, out, self._first, workspace)

    def _run(
        self, program: list[_Instruction], local: Any, given: Between, out: Any, taken: Between, workspace: Workspace
    ) -> None:
        if given.real and local.dtype.kind == "c":
            local = local.real
        if program[0].moves and local.dtype != (workspace.real if given.real else workspace.complex):
            wanted = workspace.take("input", given.shape, given.real)
            wanted[...] = local
            local = wanted
        target = out
        if out.dtype != (workspace.real if taken.real else workspace.complex):
            target = workspace.take("output", taken.shape, taken.real)
        for apply, slot, shape, real, owned, _ in program:
            following = target if slot is None else workspace.take(slot, shape, real)
            apply(local, following, workspace, owned)
            local = following
        if target is not out:
            out[...] = target


class _Instruction(NamedTuple):
    apply: Any
    slot: str | None  # of the target: None is the array for the result
    shape: tuple[int, ...]
    real: bool
    owned: bool  # whether the input may be overwritten
    moves: bool


def _program(applies: Sequence[Any], steps: Sequence[Any], between: Sequence[Between]) -> list[_Instruction]:
    """Decide where each step writes: in place where it can, else into one of two arrays that take turns."""
    slots: list[str | None] = [None]
    for step in reversed(steps[1:]):
        slots.append(slots[-1] if step.in_place else "even" if slots[-1] != "even" else "odd")
    slots.reverse()
    return [
        _Instruction(apply, slot, after.shape, after.real, number > 0, isinstance(step, MoveStep))
        for number, (apply, slot, step, after) in enumerate(zip(applies, slots, steps, between[1:], strict=True))
    ]
