"""Lay the map coordinates of a survey onto one line, because the migration is two-dimensional."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Line"]


@dataclass(frozen=True)
class Line:
    """A straight line on the map.

    Parameters
    ----------
    origin : tuple of float
        Easting and northing in metres of the point at distance zero.
    direction : tuple of float
        Unit vector along which the distance grows.
    """

    origin: tuple[float, float] = (0.0, 0.0)
    direction: tuple[float, float] = (1.0, 0.0)

    @classmethod
    def through(cls, east: np.ndarray, north: np.ndarray) -> Line:
        """Choose the line for points on the map.

        Where only one coordinate varies, the distance is that coordinate as it is in the file. Else the line
        is the one from which the points deviate least (in the mean square), it points east, and its first
        point has distance zero.
        """
        if np.ptp(north) == 0:
            return cls((0.0, float(north[0])), (1.0, 0.0))
        if np.ptp(east) == 0:
            return cls((float(east[0]), 0.0), (0.0, 1.0))
        centre = np.array([east.mean(), north.mean()])
        offsets = np.stack([east, north]) - centre[:, None]
        direction = np.linalg.eigh(offsets @ offsets.T)[1][:, -1]
        direction *= np.sign(direction[np.argmax(np.abs(direction))])
        origin = centre + direction * (direction @ offsets).min()
        return cls((float(origin[0]), float(origin[1])), (float(direction[0]), float(direction[1])))

    def distance(self, east: np.ndarray, north: np.ndarray) -> np.ndarray:
        """Return the distance along the line, in metres, of points on the map."""
        return (east - self.origin[0]) * self.direction[0] + (north - self.origin[1]) * self.direction[1]

    def deviation(self, east: np.ndarray, north: np.ndarray) -> np.ndarray:
        """Return the distance from the line, in metres, of points on the map."""
        return np.abs((north - self.origin[1]) * self.direction[0] - (east - self.origin[0]) * self.direction[1])
