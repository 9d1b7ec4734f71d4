"""A migration of traces that are in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from collops.extend.applications import Job, local_stage
from collops.seismic.lsm.inversion import Migration, invert, vector
from collops.seismic.lsm.uncertainty import Uncertainty, uncertainty

if TYPE_CHECKING:
    from collops import LinearOperator
    from collops.seismic.conditioning import Conditioned
    from collops.seismic.lsm.options import Options
    from collops.seismic.lsm.problem import Problem


class ResidentSurvey:
    """The weighted traces of a migration, in memory. `StreamedSurvey` has the same methods. Collective.

    Parameters
    ----------
    job : Job
        The run.
    problem : Problem
        The problem, with `conditioned` traces.
    operator : LinearOperator
        The operator of the problem.

    Attributes
    ----------
    modelling : LinearOperator
        The operator.
    operator : LinearOperator
        The operator times the weights of the traces.
    traces : list of numpy.ndarray
        The weighted traces of each shot of this rank.
    normal : LinearOperator
        The normal operator.
    left_out : int
        Number of excluded traces of all ranks.
    """

    streamed = False

    def __init__(self, job: Job[Options], problem: Problem, operator: LinearOperator) -> None:
        from collops import Diagonal

        self._job, self._survey, self.modelling = job, problem.survey, operator
        self._conditioned: Sequence[Conditioned] = problem.conditioned or ()
        self.left_out, changes = traces_left_out(job, problem, self._conditioned)
        self.operator, self.traces = operator, [shot.traces for shot in self._conditioned]
        if changes:
            parts = [(shot.traces * shot.trust[:, None]).astype(shot.traces.dtype) for shot in self._conditioned]
            weights = vector(job, operator, [shot.weights for shot in self._conditioned])
            self.operator, self.traces = Diagonal(weights) @ operator, parts
        self.normal = self.operator.H @ self.operator
        self.explained: list[np.ndarray] = []

    @property
    def weights(self) -> list[np.ndarray]:
        """The weights of the samples of each shot."""
        return [shot.weights for shot in self._conditioned]

    def weighted(self) -> Iterable[np.ndarray]:
        """Return the weighted traces of each shot."""
        return self.traces

    def invert(
        self, held: list[np.ndarray] | None = None, more_bytes: int = 0, preconditioner: LinearOperator | None = None
    ) -> Migration:
        """Find the image; see `invert`. Collective."""
        return invert(self._job, self.operator, self.traces, held, more_bytes, preconditioner)

    def deviation(self, samples: int, migration: Migration, preconditioner: LinearOperator | None) -> Uncertainty:
        """Find the standard deviation of the image from samples of the posterior. Collective."""
        counted = sum(int(np.count_nonzero(shot.weights)) for shot in self._conditioned)
        residual = float(migration.solution.residuals[-1])
        run = migration.image, residual, counted, migration.damp, preconditioner
        return uncertainty(self._job, samples, self.operator, *run)

    def explain(self, image: np.ndarray) -> None:
        """Model the traces of an image, muted, without gain and with the polarity of the file. Collective.

        The traces of the survey are replaced by the conditioned traces without gain.
        """
        job, survey, operator = self._job, self._survey, self.modelling
        self.explained = survey.by_shot(job.on_host(operator.forward(job.distribute(operator.domain, image))))
        survey.traces = [shot.without_gain for shot in self._conditioned]
        for values, shot in zip(self.explained, self._conditioned, strict=False):
            values *= shot.mute / shot.gain

    def compared(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield the number of each shot, its traces, and the traces that `explain` modelled."""
        yield from zip(self._survey.shots, self._survey.traces, self.explained, strict=False)

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of the files of predicted traces and of the residual."""
        nothing = np.empty((0, self._survey.geometry.samples), np.float32)
        both = self.explained, self._survey.traces
        modelled, recorded = (np.concatenate([nothing, *parts], dtype=np.float32) for parts in both)
        return modelled, recorded - modelled

    def explained_twice_weighted(self) -> list[np.ndarray]:
        """Return the traces that `explain` modelled, with the gain and the weights of `twice_weighted`."""
        pairs = zip(self.explained, self._conditioned, strict=True)
        return [values * shot.gain * shot.weights * shot.trust[:, None] for values, shot in pairs]

    def twice_weighted(self) -> list[np.ndarray]:
        """Return the traces times their squared weights, as in the adjoint image."""
        return [traces * shot.weights for traces, shot in zip(self.traces, self._conditioned, strict=True)]


def traces_left_out(job: Job[Options], problem: Problem, conditioned: Iterable[Conditioned]) -> tuple[int, bool]:
    """Return the number of excluded traces, and whether any trace has weights or a mute. Collective."""
    sums = np.zeros(2)
    with local_stage(job.comm):
        for shot in conditioned:
            sums += np.count_nonzero(shot.trust == 0), (shot.trust != 1).any() or (shot.mute != 1).any()
    count, changes = job.comm.allreduce(sums)
    if count:
        options = job.options
        reasons = [f"dead, or more than {options.outliers:g} times as strong as their neighbours (--outliers)"]
        reasons += ["outside --offsets"] * (options.offsets is not None)
        reasons += ["excluded by --edit"] * (options.edit is not None)
        reasons += ["with weight 0 (--trace-weights)"] * (options.trace_weights is not None)
        job.listener.note(
            f"{int(count)} of {problem.survey.geometry.traces} traces are left out: they are {', or '.join(reasons)}"
        )
    return int(count), bool(changes)
