"""The propagator: from a velocity model to the traces of all shots, on any number of ranks and tiles."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from collops import Communicator, DistributedArray, Layout
from collops.errors import InputError, LayoutError, UnsupportedTypeError, type_name
from collops.extend.communication import collective_errors, communicator_or_world, raised_together
from collops.extend.engines import engine as engine_called
from collops.seismic.host_kernels import threads_of_rank, uses_numba
from collops.seismic.waves.geometry import Geometry
from collops.seismic.waves.grid import Grid, Slab, Tile
from collops.seismic.waves.halos import TileHalos
from collops.seismic.waves.layers import mean_frequency
from collops.seismic.waves.march import March, Shot
from collops.seismic.waves.storage import Storage

if TYPE_CHECKING:
    from collops.seismic.waves.born import Born


class Propagator:
    r"""Acoustic modelling: the pressure at the receivers of all shots, as a function of the velocity. Collective.

    Shots are shared out among groups of ranks, and the grid of each shot among the tiles of a group. Traces and their
    derivatives do not depend on the number of ranks or tiles, bit for bit.

    Parameters
    ----------
    grid : Grid
        The grid of the model.
    geometry : Geometry
        Sources, receivers, wavelets and the time axis.
    tiles : sequence of int, optional
        Number of tiles along each axis of the grid. Their product must divide the number of ranks; by default 1, so
        that all ranks share the shots.
    dtype : dtype
        float32 or float64, of fields and data.
    memory : int, optional
        Bytes of this rank for the wavefields of a shot that the adjoint of the Jacobian needs; the same on all ranks.
        By default all wavefields are stored.
    kernels : {"numba", "numpy"}, optional
        Compiled kernels (the default), or plain NumPy, which computes the same bits many times slower. Without Numba,
        plain NumPy is the default, with a warning.
    threads : int, optional
        Threads of the Numba kernels; by default the ranks on one node share its cores.
    comm : Communicator, optional
        The ranks; the world by default.

    Attributes
    ----------
    domain, range : Layout
        Of a model in metres per second, of the grid's shape: replicated, or split into tiles. Of the data, (shots,
        receivers, samples): split by shots over the groups, and replicated over the tiles of a group.
    shots : range
        The shots of this rank's group.
    storage : Storage
        What the adjoint stores; ``print`` shows it in words.

    Raises
    ------
    InputError, LayoutError, UnsupportedTypeError
        On every rank, if an argument cannot be used.

    Notes
    -----
    The pressure u solves

    .. math::
        \frac{1}{v^2} \partial_t^2 u = \nabla^2 u + w(t)\, \delta(x - x_s)

    with central differences: leapfrog in time, and the order of the grid in space. Sample n is the pressure at time
    :math:`n \Delta t`. In a constant velocity in 3-D it is :math:`w(t - r / v) / (4 \pi r)`.

    Messages: a model sends one small allreduce; each time step on several tiles one exchange of halos, and each shot on
    several tiles one allreduce of its traces.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.seismic.waves import Geometry, Grid, Propagator
    >>> grid = Grid((40, 30), (10.0, 10.0), order=4)
    >>> geometry = Geometry([[100.0, 50.0]], [[300.0, 55.0]], np.hanning(20), 0.002)
    >>> F = Propagator(grid, geometry, kernels="numpy")
    >>> F(collops.full(F.domain, 2000.0)).shape
    (1, 1, 20)
    """

    def __init__(
        self,
        grid: Grid,
        geometry: Geometry,
        *,
        tiles: Sequence[int] | None = None,
        dtype: DTypeLike = "float32",
        memory: int | None = None,
        kernels: str | None = None,
        threads: int | None = None,
        comm: Communicator | None = None,
    ) -> None:
        self.grid, self.geometry = grid, geometry
        self.comm = comm = communicator_or_world(comm)
        shared_threads = threads_of_rank(comm, engine_called("numpy"), kernels)
        with collective_errors(comm):
            for name, value, kind in (("grid", grid, Grid), ("geometry", geometry, Geometry)):
                if not isinstance(value, kind):
                    raise UnsupportedTypeError(f"{name} must be a {kind.__name__}, not {type_name(value)}")
            geometry.check_inside(grid)
            self.dtype = np.dtype(dtype)
            if self.dtype.name not in ("float32", "float64"):
                raise UnsupportedTypeError(f"wavefields are of float32 or float64, not {self.dtype}")
            split = _checked_tiles(tiles, grid, comm.size)
            count, layout = math.prod(split), Layout.grid(grid.shape, split)
            places = tuple(range(1, len(split) + 1))
            self.domain = Layout(grid.shape, comm.size, (comm.size // count, *split), places)
            self.range = Layout(geometry.shape, comm.size, (comm.size // count, count), (0, None, None))
            parts = [Tile(grid, layout, rank) for rank in range(count)]
            self.tile, slabs = parts[comm.rank % count], self._slabs(parts[comm.rank % count])
            self._memory = _elements(slabs)
            self.storage = self._storage(parts, memory)
            if uses_numba(kernels, "waves propagate"):
                from collops.seismic.waves.numba_steps import Steps
            else:
                from collops.seismic.waves.numpy_steps import Steps
            self._steps: Any = Steps(self.tile, slabs, self.dtype, shared_threads if threads is None else threads)
        # The ranks of the tiles of one shot, and the ranks with the same tile of all shots.
        self._group = comm.subgroup(tuple(rank // count for rank in range(comm.size)))
        self._across = comm.subgroup(tuple(rank % count for rank in range(comm.size)))
        slices = [self.range.slices(rank)[0] for rank in range(comm.rank % count, comm.size, count)]
        self._shares = [range(part.start, part.stop) for part in slices]
        self.shots = self._shares[comm.rank // count]
        self._fill = TileHalos(parts, layout, self._group) if count > 1 else lambda field: None

    def __repr__(self) -> str:
        return f"<Propagator {self.grid.shape} -> {self.geometry.shape}, {self.dtype}>"

    def __call__(self, model: DistributedArray) -> DistributedArray:
        """Return the traces of all shots. Collective.

        Parameters
        ----------
        model : DistributedArray
            Velocities in metres per second, in the layout ``domain``, on the host.

        Raises
        ------
        LayoutError, UnsupportedTypeError
            If the model has another layout, or is not real or not in NumPy's memory.
        InputError
            On every rank, if a velocity is not a positive number, or the time step is too long for the largest one.
        """
        march, traces = self._march(self._velocity(model)), self._no_traces()
        for number, shot in enumerate(self.shots):
            march.model(self._shot(shot), traces[number])
        return DistributedArray(self.range, self.comm, self._joined(traces))

    def jacobian(self, model: DistributedArray) -> Born:
        """Return the derivative of the traces at a model, a linear operator. Collective.

        Parameters and exceptions as for :meth:`__call__`.
        """
        from collops.seismic.waves.born import Born

        return Born(self, model)

    def _velocity(self, model: DistributedArray) -> np.ndarray:
        """Return the velocity on this rank's tile in double precision, after checking it on all ranks. Collective."""
        check_host(model, "the model")
        if model.layout is not self.domain or model.comm is not self.comm:
            raise LayoutError(f"the model must have the layout {self.domain} of the propagator, not {model.layout}")
        velocity = self.tile.extend(np.asarray(model.local_array, np.float64))
        invalid = not (np.isfinite(velocity).all() and (velocity > 0).all())
        facts = np.array([invalid, 0.0 if invalid else velocity.max()])
        invalid, largest = self.comm.allreduce(facts, "max")
        with raised_together():
            if invalid:
                raise InputError("velocities must be positive and finite")
            longest, interval = self.grid.largest_step(float(largest)), self.geometry.interval
            if interval > longest:
                raise InputError(
                    f"a time step of {interval:g} s is unstable for the largest velocity, {largest:g} m/s: "
                    f"it may be at most {longest:.6g} s on this grid"
                )
        return velocity

    def _march(self, velocity: np.ndarray) -> March:
        c = ((velocity * self.geometry.interval) ** 2).astype(self.dtype)
        if self.tile.surface:
            c[..., 0] = 0
        return March(self.tile, self._steps, self._memory, c, self._fill, self.storage)

    def _shot(self, number: int) -> Shot:
        return Shot.create(self.geometry, number, self.tile, self.dtype)

    def _no_traces(self) -> np.ndarray:
        return np.zeros((len(self.shots), *self.geometry.shape[1:]), self.dtype)

    def _joined(self, traces: np.ndarray) -> np.ndarray:
        """Return traces with those of the other tiles. Collective."""
        return self._group.allreduce(traces, out=traces) if self._group.size > 1 else traces

    def _slabs(self, tile: Tile) -> list[Slab]:
        layers, interval = self.grid.layers, self.geometry.interval
        velocity, frequency = layers.velocity, layers.frequency
        if velocity is None:
            velocity = self.grid.largest_step(1.0) / interval  # for which this step is the longest stable one
        if frequency is None:
            frequency = mean_frequency(self.geometry.wavelet_of(0), interval)
        return tile.slabs(interval, velocity, frequency, self.dtype)

    def _storage(self, tiles: list[Tile], memory: int | None) -> Storage:
        """Return the storage of the largest tile: all tiles of a shot recompute the same steps together."""
        if memory is not None and not isinstance(memory, int | np.integer):
            raise InputError(f"memory must be an integer number of bytes, not {memory!r}")
        field = max(math.prod(tile.inner) for tile in tiles)
        state = max(2 * (math.prod(tile.shape) + _elements(self._slabs(tile))) for tile in tiles)
        itemsize = self.dtype.itemsize
        return Storage.within(memory, self.geometry.shape[2] - 1, field * itemsize, state * itemsize)


def check_host(array: object, what: str) -> None:
    """Raise UnsupportedTypeError unless this is a real distributed array of NumPy."""
    if not isinstance(array, DistributedArray):
        raise UnsupportedTypeError(f"{what} must be a distributed array, not {type_name(array)}")
    if array.engine.memory != "host" or array.engine.traced:
        raise UnsupportedTypeError(f"waves propagate in arrays of numpy, not of {array.engine.name}")
    if array.dtype.kind == "c":
        raise UnsupportedTypeError(f"{what} must be real, not of {array.dtype}")


def _elements(slabs: list[Slab]) -> int:
    """Return the elements of a memory variable of all slabs."""
    return sum(math.prod(slab.shape) for slab in slabs)


def _checked_tiles(tiles: Sequence[int] | None, grid: Grid, ranks: int) -> tuple[int, ...]:
    axes = len(grid.shape)
    try:
        split = (1,) * axes if tiles is None else tuple(map(operator.index, tiles))
    except TypeError as error:
        raise InputError(f"tiles must be a sequence of integers, not {tiles!r}") from error
    if len(split) != axes or min(split) < 1:
        raise InputError(f"a grid with {axes} axes is divided into a positive number of tiles along each, not {split}")
    if ranks % math.prod(split):
        raise InputError(f"{ranks} ranks cannot be divided into groups of {math.prod(split)} tiles")
    return split
