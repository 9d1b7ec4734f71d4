"""The base of all Fourier transforms: a pipeline of transforms along axes and of moves between layouts."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from collops.array import Layout
from collops.array.redistribute import Move
from collops.comm.cores import available_cores
from collops.errors import InputError, UnsupportedTypeError
from collops.operators.base import LinearOperator
from collops.operators.fourier.route import Stage, alike, find_route
from collops.operators.fourier.transform import AxisTransform, ToComplex
from collops.operators.fourier.workspace import Workspace
from collops.operators.memory import filled, writable

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["Fourier"]

RangeLayout: TypeAlias = Layout | Literal["domain"] | None


class Fourier(LinearOperator):
    """Transforms along one or several axes of distributed arrays.

    Axes that are whole on every rank are transformed without messages. For the others the array is redistributed, each
    time by one all-to-all-v, to the layouts that :func:`find_route` chooses.

    Collective.

    Parameters
    ----------
    domain : Layout
        Layout of the model.
    transforms : sequence of AxisTransform
        One for each axis, a real one first.
    dtype : dtype
        Complex type of the data.
    comm : Communicator
        The ranks.
    clinear : bool
        Whether the model is complex. Otherwise the operator is linear over the real numbers: the imaginary part of its
        input is ignored, and the result of the adjoint is real.
    range_layout : Layout, "domain" or None
        Layout of the data: a given one, that of the model with the extents of the data, or the one that takes the
        fewest messages.

    Raises
    ------
    LayoutError
        If `range_layout` does not fit the data.
    """

    def __init__(
        self,
        domain: Layout,
        transforms: Sequence[AxisTransform],
        dtype: Any,
        comm: Communicator,
        *,
        clinear: bool,
        range_layout: RangeLayout = None,
    ) -> None:
        by_axis = {transform.axis: transform for transform in transforms}
        extents = {axis: transform.taken for axis, transform in by_axis.items()}
        if range_layout == "domain":
            range_layout = alike(domain, [extents.get(axis, n) for axis, n in enumerate(domain.shape)])
        elif range_layout is not None and not isinstance(range_layout, Layout):
            raise InputError(f"range_layout must be a Layout, 'domain' or None, not {range_layout!r}")
        first = next((transform.axis for transform in transforms if transform.real), None)
        stages, final = find_route(domain, extents, first=first, target=range_layout)
        super().__init__(domain, final, dtype, comm)
        self.dims, self.dimsd = domain.shape, final.shape
        self.clinear = clinear
        self._pipeline = _pipeline(domain, stages, final, by_axis, clinear, comm)
        self._threads = _threads_of_rank(comm)
        self._workspaces: dict[tuple[Engine, np.dtype], Workspace] = {}

    def _forward(self, x: Any, out: Any) -> Any:
        if out is None:
            out = self._new(self.range, x)
        elif out.dtype.kind != "c":
            raise UnsupportedTypeError(f"the data of a Fourier transform are complex and do not fit into {out.dtype}")
        return filled(out, self._pipeline.forward(x.local_array, writable(out), self._workspace(out)))

    def _adjoint(self, y: Any, out: Any) -> Any:
        if out is None:
            out = self._new(self.domain, y, real=not self.clinear)
        elif self.clinear and out.dtype.kind != "c":
            raise UnsupportedTypeError(f"the model of this transform is complex and does not fit into {out.dtype}")
        return filled(out, self._pipeline.adjoint(y.local_array, writable(out), self._workspace(out)))

    def _workspace(self, out: Any) -> Workspace:
        """Return the scratch memory and the transforms of the result's engine and precision."""
        engine, dtype = out.engine, out.local_array.dtype
        workspace = self._workspaces.get((engine, dtype))
        if workspace is None:
            kind = np.result_type(dtype, np.complex64)
            workspace = self._workspaces.get((engine, kind)) or Workspace(
                engine, kind, self._pipeline.size, self._threads
            )
            self._workspaces[engine, kind] = self._workspaces[engine, dtype] = workspace
        return workspace


def _pipeline(
    domain: Layout,
    stages: Sequence[Stage],
    final: Layout,
    by_axis: dict[int, AxisTransform],
    clinear: bool,
    comm: Communicator,
) -> _Pipeline:
    """Return the steps of the stages and the moves between them, for this rank."""
    steps: list[Any] = []
    between = [_Between(domain.local_shape(comm.rank), not clinear)]
    layout = domain

    def move(target: Layout) -> None:
        if target is not layout:
            steps.append(_MoveStep(Move(layout, target, comm), Move(target, layout, comm)))
            between.append(_Between(target.local_shape(comm.rank), between[-1].real))

    for stage in stages:
        move(stage.before)
        layout = stage.before
        for axis in stage.axes:
            transform = by_axis[axis]
            if between[-1].real and not transform.real:
                steps.append(ToComplex())
                between.append(_Between(between[-1].shape, False))
            steps.append(transform)
            layout = alike(layout, [transform.taken if a == axis else n for a, n in enumerate(layout.shape)])
            between.append(_Between(layout.local_shape(comm.rank), False))
    move(final)
    return _Pipeline(steps, between)


class _Between(NamedTuple):
    """The shape of this rank's array between two steps, and whether its values are real."""

    shape: tuple[int, ...]
    real: bool


class _MoveStep:
    """A change of layout. Collective: one all-to-all-v at most."""

    in_place = False

    @staticmethod
    def elements(shape: tuple[int, ...]) -> int:
        """Return how many complex numbers are needed besides input and result."""
        return 0

    def __init__(self, forward: Move, back: Move) -> None:
        self._forward = forward
        self._back = back

    def forward(self, source: Any, target: Any, workspace: Workspace, owned: bool) -> Any:
        """Return `source` in the second layout."""
        return self._forward(source, target)

    def adjoint(self, source: Any, target: Any, workspace: Workspace, owned: bool) -> Any:
        """Return `source` in the first layout."""
        return self._back(source, target)


class _Pipeline:
    """Steps one after the other, and the arrays before, between and after them.

    ``size`` is the number of complex elements of the largest scratch array.
    """

    def __init__(self, steps: Sequence[Any], between: Sequence[_Between]) -> None:
        self.size = max(
            *(-(-math.prod(shape) // 2) if real else math.prod(shape) for shape, real in between),
            *(step.elements(before.shape) for step, before in zip(steps, between, strict=False)),
        )
        self._forward = _program([step.forward for step in steps], steps, between)
        self._adjoint = _program([step.adjoint for step in reversed(steps)], steps[::-1], between[::-1])
        self._first, self._last = between[0], between[-1]

    def forward(self, local: Any, out: Any, workspace: Workspace) -> Any:
        """Return this rank's part of the data from its part of the model, in `out` if that is given."""
        return self._run(self._forward, local, self._first, out, self._last, workspace)

    def adjoint(self, local: Any, out: Any, workspace: Workspace) -> Any:
        """Return this rank's part of the model from its part of the data, in `out` if that is given."""
        return self._run(self._adjoint, local, self._last, out, self._first, workspace)

    def _run(
        self, program: list[_Instruction], local: Any, given: _Between, out: Any, taken: _Between, workspace: Workspace
    ) -> Any:
        if given.real and local.dtype.kind == "c":
            local = local.real
        if program[0].moves or out is None:
            local = workspace.converted("input", local, given.real)
        if out is not None and out.dtype != workspace.dtype(taken.real):
            out = workspace.take("output", taken.shape, taken.real)
        for apply, slot, shape, real, owned, _ in program:
            local = apply(local, out if slot is None else workspace.take(slot, shape, real), workspace, owned)
        return local


class _Instruction(NamedTuple):
    apply: Any
    slot: str | None  # of the target; None for the array of the result
    shape: tuple[int, ...]
    real: bool
    owned: bool  # whether the input may be overwritten
    moves: bool


def _program(applies: Sequence[Any], steps: Sequence[Any], between: Sequence[_Between]) -> list[_Instruction]:
    """Decide where each step writes: in place if it can, else into one of two arrays that alternate."""
    slots: list[str | None] = [None]
    for step in reversed(steps[1:]):
        slots.append(slots[-1] if step.in_place else "even" if slots[-1] != "even" else "odd")
    slots.reverse()
    return [
        _Instruction(apply, slot, after.shape, after.real, number > 0, isinstance(step, _MoveStep))
        for number, (apply, slot, step, after) in enumerate(zip(applies, slots, steps, between[1:], strict=True))
    ]


def _threads_of_rank(comm: Communicator) -> int:
    """Return OMP_NUM_THREADS if it is set, else this rank's share of the cores. No messages."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdigit() and int(limit) > 0:
        return int(limit)
    return max(1, len(available_cores()) // comm.local_size)
