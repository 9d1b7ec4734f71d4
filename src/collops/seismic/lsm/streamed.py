"""A migration of traces that do not fit into the memory: they are read and conditioned shot by shot when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.extend.applications import Gradient, Job
from collops.seismic.lsm.inversion import Migration, minimised
from collops.seismic.lsm.normal import cross_validated
from collops.seismic.lsm.regularisation import Penalty
from collops.seismic.lsm.resident import traces_left_out
from collops.seismic.survey.normal import NormalEquations, normal_equations, shots_of_parts

if TYPE_CHECKING:
    from collops.seismic.lsm.problem import Problem


class StreamedSurvey:
    """The same as `ResidentSurvey` for traces that are read whenever they are needed. Collective.

    Attributes
    ----------
    modelling, normal, left_out
        As for `ResidentSurvey`.
    whole : NormalEquations
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
            self.whole = self.equations()
        self.normal = self.whole.operator

    def invert(
        self, held: list[np.ndarray] | None = None, more_bytes: int = 0, preconditioner: Any = None
    ) -> Migration:
        """Find the image by normal equations. Collective."""
        whole = self.whole
        x = whole.right
        gradient = Gradient.of_products(x, (x, whole.operator.forward(x)), whole.energy)
        penalty, choose = Penalty(self._job.options.regularise, self._job, whole.operator, gradient), None
        if held is not None:
            with self._job.stage("migrating the traces that are held out, and the others"):
                out, used = (self.equations(part) for part in (held, [~each for each in held]))
            choose = partial(cross_validated, used, out)
        found = minimised(penalty, penalty.normal_method, x, preconditioner, choose, more_bytes)
        explained = found.solution.details["explained"]
        residuals = np.sqrt(np.maximum(0, whole.energy - explained))
        return replace(found, solution=replace(found.solution, residuals=residuals))

    def equations(self, share: list[np.ndarray] | None = None) -> NormalEquations:
        """Return the equations of all traces, or of a `share`: an array of 0 and 1 for each shot. Collective."""
        first = self._survey.shots.start

        def part(shot: int) -> Any:
            return 1.0 if share is None else share[shot - first][:, None]

        def weighted(shots: range) -> list[np.ndarray]:
            found = ((shot, self._shots[shot - first]) for shot in shots)
            return [each.traces * (each.trust[:, None] * part(shot)) for shot, each in found]

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
        return (each.traces * each.trust[:, None] for each in self._shots)

    def explain(self, image: np.ndarray) -> None:
        """Choose the image from which traces are modelled."""
        self._image = image

    def compared(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield the number of each shot, its traces, and the modelled ones, without gain."""
        for part, shots in enumerate(self._parts):
            for shot, (measured, modelled) in zip(shots, self._compared(part), strict=True):
                yield shot, measured, modelled

    def rows(self) -> tuple[Rows, Rows]:
        """Return the rows of the files of predicted traces and of the residual."""
        counts = [sum(self._survey.trace_shape(shot)[0] for shot in shots) for shots in self._parts]
        rows = self._survey.geometry.samples, counts, self._compared
        return Rows(*rows, lambda _, modelled: modelled), Rows(*rows, np.subtract)

    def _compared(self, part: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the traces of each shot of one local operator, and the modelled ones; the last ones are kept."""
        image = self._image
        if self._last[0] != (part, id(image)):
            engine, local = self._job.engine, self.modelling.operators[part]
            model = engine.from_host(np.ascontiguousarray(image.ravel(), dtype=self.modelling.dtype))
            modelled = engine.to_host(local.forward_local(model, None))
            found = []
            for shot in self._parts[part]:
                each, shape = self._shots[shot - self._survey.shots.start], self._survey.trace_shape(shot)
                own, modelled = modelled[: shape[0] * shape[1]].reshape(shape), modelled[shape[0] * shape[1] :]
                found.append((each.without_gain, own * (each.mute / each.gain).astype(own.dtype)))
            self._last = (part, id(image)), found
        return self._last[1]


class Rows:
    """Traces of this rank for a file, which are computed when they are sliced.

    Parameters
    ----------
    samples : int
        Number of samples of each trace.
    counts : list of int
        Traces of each part.
    compared : callable
        Returns the traces of each shot of a part, by its number, and those modelled.
    choose : callable
        Returns the rows of the file from such rows.
    """

    def __init__(
        self,
        samples: int,
        counts: list[int],
        compared: Callable[[int], list[tuple[np.ndarray, np.ndarray]]],
        choose: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> None:
        self._ends, self._compared, self._choose = np.cumsum([0, *counts]).tolist(), compared, choose
        self.shape = self._ends[-1], samples

    def __getitem__(self, rows: slice) -> np.ndarray:
        first, last, _ = rows.indices(self.shape[0])
        pieces = [np.empty((0, self.shape[1]), np.float32)]
        for part, (begin, end) in enumerate(pairwise(self._ends)):
            if begin < last and end > first:
                for own, modelled in self._compared(part):
                    here = slice(max(0, first - begin), max(0, last - begin))
                    pieces.append(self._choose(own[here], modelled[here]))
                    begin += len(own)
        return np.concatenate(pieces, dtype=np.float32)
