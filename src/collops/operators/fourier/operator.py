"""The operator that all Fourier transforms are: transforms along axes, with moves between layouts in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from collops.array import Layout
from collops.array.dtypes import real_of
from collops.array.redistribute import Move
from collops.errors import InputError, UnsupportedTypeError
from collops.operators.base import LinearOperator, new_array
from collops.operators.fourier.pipeline import Between, MoveStep, Pipeline
from collops.operators.fourier.route import Stage, alike, find_route
from collops.operators.fourier.threads import threads_of_rank
from collops.operators.fourier.transform import AxisTransform, ToComplex
from collops.operators.fourier.workspace import Workspace

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["Fourier", "RangeLayout"]

RangeLayout: TypeAlias = Layout | Literal["domain"] | None


class Fourier(LinearOperator):
    """Transforms along one or several axes of distributed arrays.

    Axes that are whole on every rank are transformed where they are, without messages. For the others the array is
    brought to other layouts, each by one all-to-all-v; which ones is worked out here, by :func:`find_route`.

    Collective.

    Parameters
    ----------
    domain : Layout
        Of the model.
    transforms : sequence of AxisTransform
        One for each axis, a real one first.
    dtype : dtype
        Complex type of the data.
    comm : Communicator
        The ranks.
    clinear : bool
        Whether the model is complex. Otherwise the operator is linear over the real numbers: the imaginary part of its
        input is no part of the model, and the result of the adjoint is real.
    range_layout : Layout, "domain" or None
        Of the data: a layout, that of the model with the extents of the data, or that in which the fewest messages
        leave them.

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
        self._threads = threads_of_rank(comm)
        self._workspaces: dict[tuple[Engine, np.dtype], Workspace] = {}

    def _forward(self, x: Any, out: Any) -> Any:
        if out is None:
            out = new_array(self.range, x, np.result_type(self.dtype, x.dtype))
        elif out.dtype.kind != "c":
            raise UnsupportedTypeError(f"the data of a Fourier transform are complex and do not fit into {out.dtype}")
        self._pipeline.forward(x.local_array, out.local_array, self._workspace(out))
        return out

    def _adjoint(self, y: Any, out: Any) -> Any:
        if out is None:
            dtype = np.result_type(self.dtype, y.dtype)
            out = new_array(self.domain, y, dtype if self.clinear else real_of(dtype))
        elif self.clinear and out.dtype.kind != "c":
            raise UnsupportedTypeError(f"the model of this transform is complex and does not fit into {out.dtype}")
        self._pipeline.adjoint(y.local_array, out.local_array, self._workspace(out))
        return out

    def _workspace(self, out: Any) -> Workspace:
        """Return what to compute with in the precision of the result."""
        key = (out.engine, np.result_type(out.dtype, np.complex64))
        workspace = self._workspaces.get(key)
        if workspace is None:
            workspace = self._workspaces[key] = Workspace(*key, self._pipeline.size, self._threads)
        return workspace


def _pipeline(
    domain: Layout,
    stages: Sequence[Stage],
    final: Layout,
    by_axis: dict[int, AxisTransform],
    clinear: bool,
    comm: Communicator,
) -> Pipeline:
    """Return the steps of the stages, and the moves to and from them, as they are on this rank."""
    steps: list[Any] = []
    between = [Between(domain.local_shape(comm.rank), not clinear)]
    layout = domain

    def move(target: Layout) -> None:
        if target is not layout:
            steps.append(MoveStep(Move(layout, target, comm), Move(target, layout, comm)))
            between.append(Between(target.local_shape(comm.rank), between[-1].real))

    for stage in stages:
        move(stage.before)
        layout = stage.before
        for axis in stage.axes:
            transform = by_axis[axis]
            if between[-1].real and not transform.real:
                steps.append(ToComplex())
                between.append(Between(between[-1].shape, False))
            steps.append(transform)
            layout = alike(layout, [transform.taken if a == axis else n for a, n in enumerate(layout.shape)])
            between.append(Between(layout.local_shape(comm.rank), False))
    move(final)
    return Pipeline(steps, between)
