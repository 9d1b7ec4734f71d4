"""A migration of traces that do not fit into the memory: they are read and conditioned shot by shot when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from collops import SolverResult, dots
from collops.extend.solvers import PreconditionedCG, consistent, precision_of, solve, takes_part
from collops.seismic.survey.normal import NormalEquations, normal_equations, shots_of_parts

if TYPE_CHECKING:
    from collops.extend.applications import Job
    from collops.seismic.lsm.problem import Problem


class StreamedSurvey:
    """The normal equations of a migration, `whole` those of all traces, and the traces modelled from its image."""

    def __init__(self, job: Job[Any], problem: Problem, operator: Any) -> None:
        self._job, self._survey, self._operator = job, problem.survey, operator
        self._shots: Any = problem.conditioned
        self._parts = shots_of_parts(problem.survey, operator)
        self._last: tuple[Any, list[tuple[np.ndarray, np.ndarray]]] = (None, [])
        self.whole = self.equations()

    def equations(self, share: list[np.ndarray] | None = None) -> NormalEquations:
        """Return the equations of all traces, or of a `share`: an array of 0 and 1 for each shot. Collective."""
        first = self._survey.shots.start

        def part(shot: int) -> Any:
            return 1.0 if share is None else share[shot - first][:, None]

        def weighted(shots: range) -> list[np.ndarray]:
            found = ((shot, self._shots[shot - first]) for shot in shots)
            return [each.traces * (each.trust[:, None] * part(shot)) for shot, each in found]

        return normal_equations(
            self._survey,
            self._operator,
            lambda shot: self._shots.weights(shot) * part(shot),
            self._job.engine,
            weighted,
        )

    def believed(self) -> Iterator[np.ndarray]:
        """Yield the weighted traces of each shot."""
        return (each.traces * each.trust[:, None] for each in self._shots)

    def compared(self, image: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield the number of each shot, its traces, and those modelled from an image, without gain."""
        for part, shots in enumerate(self._parts):
            for shot, (measured, modelled) in zip(shots, self._compared(part, image), strict=True):
                yield shot, measured, modelled

    def rows(self, image: np.ndarray) -> tuple[Rows, Rows]:
        """Return the rows of files: the traces modelled from an image, and what it leaves unexplained."""
        counts = [sum(self._survey.trace_shape(shot)[0] for shot in shots) for shots in self._parts]
        given = self._survey.geometry.samples, counts, lambda part: self._compared(part, image)
        return Rows(*given, lambda _, modelled: modelled), Rows(*given, np.subtract)

    def _compared(self, part: int, image: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the traces of each shot of one local operator, and those modelled; the last ones are kept."""
        if self._last[0] != (part, id(image)):
            engine, local = self._job.engine, self._operator.operators[part]
            model = engine.from_host(np.ascontiguousarray(image.ravel(), dtype=self._operator.dtype))
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


class _Numbers(NamedTuple):
    """The numbers of an iteration of CG, and the squared norm of the solution."""

    residual: Any
    curvature: Any
    product: Any
    size: Any


class _NormalCG(PreconditionedCG):
    """CG on normal equations, which knows how much of the data its iterates explain."""

    name = "CG on the normal equations"
    numbers = _Numbers
    degrees: ClassVar[Mapping[str, float] | None] = {"tol": 2, "atol": 1, "explained": 2}

    def init(self, A: Any, y: Any, x0: Any) -> Any:
        state = super().init(A, y, x0)
        state.numbers = (*state.numbers, 0.0 * state.numbers[0])
        return state

    def step(self, A: Any, state: Any) -> Any:
        """Take a step of CG, and find the squared norm of the solution where damping needs it."""
        state = super().step(A, state)
        size = 0.0 * state.numbers[0]
        if takes_part(self.damp):
            (size,) = dots(*consistent((state.x, state.x)))
        state.numbers = (*state.numbers, size)
        return state

    def details(self, state: Any, history: Any) -> dict[str, Any]:
        """Add the decrease of the squared residual of the data, from the first iterate to each [Hestenes and Stiefel].

        A step of length alpha = product / curvature lowers the objective by alpha times the product before it.
        """
        before, curvature = history.product[:-1], history.curvature[1:]
        steps = np.divide(before**2, curvature, out=np.zeros_like(before), where=curvature > 0)
        return super().details(state, history) | {"explained": np.cumsum([0.0, *steps]) + self.damp * history.size}


def minimise(A: Any, y: Any, *, damp: float, M: Any, **run: Any) -> SolverResult:
    """Solve ``(A + damp**2) x = y`` by CG with the preconditioner ``M @ M.H``, from zero. Collective.

    The details have ``explained``, an array: the energy of the data less the squared norm of their residual before the
    first iteration and after each.
    """
    M = None if M is None else M @ M.H
    return solve(_NormalCG(damp=damp * damp, precision=precision_of(y.dtype), M=M), A, y, parts=[M], **run)


def cross_validated(
    used: NormalEquations, held: NormalEquations, *, method: Callable[..., SolverResult], patience: int, **run: Any
) -> np.ndarray:
    """Do the same as `collops.solvers.cross_validate` by the equations of two parts of the data. Collective."""
    if not (used.energy and held.energy):
        return np.ones(1)
    shares = [1.0]

    def watch(iteration: int, view: Any) -> bool:
        shares.append(held.misfit(view.x) / held.energy**0.5)
        return iteration - int(np.argmin(shares)) >= patience

    method(used.operator, used.right, callback=watch, **run)
    return np.array(shares)
