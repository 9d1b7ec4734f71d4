"""What a survey chooses where the user does not: image grid, weights, and the mode of travel times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import InputError
from collops.seismic.survey.geometry import Geometry, Grid, cover
from collops.seismic.survey.headers import SurveyHeaders
from collops.seismic.survey.velocity import Gradient

if TYPE_CHECKING:
    from collops.seismic.kirchhoff import Thomsen, Weighting
    from collops.seismic.kirchhoff.weights import Amplitude

__all__ = ["mode_of"]

_STEEPEST = 60.0  # dip of the image of recorded data, in degrees


def choose_grid(
    geometry: Geometry,
    headers: SurveyHeaders | None,
    profile: Callable[[np.ndarray], np.ndarray],
    numbers: dict[str, Any],
) -> Grid:
    """Return the grid that covers a survey, for a velocity profile; for the numbers see :meth:`Survey.grid`."""
    return cover(geometry, profile, bins=headers and headers.bins, **numbers)


def grid_of_array(
    geometry: Geometry, headers: SurveyHeaders | None, values: np.ndarray, numbers: dict[str, Any], notes: list[str]
) -> Grid:
    """Choose the grid for a velocity array without spacings: columns cover the survey, and cells are square."""
    names = "xz" if values.ndim == 2 else "yxz"
    sizes = {f"n{axis}": size for axis, size in zip(names, values.shape, strict=True)}
    numbers = numbers | {name: numbers.get(name) or size for name, size in sizes.items()}
    profile = Gradient(float(values.mean()))
    if any(numbers.get(f"d{axis}") is None for axis in names):
        grid = choose_grid(geometry, headers, profile, numbers | {"dz": 1.0})
        spacings = {f"d{axis}": getattr(grid, f"d{axis}") for axis in names[:-1]} | {"dz": grid.dx}
        numbers |= {name: numbers.get(name) or spacing for name, spacing in spacings.items()}
        steps = ", ".join(f"{numbers[f'd{axis}']:g} m along {axis}" for axis in names)
        remedy = ", ".join(f"--d{axis}" for axis in names)
        notes.append(f"the velocity file has no spacings: {steps} are assumed ({remedy})")
    return choose_grid(geometry, headers, profile, numbers)


def choose_weighting(
    geometry: Geometry,
    headers: SurveyHeaders | None,
    grid: Grid,
    amplitude: Amplitude | None,
    aperture: float | None,
    max_dip: float | None,
    notes: list[str],
) -> Weighting:
    """Return the weights of :meth:`Survey.weighting`."""
    from collops.seismic.kirchhoff import Weighting

    recorded = headers is not None and not headers.defaults
    if amplitude is None and not recorded:
        amplitude = "none" if headers is None else headers.defaults.get("amplitude", "none")  # type: ignore[assignment]
    if amplitude is not None:
        if amplitude == "none" and recorded:
            part = {2: "a sixteenth", 3: "an eighth"}[geometry.dims]
            notes.append(f"travel times only: zero-phase data are imaged {part} of a wavelength too shallow")
        return Weighting(amplitude, aperture, max_dip)
    offset = max(float(np.abs(geometry.offsets(shot)).max()) for shot in range(geometry.shots))
    if aperture is None:
        aperture = float(np.ceil(grid.z[-1] * np.sin(np.radians(max_dip or _STEEPEST)) + offset / 2))
    chosen = Weighting({2: "2.5d", 3: "3d"}[geometry.dims], aperture, max_dip or _STEEPEST)  # type: ignore[arg-type]
    notes.append(
        f"amplitudes of point sources ({chosen.amplitude}), up to {chosen.aperture:g} m from source and receiver "
        f"and dips of {chosen.dip:g} degrees (--amplitude none for travel times only)"
    )
    return chosen


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
