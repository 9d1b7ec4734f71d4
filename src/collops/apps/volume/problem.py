"""Put a post-stack problem together: the data, recorded or made, and the operator that models them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.apps.job import Listener, warn_of_idle_ranks
from collops.apps.noise import with_noise
from collops.apps.outputs import Field, write_result
from collops.apps.stages import local_stage
from collops.apps.volume.cube import Axis, Cube, Volume
from collops.apps.volume.earth import impedance
from collops.apps.volume.load import check_size, recorded
from collops.apps.volume.modelling import trace_operator
from collops.apps.volume.options import VolumeOptions
from collops.apps.volume.wavelet import make_wavelet, parse_wavelet
from collops.array import DistributedArray

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["Problem", "Recipe", "prepare"]

_INTERVAL, _WAVELET = 0.004, "ricker:25"


@dataclass(frozen=True)
class Recipe:
    """What tells one job on post-stack data from another.

    Parameters
    ----------
    matrix : callable
        Returns the sparse matrix that models a trace, from the wavelet and the number of samples.
    model : callable
        Returns the model that is to be found from impedances in 10^6 kg/(m^2 s), samples along the last axis.
    extents : tuple of int
        Traces of the made volume along its lateral axes.
    samples : int
        Of its traces.
    noise : float
        Of its data, relative to the signal.
    """

    matrix: Callable[[np.ndarray, int], Any]
    model: Callable[[np.ndarray], np.ndarray]
    extents: tuple[int, ...]
    samples: int
    noise: float


@dataclass(frozen=True)
class Problem:
    """Data and operator.

    Parameters
    ----------
    volume : Volume
        This rank's part of the data.
    operator : LinearOperator
        From the ravelled model to the ravelled data.
    """

    volume: Volume
    operator: Any

    @property
    def cube(self) -> Cube:
        """Where the traces stand."""
        return self.volume.cube

    def vector(self, values: np.ndarray, compute: Engine) -> Any:
        """Return this rank's part of an array on the cube as a ravelled distributed array."""
        local = compute.from_host(np.ascontiguousarray(values.ravel(), dtype=self.operator.dtype))
        return DistributedArray(self.operator.domain, self.operator.comm, local)

    def values(self, vector: Any) -> np.ndarray:
        """Return this rank's part of a ravelled distributed array, shaped as its part of the cube."""
        return vector.engine.to_host(vector.local_array).reshape(self.volume.traces.shape)

    def numbers(self, options: VolumeOptions) -> dict[str, Any]:
        """Return what JSON gets of the data."""
        cube = self.cube
        return {
            "volume": options.volume,
            "wavelet": options.wavelet or (_WAVELET if options.volume is None else "data"),
            "wavelet_samples": len(self.volume.wavelet),
            "shape": list(cube.shape),
            "traces": cube.traces,
            "samples": cube.samples,
            "sample_interval": cube.interval,
        }

    def write(
        self,
        path: Path,
        title: str,
        arrays: dict[str, tuple[np.ndarray, str]],
        residuals: np.ndarray,
        numbers: dict[str, Any],
    ) -> Path:
        """Write arrays on the cube with coordinates, wavelet and residual norms; see `write_result`. Collective.

        Parameters
        ----------
        path : pathlib.Path
            The group's folder.
        title : str
            What made it.
        arrays : dict
            This rank's parts and their units, by name.
        residuals : numpy.ndarray
            Norms of the residual.
        numbers : dict
            What JSON gets.
        """
        cube, comm = self.cube, self.operator.comm
        fields = cube.coordinates()
        for name, (values, unit) in arrays.items():
            fields[name] = Field(DistributedArray(cube.layout(comm.size), comm, values), cube.dimensions, unit)
        fields["wavelet"] = Field(self.volume.wavelet, ("lag",), "1")
        fields["residual_norms"] = Field(residuals, ("iteration",), "1")
        return write_result(path, comm, fields, {"title": title, **numbers})


def prepare(options: VolumeOptions, recipe: Recipe, comm: Communicator, compute: Engine, listener: Listener) -> Problem:
    """Read or make the data, and build the operator. Collective.

    Raises
    ------
    InputError
        On every rank, if an option or a file cannot be used.
    """
    listener.stage("reading" if options.volume else "modelling")
    if options.volume is not None:
        volume = recorded(options, comm)
        operator = _operator(recipe, volume.cube, volume.wavelet, volume.live, comm, compute, options.dtype)
        problem = Problem(volume, operator)
    else:
        problem = _made(options, recipe, comm, compute)
    for note in problem.volume.notes:
        listener.note(note)
    first = problem.cube.lateral[0]
    warn_of_idle_ranks(listener, comm, len(first.values), f"{first.name}s")
    return problem


def _made(options: VolumeOptions, recipe: Recipe, comm: Communicator, compute: Engine) -> Problem:
    """Make a problem whose solution is known. Collective."""
    with local_stage(comm):
        cube = _made_cube(options, recipe)
        check_size(cube, comm, options.dtype)
        wavelet = make_wavelet(parse_wavelet(options.wavelet or _WAVELET), cube.samples, cube.interval)
        rows = cube.layout(comm.size).slices(comm.rank)[0]
        truth = recipe.model(impedance(cube.shape, rows)).astype(options.dtype)
        live = np.ones(truth.shape[:-1], dtype=bool)
    operator = _operator(recipe, cube, wavelet, live, comm, compute, options.dtype)
    empty = Problem(Volume(cube, truth, live, wavelet), operator)
    clean = empty.values(operator.forward(empty.vector(truth, compute)))
    noise = recipe.noise if options.noise is None else options.noise
    noisy, norm = with_noise(list(clean), range(rows.start, rows.stop), noise, options.seed, comm)
    traces = np.stack(noisy) if noisy else clean
    notes = [f"made {cube.describe()}, noise of {noise:g} of the signal"]
    return Problem(Volume(cube, traces, live, wavelet, truth, norm, notes), operator)


def _made_cube(options: VolumeOptions, recipe: Recipe) -> Cube:
    extents = [options.inlines or recipe.extents[0], options.crosslines or (*recipe.extents, 1)[1]]
    if extents[1] == 1:
        lateral = (Axis("trace", np.arange(extents[0]) + 1),)
    else:
        lateral = (Axis("inline", np.arange(extents[0]) + 1), Axis("crossline", np.arange(extents[1]) + 1))
    interval = _INTERVAL if options.interval is None else options.interval / 1e3
    return Cube(lateral, options.samples or recipe.samples, interval)


def _operator(
    recipe: Recipe,
    cube: Cube,
    wavelet: np.ndarray,
    live: np.ndarray,
    comm: Communicator,
    compute: Engine,
    dtype: str,
) -> Any:
    return trace_operator(recipe.matrix(wavelet, cube.samples), cube, live, comm, compute, dtype)
