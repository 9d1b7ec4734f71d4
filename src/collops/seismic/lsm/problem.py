"""A migration problem: geometry, grid, velocity, wavelet, and the conditioned traces in memory or read for each use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.seismic.conditioning import Conditioned, Conditioning, ShotHeaders
from collops.seismic.segy import segy_bytes
from collops.seismic.signals import ricker
from collops.seismic.survey import Grid, Survey

if TYPE_CHECKING:
    from collops import LinearOperator
    from collops.seismic.kirchhoff import Thomsen, Weighting


def _travel_times_only() -> Weighting:
    from collops.seismic.kirchhoff import Weighting

    return Weighting()


@dataclass(frozen=True)
class Problem:
    """The operator's parameters and the data of a migration."""

    survey: Survey  # the geometry, and the traces of a recorded survey
    grid: Grid  # of the velocity; without a target, the image grid
    velocity: np.ndarray  # float64, of the grid's shape, m/s
    expression: str | None  # the velocity as text, if it is a formula
    mode: str  # ``"eikonal"`` or ``"analytic"``
    frequency: float  # peak frequency of the Ricker wavelet in hertz
    truth: np.ndarray | None = None  # the true reflectivity, of the grid's shape; None for a recorded survey
    # the shots of this rank, `StreamedShots` if they do not fit into the memory; None before a synthetic survey is
    # modelled
    conditioned: Sequence[Conditioned] | None = None
    conditioning: str = ""  # description of the conditioning
    # time zero is the middle sample; None for a Ricker wavelet of `frequency`
    custom_wavelet: np.ndarray | None = None
    weighting: Weighting = field(default_factory=_travel_times_only)  # of the operator
    noise_norm: float | None = None  # norm of the noise of all ranks in a synthetic survey
    target: Grid | None = None  # the image grid, if the image is a part of the grid
    thomsen: Thomsen | None = None  # anisotropy of the medium
    # `onset_times` of the traces of each shot of this rank, before mutes; None before a synthetic survey is modelled
    onsets: list[np.ndarray] | None = None

    @property
    def image_grid(self) -> Grid:
        """The grid of the image."""
        return self.target or self.grid

    def at_image(self, values: np.ndarray) -> np.ndarray:
        """Return values of the grid's shape at the points of the image."""
        return values if self.target is None else values[self.grid.box(self.target)]

    @property
    def streamed(self) -> bool:
        """Whether the traces are read from the file for each use."""
        return isinstance(self.conditioned, StreamedShots)

    @property
    def wavelet(self) -> tuple[np.ndarray, int]:
        """The wavelet and the index of its time zero."""
        taps = self.custom_wavelet
        return ricker(self.frequency, self.survey.geometry.interval) if taps is None else (taps, len(taps) // 2)

    def operator(self, **options: Any) -> LinearOperator:
        """Make the operator from an image to the traces of all shots, with options of `Survey.operator`. Collective."""
        fixed = {"wavelet": self.wavelet, "mode": self.mode, "weighting": self.weighting, "target": self.target}
        fixed["thomsen"] = self.thomsen
        return self.survey.operator(self.velocity, self.grid, **fixed, **options)  # type: ignore[arg-type]

    def condition(self, conditioning: Conditioning, traces: list[np.ndarray]) -> list[Conditioned]:
        """Condition the traces of this rank's shots, an array for each shot, with the sampling of the geometry."""
        return [
            conditioning.conditioned(values, self.shot_headers(shot), 1 / self.frequency)
            for shot, values in zip(self.survey.shots, traces, strict=True)
        ]

    def shot_headers(self, shot: int) -> ShotHeaders:
        """Return the headers of the traces of a shot."""
        geometry, known = self.survey.geometry, self.survey.headers
        records = np.arange(geometry.shots) + 1 if known is None else known.records
        channels = np.arange(geometry.receivers[shot].shape[1]) + 1 if known is None else known.channels[shot]
        placement = None if known is None else known.placement
        window = None if placement is None else placement.window(shot)
        return ShotHeaders(np.abs(geometry.offsets(shot)), channels, geometry.times, shot, records, window)

    @property
    def segy_bytes(self) -> int:
        """Bytes of the SEG-Y files of the results."""
        if self.survey.headers is None:
            return 0
        geometry, grid = self.survey.geometry, self.image_grid
        image, shots = (grid.points // grid.nz, grid.nz), (geometry.traces, geometry.samples)
        return 2 * (segy_bytes(*image) + segy_bytes(*shots))


@dataclass(frozen=True)
class StreamedShots(Sequence[Conditioned]):
    """The conditioned traces of this rank's shots, read from the file for each use."""

    problem: Problem
    conditioning: Conditioning
    # `Conditioned.trust` of each shot that has been read: unlike mutes, it depends on the samples.
    _trust: dict[int, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.problem.survey.shots)

    def __getitem__(self, number: Any) -> Any:
        survey = self.problem.survey
        shot = survey.shots[number]
        (traces,) = survey.read_shots(range(shot, shot + 1))
        headers, period = self.problem.shot_headers(shot), 1 / self.problem.frequency
        result = self.conditioning.conditioned(traces, headers, period)
        self._trust[shot] = result.trust
        return result

    def weights(self, shot: int) -> np.ndarray:
        """Return mute times trust of a shot that has been read; `shot` is its number in the survey."""
        mute = self.conditioning.muting(self.problem.shot_headers(shot), 1 / self.problem.frequency)
        return mute * self._trust[shot][:, None]
