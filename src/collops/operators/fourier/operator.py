"""The base of all Fourier transforms: a sequence of transforms along axes and redistributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array, Layout
from collops.array.redistribute import Move
from collops.backend import LocalArray
from collops.comm.cores import threads_of_rank
from collops.errors import InputError, UnsupportedTypeError
from collops.operators.base import LinearOperator
from collops.operators.fourier.engines import Workspace
from collops.operators.fourier.pipeline import find_pipeline, should_pipeline
from collops.operators.fourier.push import find_push
from collops.operators.fourier.route import alike, find_route
from collops.operators.fourier.transform import AxisTransform, JointTransform, joined, scale_once
from collops.operators.memory import filled, store

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.exchange import Box

__all__ = ["Fourier"]

_Apply: TypeAlias = Callable[[LocalArray, LocalArray, Workspace], LocalArray]
RangeLayout: TypeAlias = Layout | Literal["domain"] | None


class Fourier(LinearOperator):
    """Transforms along one or several axes of distributed arrays. Collective.

    Axes that are not split are transformed without messages. For the others the array is redistributed, each time by
    one all-to-all-v, to the layouts that :func:`find_route` chooses; on devices, large arrays piece by piece.
    `transforms` has one transform for each axis; at most one is real, and comes first. Unless the operator is
    `clinear`, the model is real: the imaginary part of an input is ignored, and the result of the adjoint is real.
    `range_layout` is a layout of the data, ``"domain"`` to split them like the model, or ``None`` for the layout that
    takes the fewest messages.
    """

    def __init__(
        self,
        domain: Layout,
        transforms: Sequence[AxisTransform],
        dtype: DTypeLike,
        comm: Communicator,
        *,
        clinear: bool,
        range_layout: RangeLayout = None,
    ) -> None:
        by_axis = {transform.axis: transform for transform in transforms}
        extents = {axis: transform.count for axis, transform in by_axis.items()}
        if range_layout == "domain":
            range_layout = alike(domain, extents)
        elif range_layout is not None and not isinstance(range_layout, Layout):
            raise InputError(f"range_layout must be a Layout, 'domain' or None, not {range_layout!r}")
        first = next((transform.axis for transform in transforms if transform.real), None)
        stages, final = find_route(domain, extents, first=first, target=range_layout)
        super().__init__(domain, final, dtype, comm)
        self.dims, self.dimsd = domain.shape, final.shape
        self.clinear = clinear
        # The arrays before, between and after the steps: their local shapes, and whether they are real.
        steps: list[_Step] = []
        between = [_Between(domain.local_shape(comm.rank), not clinear)]
        layout = domain
        last: AxisTransform | None = None  # if the last step is this transform, and real
        for stage in (*stages, None):
            target = final if stage is None else stage.layout
            if target is not layout:
                move, back = Move(layout, target, comm), Move(target, layout, comm)
                part = None if last is None else _part(last, between[-1].shape, move.box)
                real = between[-1].real
                if last is None or part is None:
                    pieces = move.sends and not real  # which have complex numbers
                    steps.append(_move(move, back)._replace(layouts=(layout, target) if pieces else None))
                else:
                    steps[-1] = _cut(last, part, between.pop().shape, move, back)
                between.append(_Between(target.local_shape(comm.rank), real))
                layout, last = target, None
            for transform in () if stage is None else joined([by_axis[axis] for axis in stage.axes]):
                if between[-1].real and not transform.real:
                    steps.append(_TO_COMPLEX)
                    between.append(_Between(between[-1].shape, False))
                scratch = transform.elements(between[-1].shape)
                joint = transform if isinstance(transform, JointTransform) else None
                commuted = None if joint is None else transform.adjoint
                steps.append(
                    _Step(transform.forward, transform.adjoint, transform.in_place, scratch, None, joint, commuted)
                )
                layout = alike(layout, transform.extents)
                between.append(_Between(layout.local_shape(comm.rank), False))
                last = transform if isinstance(transform, AxisTransform) and transform.real else None
        scale_once(_joints(steps), domain.ndim - 1)
        self._size = max(
            *(-(-math.prod(shape) // 2) if real else math.prod(shape) for shape, real in between),
            *(step.elements for step in steps),
        )

        @cache
        def programs(itemsize: int | None) -> list[list[_Instruction]]:
            """Return the plans of forward and adjoint, in pieces unless `itemsize` is None. Collective at first use."""
            joined, arrays = (steps, between)
            if itemsize is not None:
                joined, arrays = _pushed(*_in_pieces(steps, between, comm, itemsize), comm, itemsize)
            # The adjoint in forward order begins with a transform, which overlaps with the subsequent move.
            commuted = [step.commuted for step in joined if step.commuted is not None]
            turned = itemsize is not None and final is domain and len(commuted) == len(joined)
            forward = _program([step.forward for step in joined], joined, arrays)
            if turned:
                return [forward, _program(commuted, joined, arrays)]
            return [forward, _program([step.adjoint for step in joined[::-1]], joined[::-1], arrays[::-1])]

        self._programs = programs
        # Equal on all ranks, which must send the same messages.
        self._part = max(layout.size // math.prod(map(len, layout.sizes)) for layout in (domain, final))
        self._threads = threads_of_rank(comm)
        self._workspaces: dict[tuple[Engine, np.dtype], Workspace] = {}

    def _forward(self, x: Array, out: Array | None) -> Array:
        if out is None:
            out = self._new(self.range, x)
        elif out.dtype.kind != "c":
            raise UnsupportedTypeError(f"the data of a Fourier transform need a complex out, not {out.dtype}")
        return filled(out, self._run(False, x.local_array, not self.clinear, out))

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        if out is None:
            out = self._new(self.domain, y, real=not self.clinear)
        elif self.clinear and out.dtype.kind != "c":
            raise UnsupportedTypeError(f"the model of this transform needs a complex out, not {out.dtype}")
        return filled(out, self._run(True, y.local_array, False, out))

    def _run(self, back: bool, source: LocalArray, real: bool, out: Array) -> LocalArray:
        """Return the result of the steps from a local array, in the local array of `out` if the engine is mutable."""
        workspace = self._workspace(out)
        program = self._programs(None if workspace.addresses is None else workspace.complex.itemsize)[back]
        local = workspace.converted(source, real)
        memory = workspace.result(out.local_array if out.engine.mutable else None, *program[-1][2:])
        for apply, slot, shape, real in program:
            target = memory if slot is None else workspace.take(slot, shape, real)
            local = apply(local, target, workspace)
        return local

    def _workspace(self, out: Array) -> Workspace:
        """Return the scratch memory and the transforms of the result's engine and precision."""
        engine, dtype = out.engine, out.local_array.dtype
        workspace = self._workspaces.get((engine, dtype))
        if workspace is None:
            kind = np.result_type(dtype, np.complex64)
            workspace = self._workspaces.get((engine, kind))
            if workspace is None:
                workspace = Workspace(engine, kind, self._size, self._threads)
                if should_pipeline(self._part * kind.itemsize, workspace):
                    workspace.prepare_pieces(self.comm)
            self._workspaces[engine, kind] = self._workspaces[engine, dtype] = workspace
        return workspace


class _Between(NamedTuple):
    """The shape of this rank's array between two steps, and whether its values are real."""

    shape: tuple[int, ...]
    real: bool


class _Step(NamedTuple):
    """Two functions of ``(source, target, workspace)``, whose result is in `target` unless it is ``None``.

    They need scratch memory for `elements` complex numbers. A move of complex numbers with messages has two `layouts`,
    before and after, and a transform that can be applied to pieces is `joint`. If model and data have the same layout
    and all steps have a function `commuted`, applying these functions in forward order also computes the adjoint.
    """

    forward: _Apply
    adjoint: _Apply
    in_place: bool = False
    elements: int = 0
    layouts: tuple[Layout, Layout] | None = None
    joint: JointTransform | None = None
    commuted: _Apply | None = None


def _move(forward: Move, back: Move) -> _Step:
    """Return a change of layout. Collective: one all-to-all-v at most."""

    def apply(source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        return forward(source, target)

    return _Step(apply, lambda source, target, _: back(source, target), commuted=apply)


def _in_pieces(
    steps: Sequence[_Step], between: Sequence[_Between], comm: Communicator, itemsize: int
) -> tuple[list[_Step], list[_Between]]:
    """Return the steps and arrays after joining the steps that can be applied piece by piece."""
    joined: list[_Step] = []
    arrays = [between[0]]
    start, layouts = 0, None  # index of the last move, if all following steps can be applied to pieces
    for step, after in zip(steps, between[1:], strict=True):
        if step.layouts is not None:
            joints = _joints(joined[start:])
            pipeline = None if layouts is None else find_pipeline(*layouts, step.layouts[1], joints, comm, itemsize)
            if pipeline is None:
                start, layouts = len(joined), step.layouts
            else:
                del joined[start:], arrays[start + 1 :]
                step, layouts = _Step(pipeline.forward, pipeline.adjoint, commuted=pipeline.commuted), None
        elif step.joint is None:
            layouts = None
        joined.append(step)
        arrays.append(after)
    return joined, arrays


def _pushed(
    steps: Sequence[_Step], between: Sequence[_Between], comm: Communicator, itemsize: int
) -> tuple[list[_Step], list[_Between]]:
    """Return the steps and arrays after joining the other moves with the transforms before and after them."""
    joined: list[_Step] = []
    arrays = [between[0]]
    index = 0
    while index < len(steps):
        step, index = steps[index], index + 1
        if step.layouts is not None:
            lasts = list(takewhile(lambda step: step.joint is not None, steps[index:]))
            firsts = list(takewhile(lambda step: step.joint is not None, joined[::-1]))[::-1]
            push = find_push(*step.layouts, _joints(firsts), _joints(lasts), comm, itemsize)
            if push is not None:
                del joined[len(joined) - len(firsts) :], arrays[len(arrays) - len(firsts) :]
                step, index = _Step(push.forward, push.adjoint, commuted=push.commuted), index + len(lasts)
        joined.append(step)
        arrays.append(between[index])
    return joined, arrays


def _part(transform: AxisTransform, shape: tuple[int, ...], box: Box | None) -> AxisTransform | None:
    """Return the transform to the frequencies in a box of its result; ``None`` if the box cuts other axes too."""
    if box is None or any(
        (part.start, part.stop) != (0, extent)
        for axis, (part, extent) in enumerate(zip(box, shape, strict=True))
        if axis != transform.axis
    ):
        return None
    chosen = box[transform.axis]
    return transform.part(chosen.start, chosen.stop - chosen.start)


def _cut(transform: AxisTransform, part: AxisTransform, shape: tuple[int, ...], move: Move, back: Move) -> _Step:
    """Return a transform that computes this rank's `part` of the frequencies. Collective: the adjoint gathers them.

    `shape` is the shape of all frequencies.
    """

    def forward(source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        if workspace.engine.traced:  # the derivative of the move gathers cotangents
            return move(transform.forward(source, None, workspace), None)
        return part.forward(source, target, workspace)

    def adjoint(source: LocalArray, target: LocalArray, workspace: Workspace) -> LocalArray:
        return transform.adjoint(back(source, workspace.take("whole", shape)), target, workspace)

    return _Step(forward, adjoint, elements=transform.elements(shape))


_TO_COMPLEX = _Step(
    lambda source, target, workspace: source.astype(workspace.complex) if target is None else store(source, target),
    lambda source, target, _: store(source.real, target),
)


class _Instruction(NamedTuple):
    apply: _Apply
    slot: str | None  # slot of the target; None for the array of the result
    shape: tuple[int, ...]
    real: bool


def _joints(steps: Sequence[_Step]) -> list[JointTransform]:
    return [step.joint for step in steps if step.joint is not None]


def _program(applies: Sequence[_Apply], steps: Sequence[_Step], between: Sequence[_Between]) -> list[_Instruction]:
    """Choose the target of each step: in place if possible, else one of two alternating arrays."""
    slots: list[str | None] = [None]
    for step in reversed(steps[1:]):
        slots.append(slots[-1] if step.in_place else "even" if slots[-1] != "even" else "odd")
    return [
        _Instruction(apply, slot, *after)
        for apply, slot, after in zip(applies, reversed(slots), between[1:], strict=True)
    ]
