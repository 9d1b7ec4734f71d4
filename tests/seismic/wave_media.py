"""Parameters of all media that vary at random, for tests that compare their kernels."""

from __future__ import annotations

import numpy as np

# Medium, order in time, axes, and order in space.
CASES = [("constant", 4, 1, 4), ("density", 2, 2, 4), ("density", 4, 3, 2), ("VTI", 2, 3, 2), ("VTI", 4, 2, 4)]


def varying_density(grid, seed=5):
    return 1500 + 1000 * np.random.default_rng(seed).random(grid.shape)


def varying_anisotropy(grid, seed=5):
    delta, more = np.random.default_rng(seed).random((2, *grid.shape))
    return {"epsilon": 0.1 * delta + 0.2 * more, "delta": 0.1 * delta}


def parameters_of(medium, grid):
    """The parameters of a medium by its name."""
    if medium == "constant":
        return {}
    return {"density": varying_density(grid)} if medium == "density" else varying_anisotropy(grid)
