"""A synthetic velocity model in the manner of the Marmousi model: folded layers, growth faults, a trend, and water."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter

from collops.seismic.survey import Grid

WATER = 1500.0
"""Velocity of water in metres per second."""

_SEABED = 0.12  # of the depth of the model
_TOP, _BASE = 1700.0, 3500.0  # m/s, of the trend below the seabed and at the base of the model
_LAYERS = 9  # on average, over the depth of the model
_CONTRAST = 0.13  # standard deviation of a layer's velocity, relative to the trend
_FAULTS = 3


def velocity_model(grid: Grid, seed: int = 0) -> np.ndarray:
    """Return a velocity model in metres per second, float64 of the shape of the grid, ``(nx, nz)``.

    Below a flat seabed, the velocity is a trend with depth times a random factor of each layer. Layers are folded into
    an anticline, thicken with depth, and are offset by inclined faults, whose throw grows with depth. The model is the
    same in any resolution, but for the points of the grid.

    Parameters
    ----------
    grid : Grid
        The grid; the model scales with its width and its depth.
    seed : int
        Chooses layers, folds and faults.

    Examples
    --------
    >>> from collops.seismic.survey import Grid
    >>> from collops.seismic.waveform.earth import velocity_model
    >>> velocity = velocity_model(Grid(nx=60, nz=40, dx=20.0, dz=20.0))
    >>> velocity.shape, velocity.min()
    ((60, 40), 1500.0)
    """
    rng = np.random.default_rng(seed)
    across = np.linspace(0, 1, grid.nx)[:, np.newaxis]
    down = np.linspace(0, 1, grid.nz)[np.newaxis, :]
    below = np.clip((down - _SEABED) / (1 - _SEABED), 0, None)

    crest, phase = 0.5 + 0.15 * rng.uniform(-1, 1), rng.uniform(0, 2 * np.pi)
    fold = 0.16 * np.exp(-(((across - crest) / 0.22) ** 2)) + 0.02 * np.sin(3 * np.pi * across + phase)
    layer = below + fold * np.sqrt(below)
    for position in (np.arange(_FAULTS) + 0.5 + 0.2 * rng.uniform(-1, 1, _FAULTS)) / _FAULTS:
        dip, throw = rng.uniform(0.1, 0.3), rng.uniform(0.06, 0.12) * rng.choice((-1, 1))
        layer = layer - throw * below * (across > position + dip * (below - 0.5))

    thickness = rng.uniform(0.5, 1.5, 2 * _LAYERS) / _LAYERS
    interfaces = np.cumsum(thickness)
    factor = 1 + _CONTRAST * np.clip(rng.standard_normal(len(interfaces) + 1), -1.5, 1.5)
    velocity = (_TOP + (_BASE - _TOP) * below) * factor[np.searchsorted(interfaces, layer)]
    return np.where(down <= _SEABED, WATER, np.maximum(velocity, 1.02 * WATER))


def water_points(grid: Grid) -> np.ndarray:
    """Return which points of the model are water, a boolean array of the shape of the grid."""
    return np.broadcast_to(np.linspace(0, 1, grid.nz) <= _SEABED, grid.shape)


def smooth_model(velocity: np.ndarray, grid: Grid, length: float, water: np.ndarray) -> np.ndarray:
    """Return a model whose slowness is smoothed by a Gaussian with a standard deviation in metres; water is unchanged.

    Water is not smoothed into the layers below it, either.
    """
    weight = gaussian_filter((~water).astype(np.float64), (length / grid.dx, length / grid.dz), mode="nearest")
    slowness = gaussian_filter(np.where(water, 0.0, 1 / velocity), (length / grid.dx, length / grid.dz), mode="nearest")
    return np.where(water, velocity, np.maximum(weight, 1e-12) / np.maximum(slowness, 1e-18))
