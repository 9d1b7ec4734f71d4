"""The command ``collops fwi``: full-waveform inversion by L-BFGS, from low to high frequencies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from collops.errors import InputError, Interrupted
from collops.extend.applications import (
    METHOD,
    AtLeast,
    Findings,
    Job,
    Must,
    OneOf,
    Out,
    Positive,
    Solution,
    digits,
    option,
    relative_error,
)
from collops.extend.communication import raised_together
from collops.extend.solvers import lbfgs
from collops.seismic.waveform.encoding import Stage, check_checkpoints, check_encoded, encoded, stages
from collops.seismic.waveform.inversion import Changes, Objective
from collops.seismic.waveform.misfits import MISFITS
from collops.seismic.waveform.options import WaveOptions
from collops.seismic.waveform.problem import WaveProblem, prepare
from collops.seismic.waveform.results import Outcome, Picture, findings

_REDRAW = 5  # iterations with the same signs
_GAIN = 10.0  # of frequencies at which the wavelet is weak; noise there would be amplified as much
_MARGIN = 1.25  # of the largest initial velocity, if there is no other bound


@dataclass(frozen=True, kw_only=True)
class Options(WaveOptions):
    """The options of ``collops fwi``."""

    segy_results = ("model", "update", "predicted", "residual")

    misfit: Annotated[
        str,
        option(
            "Misfit: differences of waveforms, of envelopes, of traces over their norms (correlation), or optimal "
            "transport.",
            METHOD,
        ),
        OneOf(*MISFITS),
    ] = "waveform"
    bands: Annotated[
        str | None,
        option(
            "Highest frequencies of consecutive inversions in Hz, increasing, such as 4,8; all for no limit.",
            METHOD,
            metavar="HZ,HZ,...",
            show_default="the peak frequency, then all",
        ),
    ] = None
    iterations: Annotated[int, option("Number of iterations of each band."), AtLeast(1)] = 15
    min_velocity: Annotated[
        float | None,
        option("Smallest velocity, m/s.", METHOD, show_default="0.9 times the smallest initial one"),
        Positive,
    ] = None
    max_velocity: Annotated[
        float | None,
        option("Largest velocity, m/s.", METHOD, show_default="1.25 times the largest initial one"),
        Positive,
    ] = None
    smooth_gradient: Annotated[
        float | None,
        option("Smooth the gradient, and every update, with a Gaussian of this standard deviation, m.", METHOD),
        Positive,
    ] = None
    depth_power: Annotated[
        float,
        option("Scale the unknowns by this power of the depth below the water, which favours deep updates.", METHOD),
        Must("be zero or positive, and at most 4", lambda value: 0 <= value <= 4),
    ] = 1.0
    whiten: Annotated[
        float | None,
        option(
            "Flatten the spectrum of the traces: amplify frequencies at which the wavelet is weak, by up to this "
            "factor, at least 2; 1 for the traces as they are.",
            METHOD,
            metavar="FACTOR",
            show_default=f"{_GAIN:g} for waveforms without noise, of the synthetic survey; else 1",
        ),
        Must("be 1, or from 2 to 1000", lambda value: value == 1 or 2 <= value <= 1000),
    ] = None
    pairs: Annotated[int, option("Number of steps that L-BFGS stores.", METHOD), AtLeast(1)] = 10
    encode: Annotated[
        int | None,
        option(
            "Combine the shots, with random signs, into so many encoded shots, which takes as much less time.",
            METHOD,
            metavar="SHOTS",
            show_default="each shot by itself",
        ),
        AtLeast(1),
    ] = None
    redraw: Annotated[
        int | None,
        option("With --encode, number of iterations with the same signs.", METHOD, show_default=f"{_REDRAW}"),
        AtLeast(1),
    ] = None
    out: Out = "collops-fwi"

    def resumes(self) -> bool:
        """Return whether there is a checkpoint to resume from."""
        return self.resume and any(Path(self.checkpoint or "").glob("band-*/iteration-*"))

    def check(self) -> None:
        """Raise `InputError` for invalid or contradictory values; read only headers of files."""
        super().check()
        self.frequencies(1.0)
        if self.profile:
            raise InputError("--profile divides the time of linear solvers: omit it, or set COLLOPS_PROFILE=1")
        if self.encode is None and self.redraw is not None:
            raise InputError("--redraw is for encoded shots: pass --encode, or omit it")
        if self.encode is not None and self.misfit != "waveform":
            raise InputError(
                f"--encode needs --misfit waveform: traces of encoded shots have no {self.misfit} of a shot"
            )
        if self.resume and self.checkpoint is not None:
            check_checkpoints(Path(self.checkpoint), self.redraw_interval())
        if self.encode is not None and self.survey is None and self.encode > self.shots:
            raise InputError(f"--encode must be at most {self.shots}, the number of shots, not {self.encode}")

    def gain(self) -> float:
        """Return the largest factor by which flattening the spectrum amplifies a frequency."""
        if self.whiten is not None:
            return self.whiten
        free_of_noise = self.survey is None and not self.noise
        return _GAIN if free_of_noise and self.misfit == "waveform" else 1.0

    def redraw_interval(self) -> int | None:
        """Return the number of iterations with the same signs; None without encoded shots."""
        return None if self.encode is None else self.redraw or _REDRAW

    def frequencies(self, peak: float) -> list[float | None]:
        """Return the highest frequency of each band, None for no limit; `peak` is the peak frequency of the wavelet."""
        if self.bands is None:
            return [peak, None]
        bands: list[float | None]
        try:
            bands = [None if text.strip() == "all" else float(text) for text in self.bands.split(",")]
        except ValueError:
            bands = [-1.0]
        limits = [np.inf if band is None else band for band in bands]
        if not all(np.array([0.0, *limits[:-1]]) < limits):
            raise InputError(f"--bands must be increasing frequencies in Hz, such as 4,8 or 4,all, not {self.bands!r}")
        return bands

    def fixed_options(self) -> dict[str, Any]:
        """Return options of the survey that the application determines: all waves are used unless muted."""
        return {"mute": self.mute or "none", "iterations": None}


def run(job: Job[Options]) -> Findings:
    """Invert full waveforms for the velocity, by L-BFGS.

    By default it inverts a synthetic survey over folded and faulted layers, from a smooth velocity, and compares the
    result with the true velocity. With --survey and --velocity it inverts a survey from a file. Writes image.png,
    convergence.png, result.zarr, and the interactive page result.html; for a survey from a file also the SEG-Y files
    model, update, predicted and residual.
    """
    waves = prepare(job, job.options.max_velocity, _MARGIN)
    bounds = bounds_of(job.options, waves)
    if job.options.encode is not None:
        check_encoded(waves, job.options.encode)
    waves = calibrate(job, waves)
    velocity, solution, norms = invert(job, waves, bounds)
    return describe(job, waves, velocity, solution, norms)


def bounds_of(options: Options, waves: WaveProblem) -> tuple[float, float]:
    """Return the bounds of the velocity; raise `InputError` on every rank if the initial velocity is outside."""
    velocity = waves.problem.velocity
    low, high = options.min_velocity, options.max_velocity
    low = 0.9 * float(velocity.min()) if low is None else low
    high = _MARGIN * float(velocity.max()) if high is None else high
    with raised_together():
        if not low <= velocity.min() <= velocity.max() <= high:
            raise InputError(
                f"the initial velocity is {velocity.min():.5g} to {velocity.max():.5g} m/s: --min-velocity and "
                f"--max-velocity must include it, unlike {low:g} to {high:g} m/s"
            )
    return low, high


def calibrate(job: Job[Options], waves: WaveProblem) -> WaveProblem:
    """Scale the wavelet so that traces modelled in the initial velocity fit the data best. Collective.

    The wavelet of a synthetic survey is known.
    """
    if waves.own:
        return waves
    with job.stage("scaling the wavelet"):
        modelled = waves.modelled(job, waves.problem.velocity)
        product, square = float(modelled.dot(waves.observed)), float(modelled.dot(modelled))
    with raised_together():
        if product <= 0:
            raise InputError(
                "traces modelled with this velocity and wavelet do not correlate with the data: check the velocity, "
                "the wavelet, --polarity and --mute"
            )
    job.note([f"the wavelet is multiplied by {product / square:.3g}, which fits the data best"])
    return replace(waves, recording=waves.recording.scaled(product / square))


def invert(
    job: Job[Options], waves: WaveProblem, bounds: tuple[float, float]
) -> tuple[np.ndarray, Solution, list[np.ndarray]]:
    """Invert one band after the other; return the velocity, and the norms of the residual in each. Collective.

    The residuals of the returned solution are relative to the first residual of their band, or of their draw of signs.
    """
    options, velocity = job.options, waves.problem.velocity
    bands = options.frequencies(waves.problem.frequency)
    below = np.where(waves.water, 0.0, waves.grid.z - np.where(waves.water, waves.grid.z, 0.0).max() + waves.grid.dz)
    scale = (below / below.max()) ** options.depth_power * ~waves.water
    if options.encode is not None:
        job.warn_of_idle_ranks(options.encode, "encoded shots")
    solutions: dict[Stage, Solution] = {}
    plan = stages(bands, options.iterations, options.redraw_interval())
    for stage in plan:
        shots = waves
        if options.encode is not None and stage.draw is not None:
            shots = encoded(job, waves, options.encode, (options.seed, stage.band, stage.draw))
        recording = shots.recording.up_to(stage.frequency, waves.survey.geometry.interval)
        recording = recording.whitened(waves.problem.wavelet[0], options.gain())
        changes = Changes(job, shots, velocity, scale, bounds, options.smooth_gradient)
        observed = recording.band_of(shots.observed)
        objective = Objective(shots.propagator, recording, observed, MISFITS[options.misfit], changes)
        if len(bands) > 1 and stage.draw in (None, 1):
            job.note([f"band {stage.band} of {len(bands)}: {_named(stage.frequency)}"])
        chosen = options
        if options.checkpoint is not None:
            chosen = replace(options, checkpoint=str(Path(options.checkpoint) / stage.name))
        method = {"lower": changes.lower, "upper": changes.upper, "memory": options.pairs, "tol": 0.0}
        method |= {"niter": stage.iterations, "writes": waves.result_bytes(), "final": stage == plan[-1]}
        try:
            solution = replace(job, options=chosen).solve(lbfgs, objective, changes.start, **method)
        except Interrupted as stop:  # resume from the folder of all bands
            done = sum(len(previous.residuals) - 1 for previous in solutions.values())
            raise Interrupted(str(options.checkpoint), done + stop.iteration, stop.signal) from None
        velocity = np.where(waves.water, velocity, job.gather(changes.velocity(solution.x)))
        solutions[stage] = solution
    norms = [
        _consecutive([solution.residuals for stage, solution in solutions.items() if stage.band == band])
        for band in range(1, len(bands) + 1)
    ]
    return velocity, _joined(list(solutions.values())), norms


def _consecutive(residuals: list[np.ndarray]) -> np.ndarray:
    """Return the residuals of consecutive runs: the first, and each after an iteration."""
    return np.concatenate([residuals[0][:1], *(part[1:] for part in residuals)])


def _joined(solutions: list[Solution]) -> Solution:
    """Return the solutions of consecutive stages as one."""
    counts = np.array([len(solution.residuals) - 1 for solution in solutions], np.float64)
    shares = [solution.residuals / (solution.residuals[0] or 1.0) for solution in solutions]
    share = counts / max(1.0, counts.sum())
    seconds = {
        kind: sum(part * solution.seconds[kind] for part, solution in zip(share, solutions, strict=True))
        for kind in solutions[-1].seconds
    }
    resumed = [solution.resumed_from for solution in solutions if solution.resumed_from is not None]
    return replace(
        solutions[-1], residuals=_consecutive(shares), seconds=seconds, resumed_from=sum(resumed) if resumed else None
    )


def describe(
    job: Job[Options], waves: WaveProblem, velocity: np.ndarray, solution: Solution, norms: list[np.ndarray]
) -> Findings:
    """Return the results for the recipe, which writes them. Collective."""
    options, start, truth = job.options, waves.problem.velocity, waves.truth
    bands = options.frequencies(waves.problem.frequency)
    with job.stage("modelling the result"):
        modelled = waves.modelled(job, velocity)
    before, after = (_misfit_of(waves, traces) for traces in (waves.modelled(job, start), modelled))
    pictures = {
        "start": Picture(start, "initial velocity", "m/s"),
        "model": Picture(velocity, "inverted velocity", "m/s"),
        "update": Picture(velocity - start, "difference", drawn=truth is None),
    }
    error = change = None
    if truth is not None:
        pictures = {"truth": Picture(truth, "true velocity", "m/s"), **pictures}
        error, change = relative_error(velocity, truth), relative_error(start, truth)
    rows = [
        ("band", f"{_named(band)}: {part[-1] / (part[0] or 1.0):.3g} of the first residual, {len(part) - 1} iterations")
        for band, part in zip(bands, norms, strict=True)
    ]
    rows.append(("misfit", f"{digits(100 * before)} % of the data before, {digits(100 * after)} % after"))
    if error is not None and change:
        rows.append(("model error", f"{digits(100 * error / change)} % of the error of the initial velocity"))
    numbers = {
        "misfit": options.misfit,
        "encoded_shots": options.encode,
        "whiten": options.gain(),
        "bands": ["all" if band is None else band for band in bands],
        "band_residuals": [[float(part[0]), float(part[-1])] for part in norms],
        "data_misfit_initial": before,
        "data_misfit": after,
        "model_error_reduction": error / change if error is not None and change else None,
        "start_relative_error": change,
        "min_velocity": float(velocity.min()),
        "max_velocity": float(velocity.max()),
    }
    titles = {"model": ("INVERTED VELOCITY, M/S", velocity), "update": ("CHANGE OF VELOCITY, M/S", velocity - start)}
    return findings(
        job,
        waves,
        Outcome(
            title="full-waveform inversion",
            subject="velocity",
            solution=solution,
            pictures=pictures,
            data=waves.observed,
            modelled=modelled,
            segy=titles,
            numbers=numbers,
            rows=rows,
            curve=f"L-BFGS, relative to the first residual of each {'band' if options.encode is None else 'draw'}",
            error=error,
        ),
    )


def _misfit_of(waves: WaveProblem, modelled: Any) -> float:
    """Return the norm of the residual over the norm of the data. Collective."""
    return float((modelled - waves.observed).norm()) / (float(waves.observed.norm()) or 1.0)


def _named(band: float | None) -> str:
    return "all frequencies" if band is None else f"up to {band:g} Hz"
