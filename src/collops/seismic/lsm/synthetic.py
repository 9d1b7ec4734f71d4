"""A synthetic survey over dipping, faulted layers below a flat cover."""

from __future__ import annotations

import numpy as np

from collops.errors import InputError
from collops.seismic.signals import ricker_shape, smooth_step
from collops.seismic.survey.geometry import Geometry, Grid

_INTERVAL = 0.004
"""Sample interval of the synthetic survey in seconds."""

_FREQUENCY = 20.0  # Hz
_MAX_RECORD = 600.0  # seconds
# Layers of the cover: depth as a fraction of the model's depth, and reflection strength.
_COVER = ((0.13, 0.7), (0.20, -0.5), (0.27, 0.8), (0.335, -0.6))
# Layers below the unconformity, in the coordinate across the layering before tilting and faulting.
_TILTED = (
    (0.22, 0.7),
    (0.30, -0.8),
    (0.37, 0.6),
    (0.45, 1.0),
    (0.53, -0.7),
    (0.60, 0.8),
    (0.69, -1.0),
    (0.77, 0.7),
    (0.85, -0.6),
    (0.93, 0.9),
    (1.01, -0.7),
)
# Faults: position at the surface and inclination over the whole depth (fractions of the width), and throw.
_FAULTS = ((0.24, 0.16, 0.075), (0.58, 0.14, -0.06))
_DIP = 0.26
_BASE = 0.93


def default_frequency(velocity: np.ndarray, grid: Grid) -> float:
    """Return 20 Hz, or less if the grid is too coarse for this frequency."""
    finest = float(velocity.min()) / (6.4 * max(grid.dx, grid.dz))
    return float(f"{min(_FREQUENCY, finest):.3g}")


def reflectivity(grid: Grid, velocity: np.ndarray, frequency: float) -> np.ndarray:
    """Return the true model of the migration, float64 of shape ``(nx, nz)`` and of order 1.

    Gently undulating layers lie on an unconformity; below it the layers dip and are offset by two normal faults. The
    reflectors are limited to the wavenumbers that a wavelet of `frequency` resolves at the `velocity`.
    """
    width, depth = grid.dx * (grid.nx - 1), grid.dz * (grid.nz - 1)
    across = ((grid.x - grid.x0) / width)[:, None]
    down = (grid.z / depth)[None, :]
    # The peak frequency f of the wavelet corresponds to the wavenumber 2 f / v; slightly less is better resolved.
    wavenumber = 1.6 * frequency / velocity * depth

    unconformity = 0.40 + 0.02 * np.sin(2 * np.pi * (across + 0.1)) + 0.015 * np.cos(5 * np.pi * across)
    undulation = 0.012 * np.sin(2.5 * np.pi * across + 0.4) + 0.006 * np.sin(7 * np.pi * across)
    model = 0.9 * ricker_shape((down - unconformity) * wavenumber)
    for level, strength in _COVER:
        model = model + strength * ricker_shape((down - level - undulation * level / 0.3) * wavenumber)

    layer = down - _DIP * (across - 0.5) - 0.025 * np.sin(2 * np.pi * across)
    for surface, lean, throw in _FAULTS:
        # The offset grows over one cell: the grid cannot represent the wavenumbers of a sharper fault.
        beyond = (across - surface - lean * down) * (grid.nx - 1)
        layer = layer - throw * np.clip(beyond + 0.5, 0, 1)
    tilted = np.zeros(grid.shape)
    for level, strength in _TILTED:
        tilted += strength * ricker_shape((layer - level) * wavenumber)
    below = smooth_step((down - unconformity) * wavenumber - 0.9) * smooth_step((_BASE - down) * wavenumber)
    # Layers fade out towards both ends, where no echo reaches the receivers.
    return (model + tilted * below) * smooth_step(across / 0.10) * smooth_step((1 - across) / 0.10)


def fixed_spread(grid: Grid, velocity: np.ndarray, shots: int, receivers: int, samples: int | None) -> Geometry:
    """Return a survey with shots and receivers evenly spaced on the surface; all receivers record all shots.

    By default the record is long enough for echoes from the greatest depth at moderate offsets.
    """
    if samples is None:
        slowness = 1 / velocity[grid.nx // 2]
        vertical = grid.dz * float(slowness.sum())
        offset = 0.35 * grid.dx * (grid.nx - 1) * float(slowness.mean())
        seconds = float(2 * np.hypot(vertical, offset) + 0.1)
        _check_seconds(seconds, "a smaller --dx, --dz, --nx or --nz")
        samples = int(np.ceil(seconds / _INTERVAL / 50)) * 50 + 1
    else:
        _check_seconds(samples * _INTERVAL, "a smaller --samples")
    stations = np.stack([_station_positions(grid, receivers), np.zeros(receivers)])
    sources = np.stack([_station_positions(grid, shots), np.zeros(shots)])
    return Geometry(sources, [stations] * shots, samples, _INTERVAL)


def _check_seconds(seconds: float, remedy: str) -> None:
    if not seconds <= _MAX_RECORD:
        raise InputError(f"a record must be at most {_MAX_RECORD:g} s long, not {seconds:.4g} s: choose {remedy}")


def _station_positions(grid: Grid, count: int) -> np.ndarray:
    positions = np.linspace(grid.x[0], grid.x[-1], count) if count > 1 else np.array([grid.x[0] + grid.x[-1]]) / 2
    # Round to tenths of a millimetre, as in SEG-Y headers, so that a survey read from a file is identical.
    return np.round(positions, 4)
