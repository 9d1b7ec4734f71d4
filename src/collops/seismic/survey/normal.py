"""The normal equations of a survey, from traces that are read shot by shot and not held in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from collops import VStack
from collops.errors import InputError, LayoutError
from collops.extend.applications import local_stage
from collops.extend.engines import Engine
from collops.extend.operators import Buffers, LocalSum
from collops.seismic.kirchhoff.split import SplitImage
from collops.seismic.signals import count_biased

if TYPE_CHECKING:
    from collops import Communicator, DistributedArray, LinearOperator
    from collops.extend.arrays import LocalArray
    from collops.seismic.survey.geometry import Geometry

__all__ = ["NormalEquations", "normal_equations", "shots_of_parts"]

Weights = Callable[[int], float | np.ndarray]
"""Takes the number of a shot; returns the weight of its traces, a number or an array that broadcasts to them."""

Traces = Callable[[range], list[np.ndarray]]
"""Takes numbers of shots; returns an array of traces for each."""


@dataclass(frozen=True)
class NormalEquations:
    r"""The equations :math:`A^T W^2 A m = A^T W^2 d` of an image :math:`m` and data :math:`d`; vectors are images.

    Attributes
    ----------
    operator : LinearOperator
        :math:`A^T W^2 A`, for :func:`collops.cg`. It models and migrates a few shots at a time; one allreduce of the
        image.
    right : DistributedArray
        :math:`A^T W^2 d`, replicated.
    energy : float
        :math:`\|W d\|^2`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.seismic.survey import Geometry, Grid, Survey
    >>> line = np.array([[0.0, 100.0, 200.0], [0.0, 0.0, 0.0]])
    >>> survey = Survey(Geometry(line[:, 1:2], [line], samples=100, interval=0.004))
    >>> survey.traces = [np.random.default_rng(0).normal(size=(3, 100))]
    >>> A = survey.operator(1500.0, Grid(nx=21, nz=11, dx=10.0, dz=10.0), frequency=25.0)
    >>> equations = survey.normal_equations(A)
    >>> image = collops.cg(equations.operator, equations.right, niter=5, tol=0).x
    >>> bool(equations.misfit(image) < equations.energy**0.5)
    True
    """

    operator: LocalSum
    right: DistributedArray
    energy: float

    def misfit(self, x: DistributedArray) -> float:
        r"""Return the norm of the residual of the data, :math:`\|W (d - A x)\|`. Collective.

        It is the square root of a difference of two energies. Relative to the norm of the data, its accuracy is thus
        limited to the square root of the rounding error of the dtype (3e-4 in float32).
        """
        from collops import dots

        (product,) = dots((x, 2.0 * self.right - self.operator.forward(x)))
        return float(np.sqrt(max(0.0, self.energy - float(product))))


class _Normal:
    """The normal operator of some consecutive shots that one local operator models.

    `memory` returns an array of at least the size of the modelled traces; ``None`` on an engine of immutable arrays.
    """

    def __init__(
        self,
        operator: Any,
        shots: range,
        weights: Weights | None,
        geometry: Geometry,
        engine: Engine,
        memory: Callable[[], LocalArray],
    ) -> None:
        self.operator, self.shots, self._weights = operator, shots, weights
        self._traces = [geometry.trace_shape(shot) for shot in shots]
        self.shape, self.dtype, self._engine = (operator.shape[1],) * 2, operator.dtype, engine
        self._memory = memory
        self.capturable = weights is None and getattr(operator, "capturable", True)  # weights come from the host

    def forward_local(self, x: LocalArray, out: LocalArray = None) -> LocalArray:
        """Model the shots from a flat image, and migrate the result."""
        weights = self._flat_weights()
        if weights is not None and not weights.any():
            return self._engine.xp.zeros(self.shape[1], self.dtype)
        memory = self._memory()
        modelled = self.operator.forward_local(x, None if memory is None else memory[: self.operator.shape[0]])
        if weights is not None:
            modelled *= self._engine.from_host(weights**2)
        return self.operator.adjoint_local(modelled, out)

    adjoint_local = forward_local

    def migrated(self, traces: list[np.ndarray], weighted: bool) -> tuple[LocalArray, float]:
        """Return the image of traces, an array for each shot, times the squared weights, and their weighted energy.

        With `weighted`, the traces have already been multiplied by the weights once.
        """
        flat = np.concatenate([shot_traces.ravel() for shot_traces in traces]).astype(self.dtype, copy=False)
        if (weights := self._flat_weights()) is not None:
            flat = flat if weighted else flat * weights
        energy = float(np.square(flat, dtype=np.float64).sum())
        twice = flat if weights is None else flat * weights
        return self.operator.adjoint_local(self._engine.from_host(twice), None), energy

    def _flat_weights(self) -> np.ndarray | None:
        if self._weights is None:
            return None
        weights = []
        for shot, shape in zip(self.shots, self._traces, strict=True):
            values = np.asarray(self._weights(shot))
            if values.ndim > 2 or any(n not in (1, m) for n, m in zip(values.shape[::-1], shape[::-1], strict=False)):
                raise InputError(f"weights of shape {values.shape} do not fit the traces of shot {shot + 1}, {shape}")
            weights.append(np.broadcast_to(values, shape).ravel())
        return np.concatenate(weights).astype(self.dtype, copy=False)


def shots_of_parts(geometry: Geometry, A: LinearOperator) -> list[range]:
    """Return the shots of this rank that each local operator of `A` models.

    Raises LayoutError if `A` is not the operator of the survey.
    """
    if isinstance(A, SplitImage):
        raise LayoutError(
            "the normal equations need a replicated image, not a split one: use survey.data() with this operator, or "
            "make an operator with split=False"
        )
    if not isinstance(A, VStack) or A.range is not geometry.layout(A.comm.size):
        raise LayoutError(f"the normal equations need the operator of this survey, not {A!r}")
    rank_shots = geometry.shares(A.comm.size)[A.comm.rank]
    parts, first = [], rank_shots.start
    for local in A.operators:
        last, size = first, 0
        while size < local.shape[0] and last < rank_shots.stop:
            size += int(np.prod(geometry.trace_shape(last)))
            last += 1
        if size != local.shape[0]:
            raise LayoutError(f"the normal equations need local operators of whole shots, not {local!r}")
        parts.append(range(first, last))
        first = last
    return parts


def normal_equations(
    geometry: Geometry,
    comm: Communicator,
    A: Any,
    weights: Weights | None,
    engine: Engine,
    traces: Traces,
    *,
    check: Callable[[np.ndarray], None] | None = None,
) -> NormalEquations:
    """Read the traces of each shot once, and migrate them; see :meth:`Survey.normal_equations`. Collective.

    `traces` returns the traces of shots. `check` receives the counts of `count_biased` on this rank, and is collective;
    without it, `traces` must return checked traces that are already multiplied by the weights.
    """
    from collops import DistributedArray

    with local_stage(comm):
        shots, operators = shots_of_parts(geometry, A), A.operators
        # One buffer for the traces of all parts, allocated at the first application.
        size = max((local.shape[0] for local in operators), default=0)
        memory = partial(Buffers().local, "traces", (size,), A.dtype, engine)
        parts = [
            _Normal(local, part, weights, geometry, engine, memory)
            for local, part in zip(operators, shots, strict=True)
        ]
    images: Any = A.domain
    operator = LocalSum(parts, comm, dims=images.shape)
    counts, energy = np.zeros(2), 0.0
    total = engine.xp.zeros(images.size, A.dtype)
    with local_stage(comm):
        for part in parts:
            values = traces(part.shots)
            counts += count_biased(values)
            image, square = part.migrated(values, check is None)
            total, energy = total + image, energy + square
    if check is not None:
        check(counts)
    right = DistributedArray(images, comm, comm.allreduce(total).reshape(images.shape))
    return NormalEquations(operator, right, float(comm.allreduce(np.array(energy))))
