"""Parameters of all media that vary at random, for tests that compare their kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from collops.seismic.waves import Relaxation

# Medium, order in time, axes, and order in space.
CASES = [("constant", 4, 1, 4), ("density", 2, 2, 4), ("density", 4, 2, 2), ("VTI", 2, 3, 2), ("VTI", 4, 2, 4)]
CASES += [("attenuation", 2, 1, 4), ("attenuation and density", 2, 1, 4), ("attenuation and VTI", 4, 2, 4)]


def varying_density(grid, seed=5):
    return 1500 + 1000 * np.random.default_rng(seed).random(grid.shape)


def varying_anisotropy(grid, seed=5):
    delta, more = np.random.default_rng(seed).random((2, *grid.shape))
    return {"epsilon": 0.1 * delta + 0.2 * more, "delta": 0.1 * delta}


def varying_solid(grid, seed=5):
    """A solid, with a fluid in it."""
    shear, density = np.random.default_rng(seed).random((2, *grid.shape))
    shear = 500 + 400 * shear
    shear[grid.shape[0] // 2 :] = 0
    return {"shear_velocity": shear, "density": 1500 + 1000 * density}


def at_depths_of_points(grid, geometry):
    """The stations at the nearest depths of grid points, as near the free surface of a solid."""
    step = [*[np.nan] * (len(grid.shape) - 1), grid.spacing[-1]]
    moved = (np.where(np.isnan(step), x, np.rint(x / step) * step) for x in (geometry.sources, geometry.receivers))
    return replace(geometry, **dict(zip(("sources", "receivers"), moved, strict=True)))


def varying_attenuation(grid, seed=5):
    """A quality factor with jumps."""
    rng = np.random.default_rng(seed)
    quality = np.where(rng.random(grid.shape) < 0.3, 15.0, 40 + 60 * rng.random(grid.shape))
    return {"quality_factor": quality, "relaxation": Relaxation(40.0)}


def parameters_of(medium, grid):
    """The parameters of a medium by its name."""
    own = varying_attenuation(grid) if "attenuation" in medium else {}
    if "density" in medium:
        own["density"] = varying_density(grid)
    return own | varying_anisotropy(grid) if "VTI" in medium else own
