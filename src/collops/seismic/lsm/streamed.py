"""A migration of traces that do not fit into the memory: they are read and conditioned shot by shot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.extend.applications import Gradient, Job
from collops.seismic.lsm.inversion import Migration, minimised
from collops.seismic.lsm.normal import cross_validated
from collops.seismic.lsm.regularisation import Penalty
from collops.seismic.lsm.resident import traces_left_out
from collops.seismic.lsm.rows import Rows
from collops.seismic.survey.normal import NormalEquations, normal_equations, shots_of_parts

if TYPE_CHECKING:
    from collops import LinearOperator
    from collops.seismic.lsm.problem import Problem


class StreamedSurvey:
    """The weighted traces of a migration, read from the file for each use; see `ResidentSurvey`. Collective.

    Attributes
    ----------
    modelling, normal, left_out
        As for `ResidentSurvey`.
    complete : NormalEquations
        The normal equations of all traces.
    """

    streamed = True

    def __init__(self, job: Job[Any], problem: Problem, operator: Any) -> None:
        self._job, self._survey, self.modelling = job, problem.survey, operator
        self._shots: Any = problem.conditioned
        self.left_out, _ = traces_left_out(job, problem, self._shots)
        self._parts = shots_of_parts(problem.survey.geometry, operator)
        self._last: tuple[Any, list[tuple[np.ndarray, np.ndarray]]] = (None, [])
        with job.stage("migrating the traces"):
            self.complete = self.equations()
        self.normal = self.complete.operator

    def invert(
        self, held: list[np.ndarray] | None = None, more_bytes: int = 0, preconditioner: LinearOperator | None = None
    ) -> Migration:
        """Find the image by normal equations. Collective."""
        equations = self.complete
        x = equations.right
        gradient = Gradient.from_products(x, (x, equations.operator.forward(x)), equations.energy)
        penalty, choose = Penalty(self._job.options.regularise, self._job, equations.operator, gradient), None
        if held is not None:
            with self._job.stage("migrating the traces that are held out, and the others"):
                out, used = (self.equations(part) for part in (held, [~mask for mask in held]))
            choose = partial(cross_validated, used, out)
        migration = minimised(penalty, penalty.normal_method, x, preconditioner, choose, more_bytes)
        explained = migration.solution.details["explained"]
        residuals = np.sqrt(np.maximum(0, equations.energy - explained))
        return replace(migration, solution=replace(migration.solution, residuals=residuals))

    def equations(self, share: list[np.ndarray] | None = None) -> NormalEquations:
        """Return the equations of all traces, or of a `share`: an array of 0 and 1 for each shot. Collective."""
        first = self._survey.shots.start

        def part(shot: int) -> float | np.ndarray:
            return 1.0 if share is None else share[shot - first][:, None]

        def weighted(shots: range) -> list[np.ndarray]:
            conditioned = ((shot, self._shots[shot - first]) for shot in shots)
            return [traces.traces * (traces.trust[:, None] * part(shot)) for shot, traces in conditioned]

        return normal_equations(
            self._survey.geometry,
            self._job.comm,
            self.modelling,
            lambda shot: self._shots.weights(shot) * part(shot),
            self._job.engine,
            weighted,
        )

    def weighted(self) -> Iterator[np.ndarray]:
        """Yield the weighted traces of each shot."""
        return (shot.traces * shot.trust[:, None] for shot in self._shots)

    def explain(self, image: np.ndarray) -> None:
        """Choose the image from which traces are modelled."""
        self._image = image

    def compared(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield the number of each shot, its traces, and the modelled traces, without gain."""
        for part, shots in enumerate(self._parts):
            for shot, (measured, modelled) in zip(shots, self._compared(part), strict=True):
                yield shot, measured, modelled

    def rows(self) -> tuple[Rows, Rows]:
        """Return the rows of the files of predicted traces and of the residual."""
        counts = [sum(self._survey.trace_shape(shot)[0] for shot in shots) for shots in self._parts]
        rows = self._survey.geometry.samples, counts, self._compared
        return Rows(*rows, lambda _, modelled: modelled), Rows(*rows, np.subtract)

    def _compared(self, part: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the recorded and the modelled traces of each shot of one local operator; cache the last result."""
        image = self._image
        if self._last[0] != (part, id(image)):
            engine, local = self._job.engine, self.modelling.operators[part]
            model = engine.from_host(np.ascontiguousarray(image.ravel(), dtype=self.modelling.dtype))
            modelled = engine.to_host(local.forward_local(model, None))
            pairs = []
            for shot in self._parts[part]:
                conditioned, shape = self._shots[shot - self._survey.shots.start], self._survey.trace_shape(shot)
                values, modelled = modelled[: shape[0] * shape[1]].reshape(shape), modelled[shape[0] * shape[1] :]
                pairs.append(
                    (conditioned.without_gain, values * (conditioned.mute / conditioned.gain).astype(values.dtype))
                )
            self._last = (part, id(image)), pairs
        return self._last[1]
