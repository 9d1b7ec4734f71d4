"""Shots on windows of the model around their sources and receivers, each with a propagator of its own."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from collops import DistributedArray, LinearOperator, StackedArray
from collops.errors import InputError, UnsupportedTypeError
from collops.extend.arrays import Array, LocalArray
from collops.extend.operators import filled
from collops.seismic.waves.geometry import Geometry
from collops.seismic.waves.grid import Grid
from collops.seismic.waves.modelling import Modelling, check_supported
from collops.seismic.waves.shot_sums import ShotSum

Box = tuple[slice, ...]


def boxes_of(grid: Grid, geometry: Geometry, aperture: float) -> list[Box]:
    """Return the points of the model within `aperture` metres of the sources and receivers of each shot.

    They form a box along all axes but the depth, which is whole. Raises InputError unless `aperture` is positive.
    """
    numbers = int | float | np.integer | np.floating
    if isinstance(aperture, bool) or not isinstance(aperture, numbers) or not aperture > 0:
        raise InputError(f"the aperture must be a positive number of metres, not {aperture!r}")
    aperture = float(min(aperture, sys.float_info.max))
    boxes = []
    for shot in range(geometry.shape[0]):
        stations = np.concatenate([geometry.sources_of(shot), geometry.receivers_of(shot)])
        box = []
        for axis, (points, spacing) in enumerate(zip(grid.shape[:-1], grid.spacing, strict=False)):
            first = math.floor(max(0.0, float(stations[:, axis].min()) - aperture) / spacing)
            last = math.ceil(min(points - 1.0, (float(stations[:, axis].max()) + aperture) / spacing))
            first = min(first, points - 2)
            box.append(slice(first, max(last, first + 1) + 1))  # at least two points
        boxes.append((*box, slice(0, grid.shape[-1])))
    return boxes


def window_costs(grid: Grid, geometry: Geometry, aperture: float) -> list[int]:
    """Return the points of the window of each shot, with its layers: a time step takes as long as they are many."""
    return [_points(grid, box) for box in boxes_of(grid, geometry, aperture)]


def _points(grid: Grid, box: Box) -> int:
    return math.prod(replace(grid, shape=shape_of(box)).padded)


class ShotWindows:
    """The propagators of the windows of shots, made when they are used: their wavefields take the memory of one shot.

    Parameters
    ----------
    modelling : Modelling
        Of the whole grid.
    boxes : list of tuple of slice
        The window of each shot.
    make : callable
        ``make(grid, geometry, box)`` returns the propagator of a window, for one shot on one rank.

    Attributes
    ----------
    largest : Propagator
        Of the window with most points, with its layers.
    """

    def __init__(self, modelling: Modelling, boxes: list[Box], make: Callable[[Grid, Geometry, Box], Any]) -> None:
        self._modelling, self._boxes, self._make = modelling, boxes, make
        points = [_points(modelling.grid, box) for box in boxes]
        self.largest = self.propagator(int(np.argmax(points)))

    def propagator(self, shot: int) -> Any:
        """Return the propagator of a shot, whose layers have the parameters of the whole grid. Sends nothing."""
        grid, geometry, box = self._modelling.grid, self._modelling.geometry, self._boxes[shot]
        absorption = self._modelling.absorption
        layers = replace(grid.layers, velocity=absorption.velocity, frequency=absorption.frequency)
        origin = np.array([part.start for part in box]) * grid.spacing
        own = replace(grid, shape=shape_of(box), layers=layers)
        return self._make(own, geometry.window(shot, origin), box)

    def cut(self, shot: int, values: Array, own: Any) -> Array:
        """Return a model, or a change of it, at the points of a window, in the layout of its propagator."""
        box = self._boxes[shot]
        parts = [DistributedArray(own.domain, own.comm, leaf.local_array[box].copy()) for leaf in values.leaves]
        return StackedArray(parts) if isinstance(values, StackedArray) else parts[0]

    def add(self, shot: int, image: LocalArray, values: Array) -> None:
        """Add values of each part of a model at the points of a window to an image on the grid of each part."""
        for part, leaf in zip(image, values.leaves, strict=True):
            part[self._boxes[shot]] += leaf.local_array


class WindowedBorn(LinearOperator):
    """The derivative of the traces of shots on windows: `Born` of each, of the change in its window. Collective.

    Parameters
    ----------
    modelling : Modelling
        Of the whole grid.
    windows : ShotWindows
        The windows.
    model : DistributedArray or StackedArray
        The velocity at which it is linearised, or both velocities, after checks on all ranks.

    Notes
    -----
    Messages: none forward; in the adjoint one all-to-all and one allgather of images.
    """

    capturable = False

    def __init__(self, modelling: Modelling, windows: ShotWindows, model: Array) -> None:
        self._modelling, self._windows, self._model = modelling, windows, model.copy()
        super().__init__(model.layout, modelling.range, modelling.dtype, modelling.comm)

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        what, engine = "the data" if adjoint else "a change of the model", self._model.engine
        check_supported(x, what)
        if x.engine is not engine:
            raise UnsupportedTypeError(f"{what} must be of {engine.name}, as the model is, not of {x.engine.name}")
        if not adjoint:
            return filled(out, self._linearised(x))
        (traces,) = x.leaves
        for leaf, values in zip(out.leaves, self._migrated(traces.local_array), strict=True):
            filled(leaf, values)
        return out

    def _linearised(self, change: Array) -> LocalArray:
        traces = self._modelling.no_traces(self._model.engine)
        for number, (shot, own, born) in enumerate(self._shots()):
            traces[number] = born.forward(self._windows.cut(shot, change, own)).leaves[0].local_array[0]
        return traces

    def _migrated(self, traces: LocalArray) -> LocalArray:
        """Return the image of each part of the model."""
        modelling, xp = self._modelling, self._model.engine.xp
        images, shape = ShotSum(modelling.shots), (len(self._model.leaves), *modelling.grid.shape)
        for number, (shot, own, born) in enumerate(self._shots()):
            image = xp.zeros(shape, self.dtype)
            data = DistributedArray(own.range, own.comm, xp.ascontiguousarray(traces[number : number + 1]))
            self._windows.add(shot, image, born.adjoint(data))
            images.add(image)
        return images.total(modelling.shares, xp.empty(math.prod(shape), self.dtype), modelling.across).reshape(shape)

    def _shots(self) -> Iterator[tuple[int, Any, LinearOperator]]:
        """Yield the number, the propagator and the Jacobian of each shot of this rank."""
        for shot in self._modelling.shots:
            own = self._windows.propagator(shot)
            yield shot, own, own.jacobian(self._windows.cut(shot, self._model, own))


def shape_of(box: Box) -> tuple[int, ...]:
    """Return the points of a box along each axis."""
    return tuple(part.stop - part.start for part in box)
