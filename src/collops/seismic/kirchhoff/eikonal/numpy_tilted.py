"""The arrivals at many points of an anisotropic medium by NumPy; the method is in `anisotropy`."""

from __future__ import annotations

import numpy as np

from collops.seismic.kirchhoff.eikonal.anisotropy import CLOSE, SLACK, STEPS
from collops.seismic.kirchhoff.eikonal.medium import FAR


def arrival(values: np.ndarray, inverses: np.ndarray, towards: np.ndarray, parameters: np.ndarray) -> np.ndarray:
    """Return the times at which the slowness vectors of their derivatives fulfil the dispersion relation, (points,).

    `values` and `inverses`, (2, axes, points), are from before and after the points, such that ``(time - value) *
    inverse`` is the upwind derivative along an axis in units of the slowness along the symmetry axis; `towards`
    (axes, points) estimates the slowness vectors in these units, and `parameters` are (5, points). Points that no wave
    has reached keep FAR.
    """
    found = np.full(values.shape[-1], FAR)
    # Half of the points need one step, few more than three.
    open_points = np.flatnonzero(values.min(axis=(0, 1)) < FAR)
    search = _Search(values[..., open_points], inverses[..., open_points], parameters[:, open_points])
    search.touch(towards[:, open_points])
    for _ in range(STEPS):
        times, fits = search.step()
        found[open_points[fits]] = times[fits]
        going = ~fits
        going[fits] = search.touch(search.towards, fits)[fits]
        if not going.any():
            break
        open_points = open_points[going]
        search.keep(going)
    return found


class _Search:
    """The sides and the ellipsoids of points whose arrivals are searched for; arrays have the points last."""

    def __init__(self, values: np.ndarray, inverses: np.ndarray, parameters: np.ndarray) -> None:
        self._first = values.min(axis=(0, 1))
        self._values, self._inverses = values, inverses
        self._stretch, self._kappa, self._axis = parameters[0], parameters[1], parameters[2:]
        # 1 if a ray comes from before the point, -1 from after it, 0 from neither.
        self._side = np.where(values[0] <= values[1], 1, -1) * (values.min(axis=0) < FAR)
        self._share, self._across, self._along = (np.ones_like(self._first) for _ in range(3))
        self.towards = np.zeros_like(values[0])

    def keep(self, going: np.ndarray) -> None:
        """Continue with some of the points."""
        for name, array in vars(self).items():
            setattr(self, name, array[..., going])

    def touch(self, towards: np.ndarray, where: np.ndarray | bool = True) -> np.ndarray:
        """Take the ellipsoids that touch the slowness surface in a direction; return which are far from the last."""
        along = (self._axis * towards).sum(axis=0) ** 2
        across = np.maximum((towards**2).sum(axis=0) - along, 0) * self._stretch
        total = across + along
        scale = 2 / np.maximum(total + np.sqrt(np.maximum(total**2 - 4 * self._kappa * across * along, 0)), 1e-300)
        along, across = np.where(total > 0, along * scale, 1), across * scale
        rest = 1 - self._kappa * across * along
        far = (np.abs(along - self._share) >= CLOSE) & (self._kappa != 0)
        self._share = np.where(where, along, self._share)
        self._across = np.where(where, self._stretch * (1 - self._kappa * along) / rest, self._across)
        self._along = np.where(where, (1 - self._kappa * across) / rest, self._along)
        return far

    def step(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the times of the sides that count, and where the rays come from them; change a side elsewhere."""
        side, axis, counts = self._side, self._axis, self._side != 0
        times = np.where(counts, np.where(side < 0, self._values[1], self._values[0]) - self._first, 0)
        weights = side * np.where(side < 0, self._inverses[1], self._inverses[0])
        inside, mixed = (axis**2 * counts).sum(axis=0), (axis * weights).sum(axis=0)
        mixed_times = (axis * weights * times).sum(axis=0)
        bent = 1 / self._along - 1 / self._across
        # The ellipsoid of the axes that count: its shadow along the others.
        shadow = -self._across * bent / (1 / self._across + bent * inside)
        squares = self._across * (weights**2).sum(axis=0) + shadow * mixed**2
        linear = self._across * (weights**2 * times).sum(axis=0) + shadow * mixed * mixed_times
        constant = self._across * (weights**2 * times**2).sum(axis=0) + shadow * mixed_times**2 - 1
        root = linear**2 - squares * constant
        real = root >= 0
        found = (linear + np.sqrt(np.maximum(root, 0))) / squares
        latest = np.argmax(np.where(counts, times, -FAR), axis=0)
        vector = weights * (found - times)
        mixed = (axis * vector).sum(axis=0)
        of_ray = (self._across + shadow * inside) * mixed * bent
        self.towards = np.where(counts, vector, axis * of_ray)
        ray = np.where(counts, side * (self._across * vector + shadow * axis * mixed), np.inf)
        dropped = np.where(real, np.argmin(ray, axis=0), latest)
        drops = ~real | (ray.min(axis=0) < -SLACK)
        added, how = self._earlier(found, counts)
        wanted, number = added.min(axis=0) < -SLACK, np.argmin(added, axis=0)
        columns = np.arange(len(found))
        side[dropped[drops], columns[drops]] = 0
        adds = ~drops & wanted
        side[number[adds], columns[adds]] = how[number[adds], columns[adds]]
        return self._first + found, ~drops & ~wanted

    def _earlier(self, found: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return by how much neighbours along other axes are earlier than the slowness vector says, and the sides."""
        slack = [
            np.where(
                ~counts & (self._values[after] < FAR),
                sign * self.towards - self._inverses[after] * (self._first + found - self._values[after]),
                np.inf,
            )
            for after, sign in enumerate((1, -1))
        ]
        return np.minimum(*slack), np.where(slack[0] <= slack[1], 1, -1)
