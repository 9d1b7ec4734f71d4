"""Velocities as functions of depth or two-way time: text files, Dix's equation, and the conversion to depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collops.errors import InputError
from collops.seismic.conditioning import read_table
from collops.seismic.streams import Location

KINDS = {
    "depth": "depth (m) and velocity (m/s)",
    "time": "two-way time (s) and interval velocity (m/s)",
    "rms": "two-way time (s) and RMS velocity (m/s)",
}
"""What a file of velocities holds."""

PARAMETER = "parameter"
"""The kind of a file of a parameter of any sign and without a unit, as a function of depth."""

_ROWS = 2001  # of a function that is converted to depth
_FINE = 0.002  # s, between samples of interval velocities that vary linearly between times


@dataclass(frozen=True)
class Profiles:
    """Velocities as functions of depth at positions on the line; linear between, and constant beyond them."""

    velocity: np.ndarray  # shape ``(positions, rows)``, m/s
    depth: np.ndarray  # depth of the rows in metres, increasing
    positions: np.ndarray  # distance along the line in metres, increasing; one for a velocity of depth alone
    notes: tuple[str, ...] = ()  # about the conversion, in sentences for the user

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """Return the mean velocity of all positions at depths in m."""
        return np.interp(z, self.depth, self.velocity.mean(axis=0))

    def on(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Return the velocity at distances along the line and depths, of shape ``(len(x), len(z))``."""
        rows = np.stack([np.interp(z, self.depth, column) for column in self.velocity])
        return np.stack([np.interp(x, self.positions, row) for row in rows.T], axis=1)


def read_profiles(path: Location, kind: str) -> Profiles:
    """Read velocities from a text file with two columns, `KINDS`, or with the distance along the line (m) before them.

    Velocities change linearly between depths, or between times of interval velocities; RMS velocities define layers of
    constant velocity, by Dix's equation. A `PARAMETER` may have any sign. Raises `InputError` if the file cannot be
    used.
    """
    holds = KINDS.get(kind, "depth (m) and value")
    meaning = f"{holds}, or distance along the line (m), {holds.replace(' and', ',')}"
    table = read_table(path, (2, 3), meaning)
    columns = np.column_stack([np.zeros((len(table), 3 - table.shape[1])), table])
    positions = np.unique(columns[:, 0])
    functions: list[tuple[str, np.ndarray, np.ndarray]] = []
    for position in positions:
        rows = columns[columns[:, 0] == position, 1:]
        axis, velocity = rows[np.argsort(rows[:, 0], kind="stable")].T
        where = str(path) if len(positions) == 1 else f"{path} at {position:g} m"
        if (np.diff(axis) <= 0).any() or axis[0] < 0 or (kind != PARAMETER and (velocity <= 0).any()):
            values = "" if kind == PARAMETER else "positive velocities, and "
            raise InputError(f"{where} must hold {values}each depth or time once, from 0: {meaning}")
        functions.append((where, axis, velocity))
    if kind in ("depth", PARAMETER):
        depth = np.unique(np.concatenate([axis for _, axis, _ in functions]))
        return Profiles(np.stack([np.interp(depth, axis, v) for _, axis, v in functions]), depth, positions)
    depth, velocity = in_depth([_time_layers(*function, kind) for function in functions], _ROWS)
    return Profiles(velocity, depth, positions, (described(path, kind, depth, functions[0][1][-1]),))


def _time_layers(where: str, times: np.ndarray, velocity: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the layers of one function of time; interval velocities vary linearly between its times."""
    if kind == "time":
        fine = np.unique(np.concatenate([times, np.arange(times[0], times[-1], _FINE)]))
        times, velocity = fine, np.interp(fine, times, velocity)
    edges, found = layers(times, velocity[None], kind, where)
    return edges, found[0]


def layers(times: np.ndarray, velocity: np.ndarray, kind: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the two-way times (s) of the boundaries of layers, from 0, and the interval velocities between them.

    Parameters
    ----------
    times : numpy.ndarray
        Increasing two-way times, s.
    velocity : numpy.ndarray
        Interval or RMS velocities at these times, shape ``(columns, times)``, m/s.
    kind : str
        ``"time"`` for interval velocities, or ``"rms"``.
    name : str
        For messages.

    Raises
    ------
    InputError
        If times are negative, or a squared interval velocity is not positive.

    Notes
    -----
    Dix's equation [1]_ for RMS velocities :math:`V_i` at :math:`t_i` is :math:`v_i^2 = (t_i V_i^2 - t_{i-1} V_{i-1}^2)
    / (t_i - t_{i-1})`.

    .. [1] C. H. Dix, Seismic velocities from surface measurements, Geophysics 20 (1955), 68-86.
    """
    if times[0] < 0 or times[-1] <= 0:
        raise InputError(f"{name} has two-way times from {times[0]:g} to {times[-1]:g} s: they must be 0 or later")
    edges = times if times[0] == 0 else np.concatenate([[0.0], times])
    if kind == "time":
        between = (velocity[:, :-1] + velocity[:, 1:]) / 2
        return edges, between if times[0] == 0 else np.concatenate([velocity[:, :1], between], axis=1)
    squares = times * velocity**2
    if times[0] > 0:
        squares = np.concatenate([np.zeros((len(squares), 1)), squares], axis=1)
    interval = np.diff(squares, axis=1) / np.diff(edges)
    if not (interval > 0).all():
        column, layer = np.unravel_index(int(np.argmin(interval)), interval.shape)
        where = "" if len(interval) == 1 else f", column {column + 1}"
        raise InputError(
            f"{name} has RMS velocities that fall too fast from {edges[layer]:g} to {edges[layer + 1]:g} s{where}: the "
            f"squared interval velocity is {interval[column, layer]:.4g} (m/s)^2; correct or smooth them"
        )
    return edges, np.sqrt(interval)


def in_depth(columns: Sequence[tuple[np.ndarray, np.ndarray]], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Convert layers in two-way time to depth by vertical integration; the lowest layer continues downwards.

    Parameters
    ----------
    columns : sequence of tuple
        The times of the boundaries and the interval velocities of each column, from `layers`.
    rows : int
        Number of depths.

    Returns
    -------
    depth : numpy.ndarray
        Equally spaced depths from 0 to the deepest boundary, m.
    velocity : numpy.ndarray
        Shape ``(columns, rows)``, m/s: the thickness of a row over the one-way time in it, so that vertical times are
        the same as before.
    """
    bases = [np.concatenate([[0.0], np.cumsum(values * np.diff(edges) / 2)]) for edges, values in columns]
    depth = np.linspace(0, max(float(base[-1]) for base in bases), rows)
    half = depth[1] / 2
    upper, lower = np.maximum(depth - half, 0), depth + half
    velocity = np.empty((len(columns), rows))
    for row, base, (edges, values) in zip(velocity, bases, columns, strict=True):
        # One more boundary, below all rows.
        more = 2 * lower[-1] - base[-1]
        z, t = np.append(base, base[-1] + more), np.append(edges, edges[-1] + 2 * more / values[-1])
        row[:] = 2 * (lower - upper) / (np.interp(lower, z, t) - np.interp(upper, z, t))
    return depth, velocity


def described(path: Location, kind: str, depth: np.ndarray, end: float) -> str:
    """Return a sentence about the conversion of velocities in time to depth; `end` is the last time, in s."""
    dix = "RMS velocities to interval velocities by Dix's equation, and " if kind == "rms" else "interval velocities "
    return (
        f"{path}: converted {dix}from two-way time to depth by vertical integration; {end:g} s are {depth[-1]:.0f} m "
        "at most"
    )
