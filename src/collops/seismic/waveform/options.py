"""The options that ``collops fwi``, ``rtm`` and ``lsrtm`` share: the survey, the grid, and the propagation of waves."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

from collops.errors import InputError
from collops.extend.applications import (
    METHOD,
    SYNTHETIC,
    AtLeast,
    Finite,
    Must,
    NotNegative,
    OneOf,
    Positive,
    RecordedOnly,
    SyntheticOnly,
    option,
)
from collops.seismic.lsm import Options as MigrationOptions
from collops.seismic.lsm.survey_options import CONDITIONING, FILES, SurveyOptions

_GRID = "Grid"
_OF_WAVES = {"shots", "receivers", "samples", "aperture"}  # options of lsm with another meaning
# An option with a default of each command.
Smooth = Annotated[
    float,
    option("The initial velocity is the true one, smoothed by a Gaussian of this many metres.", SYNTHETIC),
    Positive,
    SyntheticOnly(),
]


@dataclass(frozen=True, kw_only=True)
class WaveOptions(SurveyOptions):
    """The options of all commands that propagate waves. The survey has the options of ``collops lsm``."""

    recorded = "survey"
    writes = "out", "checkpoint", "metrics", "write_survey"
    segy_results: ClassVar[tuple[str, ...]]  # the SEG-Y files of a recorded survey

    survey: Annotated[
        str | None,
        option(
            "Prestack survey along a line or in 3-D, in SEG-Y, SU or Zarr; by default a synthetic survey along a line.",
            FILES,
            metavar="FILE.sgy|FILE.su|URL|STORE",
        ),
    ] = None
    velocity: Annotated[
        str | None,
        option("Velocity in m/s, as for lsm.", FILES, metavar="EXPRESSION|FILE|depth:FILE|time:FILE|rms:FILE"),
        RecordedOnly(),
    ] = None
    smooth_velocity: Annotated[
        float | None,
        option("Smooth the slowness with a Gaussian of this standard deviation, m.", FILES, metavar="METRES"),
        Positive,
        RecordedOnly(),
    ] = None
    dims: Annotated[
        int | None,
        option(
            "Dimensions of the survey and its waves: 2 (line) or 3 (area).", FILES, show_default="from the positions"
        ),
        Must("be 2 or 3", lambda value: value in (2, 3)),
        RecordedOnly(),
    ] = None
    nx: Annotated[int | None, option("Number of grid points along the line (x).", _GRID), AtLeast(2)] = None
    ny: Annotated[
        int | None, option("Number of grid points across the line (y), in 3-D.", _GRID), AtLeast(2), RecordedOnly()
    ] = None
    nz: Annotated[int | None, option("Number of grid points in depth (z).", _GRID), AtLeast(2)] = None
    dx: Annotated[float | None, option("Spacing of grid points in x, m.", _GRID), Positive] = None
    dy: Annotated[float | None, option("Spacing of grid points in y, m.", _GRID), Positive, RecordedOnly()] = None
    dz: Annotated[float | None, option("Spacing of grid points in z, m.", _GRID), Positive] = None
    x0: Annotated[float | None, option("First x of the grid, m.", _GRID), Finite, RecordedOnly()] = None
    y0: Annotated[float | None, option("First y of the grid, m.", _GRID), Finite, RecordedOnly()] = None
    water_depth: Annotated[
        float | None,
        option(
            "Depth of the water, m, in which velocity and image are not changed.",
            _GRID,
            metavar="METRES",
            show_default="0; known for the synthetic survey",
        ),
        Positive,
        RecordedOnly(),
    ] = None
    shots: Annotated[int, option("Number of shots.", SYNTHETIC), AtLeast(1), SyntheticOnly()] = 12
    receivers: Annotated[int, option("Number of receivers.", SYNTHETIC), AtLeast(1), SyntheticOnly()] = 80
    samples: Annotated[
        int | None,
        option("Number of samples per trace, 4 ms each.", SYNTHETIC, show_default="for echoes from the deepest point"),
        AtLeast(2),
        SyntheticOnly(),
    ] = None
    smooth: Smooth = 160.0
    write_survey: Annotated[
        str | None,
        option(
            "Write the synthetic survey to this file, as SEG-Y or Zarr, and its smooth velocity next to it, as .npy.",
            SYNTHETIC,
            metavar="FILE.sgy|STORE.zarr",
        ),
        SyntheticOnly(),
    ] = None
    frequency: Annotated[
        float | None,
        option("Peak frequency of the Ricker wavelet, Hz.", METHOD, show_default="from the data; 7 if synthetic"),
        Positive,
    ] = None
    wavelet: Annotated[
        str | None,
        option("Wavelet, as for lsm.", METHOD, metavar="ricker:HZ|FILE.npy|data", show_default="a Ricker wavelet"),
        RecordedOnly(),
    ] = None
    outliers: Annotated[
        float,
        option("Exclude dead traces, and traces this factor stronger than others, as for lsm.", CONDITIONING),
        NotNegative,
        RecordedOnly(),
    ] = 10.0
    mute: Annotated[
        str | None,
        option(
            "Mute samples before the time offset / SPEED + DELAY, or before picked times, as for lsm.",
            CONDITIONING,
            metavar="SPEED|SPEED,DELAY|FILE|none",
        ),
        RecordedOnly(),
    ] = None
    source: Annotated[
        str,
        option(
            "Sources of the recorded data: point, whose traces are in 2-D converted to line sources across the "
            "section, or line.",
            CONDITIONING,
            show_default="point; line for surveys that --write-survey wrote",
        ),
        OneOf("point", "line"),
        RecordedOnly(),
    ] = "point"
    order: Annotated[
        int,
        option("Order of the differences in space.", METHOD),
        Must("be 2, 4, 6, 8, 10, 12, 14 or 16", lambda value: value in range(2, 17, 2)),
    ] = 8
    layers: Annotated[int, option("Points of the absorbing layers.", METHOD), AtLeast(0)] = 15
    free_surface: Annotated[
        bool, option("Reflect waves at depth 0, where the pressure vanishes.", METHOD, "--free-surface")
    ] = False
    aperture: Annotated[
        float | None,
        option(
            "Compute each shot only this far around its source and its receivers.",
            METHOD,
            metavar="METRES",
            show_default="on the whole grid",
        ),
        Positive,
    ] = None
    quality_factor: Annotated[
        float | None,
        option(
            "Attenuate waves with this quality factor below the water; velocities are those at the peak frequency of "
            "the wavelet.",
            METHOD,
            show_default="no attenuation",
        ),
        AtLeast(5),
    ] = None
    memory: Annotated[
        float,
        option("MiB of a rank for wavefields; if not all of a shot fit, they are recomputed.", METHOD),
        Positive,
    ] = 1024.0
    wavefield_bits: Annotated[
        int | None,
        option(
            "Store wavefields in 8 or 16 bits, with errors, where --memory is too small for exact ones.",
            METHOD,
            show_default="exact",
        ),
        Must("be 8 or 16", lambda value: value in (8, 16)),
    ] = None

    def results(self) -> list[Path]:
        """Return the files and folders that the application may write, for any data."""
        names = "result.html", "shots", *(f"{name}.sgy" for name in self.segy_results)
        return [*super().results(), *(Path(self.out) / name for name in names), *self.survey_files]

    @property
    def survey_files(self) -> list[Path]:
        """The files of the synthetic survey, with --write-survey: its traces, and its smooth velocity."""
        if self.write_survey is None:
            return []
        return [Path(self.write_survey), Path(self.write_survey).with_suffix(".npy")]

    def check(self) -> None:
        """Raise `InputError` for invalid or contradictory values; read only headers of files."""
        super().check()
        if self.survey is None:
            return
        if self.velocity is None:
            raise InputError(f"--survey {self.survey} needs a velocity: pass --velocity, such as 1500+0.6z")
        self.survey_options().check()

    def survey_options(self) -> MigrationOptions:
        """Return the options with which ``collops lsm`` reads the same survey.

        Its weights belong to Kirchhoff operators: this amplitude has none that depend on the survey, and no notes.
        """
        names = {field.name for field in fields(self)} & {field.name for field in fields(MigrationOptions)}
        values: dict[str, Any] = {name: getattr(self, name) for name in names - _OF_WAVES}
        return MigrationOptions(**values | self.fixed_options(), amplitude="2d")

    def fixed_options(self) -> dict[str, Any]:
        """Return options of the survey that the application determines."""
        return {}
