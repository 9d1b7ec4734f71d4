"""What a survey chooses where the user does not: image grid, weights, wavelet, and the mode of travel times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from collops.errors import InputError
from collops.extend.applications import local_stage
from collops.extend.communication import raised_together
from collops.extend.engines import Engine
from collops.extend.engines import engine as engine_called
from collops.seismic.signals import frequency_of, ricker
from collops.seismic.survey.geometry import Grid, cover
from collops.seismic.survey.velocity import Gradient, Model

if TYPE_CHECKING:
    from collops.seismic.kirchhoff import Thomsen, Weighting
    from collops.seismic.kirchhoff.weights import Amplitude
    from collops.seismic.survey.operator import SurveyModelling
    from collops.seismic.survey.survey import Survey

__all__ = ["choose_grid", "choose_modelling", "choose_weighting", "grid_of_array", "mode_of"]

_STEEPEST = 60.0  # dip of the image of recorded data, in degrees


def choose_grid(survey: Survey, profile: Callable[[np.ndarray], np.ndarray], numbers: dict[str, Any]) -> Grid:
    """Return the grid that covers a survey, for a velocity profile; for the numbers see :meth:`Survey.grid`."""
    return cover(survey.geometry, profile, bins=survey.headers and survey.headers.bins, **numbers)


def grid_of_array(survey: Survey, values: np.ndarray, numbers: dict[str, Any]) -> Grid:
    """Choose the grid for a velocity array without spacings: columns cover the survey, and cells are square."""
    names = "xz" if values.ndim == 2 else "yxz"
    sizes = {f"n{axis}": size for axis, size in zip(names, values.shape, strict=True)}
    numbers = numbers | {name: numbers.get(name) or size for name, size in sizes.items()}
    profile = Gradient(float(values.mean()))
    if any(numbers.get(f"d{axis}") is None for axis in names):
        grid = choose_grid(survey, profile, numbers | {"dz": 1.0})
        spacings = {f"d{axis}": getattr(grid, f"d{axis}") for axis in names[:-1]} | {"dz": grid.dx}
        numbers |= {name: numbers.get(name) or spacing for name, spacing in spacings.items()}
        steps = ", ".join(f"{numbers[f'd{axis}']:g} m along {axis}" for axis in names)
        remedy = ", ".join(f"--d{axis}" for axis in names)
        survey.notes.append(f"the velocity file has no spacings: {steps} are assumed ({remedy})")
    return choose_grid(survey, profile, numbers)


def choose_weighting(
    survey: Survey, grid: Grid, amplitude: Amplitude | None, aperture: float | None, max_dip: float | None
) -> Weighting:
    """Return the weights of :meth:`Survey.weighting`."""
    from collops.seismic.kirchhoff import Weighting

    geometry = survey.geometry
    if amplitude is None and (survey.headers is None or survey.defaults):
        amplitude = survey.defaults.get("amplitude", "none")  # type: ignore[assignment]
    if amplitude is not None:
        if amplitude == "none" and survey.headers is not None and not survey.defaults:
            part = {2: "a sixteenth", 3: "an eighth"}[geometry.dims]
            survey.notes.append(f"travel times only: zero-phase data are imaged {part} of a wavelength too shallow")
        return Weighting(amplitude, aperture, max_dip)
    offset = max(float(np.abs(geometry.offsets(shot)).max()) for shot in range(geometry.shots))
    if aperture is None:
        aperture = float(np.ceil(grid.z[-1] * np.sin(np.radians(max_dip or _STEEPEST)) + offset / 2))
    chosen = Weighting({2: "2.5d", 3: "3d"}[geometry.dims], aperture, max_dip or _STEEPEST)  # type: ignore[arg-type]
    survey.notes.append(
        f"amplitudes of point sources ({chosen.amplitude}), up to {chosen.aperture:g} m from source and receiver "
        f"and dips of {chosen.dip:g} degrees (--amplitude none for travel times only)"
    )
    return chosen


def choose_modelling(
    survey: Survey,
    model: Model,
    mode: str | None,
    thomsen: Thomsen | None,
    grids: tuple[Grid, Grid],
    frequency: float | None,
    wavelet: tuple[np.ndarray, int] | None,
    weighting: Weighting | None,
    antialias: bool,
    dtype: DTypeLike,
    engine: str | Engine | None,
) -> SurveyModelling:
    """Choose the mode and the wavelet, and check them with the velocity and the weights. Collective.

    For the parameters see :meth:`Survey.operator`; `grids` are the grids of the velocity and of the image.
    """
    from collops.seismic.host_kernels import threads_of_rank
    from collops.seismic.kirchhoff import Weighting
    from collops.seismic.kirchhoff.geometry import ImageGrid, checked_wavelet
    from collops.seismic.survey.operator import SurveyModelling

    comm, geometry, grid = survey.comm, survey.geometry, grids[0]
    with raised_together():
        mode = mode_of(model, mode, survey.defaults.get("mode"), thomsen)
    velocity = survey.velocity(model, grid)
    with local_stage(comm):
        grid.box(grids[1])
        if wavelet is not None:
            if frequency is not None:
                raise InputError("frequency and wavelet exclude each other: omit one of them")
            frequency = frequency_of(checked_wavelet(*wavelet)[0], geometry.interval)
    if frequency is None:
        frequency = survey.frequency()
    with local_stage(comm):
        weighting = weighting or Weighting()
        weighting.check(len(grid.shape))
        survey.check(velocity, grid, frequency)
        taps, centre = weighting.wavelet(*(wavelet or ricker(frequency, geometry.interval)), geometry.interval)
        compute, kind = engine_called(engine), np.dtype(dtype)
        if thomsen is not None:
            thomsen.parameters(ImageGrid.from_axes(*map(grid.axes.get, "zxy")))  # raises if it cannot be used
    medium, kernels = (velocity, mode, thomsen), (taps, centre, weighting, antialias, kind, compute)
    return SurveyModelling(geometry, comm, survey.notes, *grids, *medium, *kernels, threads_of_rank(comm, compute))


def mode_of(model: object, asked: str | None, header: str | None = None, thomsen: Thomsen | None = None) -> str:
    """Return the mode of travel times: from the user, else from the survey's header, else the formula if it applies.

    Where the velocity decreases with depth, rays of the formula would leave the subsurface.
    """
    if asked not in (None, "eikonal", "analytic"):
        raise InputError(f"mode must be 'eikonal' or 'analytic', not {asked!r}")
    if thomsen is not None:
        if asked == "analytic":
            raise InputError("--mode analytic is for isotropic media: omit it, or --epsilon and --delta")
        return "eikonal"
    formula = isinstance(model, Gradient) and model.gradient >= 0
    if asked == "analytic" and isinstance(model, np.ndarray):
        column = model.reshape(-1, model.shape[-1])[0]
        formula = column[-1] >= column[0] and np.allclose(model, np.linspace(column[0], column[-1], len(column)))
    if asked == "analytic" and not formula:
        raise InputError(
            "--mode analytic needs a velocity that is constant or increases linearly with depth: "
            "pass for example --velocity 1800 or --velocity 1500+0.6z"
        )
    return asked or ("analytic" if formula and header != "eikonal" else "eikonal")
