"""What a propagator and its Jacobian share: tiles, kernels, communicators and storage, and the checks of a model."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from collops import Communicator, DistributedArray, Layout, StackedArray
from collops.errors import InputError, LayoutError, UnsupportedTypeError, type_name
from collops.extend.arrays import Array, LocalArray
from collops.extend.communication import (
    available_memory,
    collective_errors,
    communicator_or_world,
    name_of_device,
    raised_together,
)
from collops.extend.engines import Engine, engine_of, free_memory, kernel_table
from collops.extend.engines import engine as engine_called
from collops.seismic.host_kernels import checked_kernels, checked_threads, threads_of_rank
from collops.seismic.waves.compression import checked_bits, compressed_bytes
from collops.seismic.waves.fourth_order import FourthOrderMarch
from collops.seismic.waves.geometry import Geometry
from collops.seismic.waves.grid import Grid, Slab, Tile
from collops.seismic.waves.halos import TileHalos
from collops.seismic.waves.layers import Absorption, mean_frequency
from collops.seismic.waves.march import March
from collops.seismic.waves.media.kinds import kind_of_medium
from collops.seismic.waves.media.medium import Medium, grid_values
from collops.seismic.waves.media.relaxation import Relaxation, mechanisms_of
from collops.seismic.waves.particle_velocity import integrated, integrated_transposed
from collops.seismic.waves.shot import Shot
from collops.seismic.waves.shot_shares import consecutive_shares
from collops.seismic.waves.stencil import LIMITS
from collops.seismic.waves.storage import Storage

_MAX_POINTS = 2**31 - 1  # 32-bit indices of receivers, and of fluxes in layers, with media on devices
_MAX_PLANE = 2**27  # 32-bit distances of 16 rows or planes, on devices
_loops_of = kernel_table("collops.seismic.waves", None, numpy="march", cupy="cuda.march")
_TIME_LOOPS = {2: March, 4: FourthOrderMarch}


class Modelling:
    """The modelling of a rank's shots on its tile, for any model. Collective.

    Parameters as for :class:`Propagator`, and a function that returns the cost of each shot, by which they are shared;
    without it, their number is.

    Attributes
    ----------
    tile : Tile
        The tile of this rank.
    across : Communicator
        The ranks with the same tile, one of each group.
    shares : list of range
        The shots of each group.
    memory : int or None
        Bytes for wavefields.
    threads : int or None
        Threads of the kernels of hosts.
    parameters : dict
        Copies of the parameters of the medium, on the whole grid, by their names.
    medium : Medium
        The medium on the tile.
    wavenumber : float
        Of this rank, for the longest stable time step.
    time_loops : type of March
        The time loops of hosts, by the order in time.
    """

    def __init__(
        self,
        grid: Grid,
        geometry: Geometry,
        *,
        tiles: Sequence[int] | None,
        dtype: DTypeLike,
        parameters: dict[str, ArrayLike | None],
        relaxation: Relaxation | None,
        costs: Callable[[], Sequence[int]] | None,
        memory: int | None,
        wavefield_bits: int | None,
        kernels: str | None,
        threads: int | None,
        comm: Communicator | None,
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
            groups = comm.size // count
            sizes = None if costs is None else consecutive_shares(costs(), groups)
            self.range = Layout(geometry.shape, comm.size, (groups, count), (0, None, None), (sizes, None, None))
            known = [(name, values) for name, values in parameters.items() if values is not None]
            self.parameters = {name: grid_values(name, values, grid) for name, values in known}
            kind = kind_of_medium(self.parameters)
            mechanisms = mechanisms_of(relaxation, self.parameters, geometry.interval)
            parts = [Tile(grid, layout, rank, kind.reach(grid)) for rank in range(count)]
            self.tile = parts[comm.rank % count]
            self.medium = kind(self.tile, **self.parameters, **mechanisms)
            self.medium.check_stations(geometry)
            self.wavenumber = self.medium.wavenumber
            self.time_loops = _TIME_LOOPS[grid.time_order]
            self.storage = self._storage(parts, memory, wavefield_bits)
            checked_kernels(kernels)
            if threads is not None and shared_threads is not None:
                checked_threads(threads)
        self._kernels, self.threads = kernels, shared_threads if threads is None else threads
        self._steps: dict[Engine, Any] = {}
        self._shot: tuple[int, Shot] | None = None
        # The ranks of the tiles of one shot, and the ranks with the same tile of all shots.
        self._group = comm.subgroup(tuple(rank // count for rank in range(comm.size)))
        self.across = comm.subgroup(tuple(rank % count for rank in range(comm.size)))
        slices = [self.range.slices(rank)[0] for rank in range(comm.rank % count, comm.size, count)]
        self.shares = [range(part.start, part.stop) for part in slices]
        self.shots = self.shares[comm.rank // count]
        self._fill = TileHalos(parts, layout, self._group, self.medium.fields) if count > 1 else None
        several = count > 1 and self.medium.fields
        self._fill_one = TileHalos(parts, layout, self._group, ()) if several else self._fill  # of one field
        self.memory = memory

    def velocity(self, model: Array) -> LocalArray:
        """Return the velocity on this rank's tile in double precision, after checking it on all ranks. Collective."""
        if model.layout is not self.domain or model.comm is not self.comm:
            raise LayoutError(f"the model must have the layout {self.domain} of the propagator, not {model.layout}")
        xp = model.engine.xp
        own = xp.asarray(model.leaves[0].local_array, np.float64)
        velocity, smallest, largest = self.tile.extend(own, xp), float(own.min()), float(own.max())
        # Comparisons with NaN are false.
        invalid = not (smallest > 0 and largest < math.inf and self.medium.admits(velocity))
        facts = np.array([invalid, 0.0 if invalid else largest, self.wavenumber, *self.sizes()])
        invalid, largest, wavenumber, *sizes = self.comm.allreduce(facts, "max")
        with raised_together():
            self.check_sizes(model.engine, *sizes)
            if invalid:
                raise InputError(f"velocities must be positive and finite{self.medium.requirement}")
            self.check_interval(float(largest), float(wavenumber))
        return velocity

    def sizes(self) -> tuple[int, int]:
        """Return what 32-bit numbers limit on devices: the elements of this rank's tile, and of a plane of it."""
        points = max(math.prod(self.tile.shape), self.medium.layer_elements(self.tile, self.slabs))
        return points, math.prod(self.tile.shape[1:]) if len(self.grid.shape) == 3 else 0

    def check_sizes(self, engine: Engine, points: float, plane: float) -> None:
        """Raise InputError if a device cannot have tiles of this medium with :meth:`sizes` of so many on any rank."""
        if engine.memory != "device":
            return
        plain = type(self.medium) is Medium and self.grid.time_order == 2
        if points > _MAX_POINTS and not plain:
            raise InputError(
                f"on devices, a tile with {self.medium.name} in order {self.grid.time_order} in time may have at "
                f"most {_MAX_POINTS:,} points, not {points:,.0f}: use more tiles"
            )
        if plane > _MAX_PLANE:
            raise InputError(
                f"on devices, a tile may have at most {_MAX_PLANE:,} points across its first axis, "
                f"not {plane:,.0f}: divide the other axes"
            )

    def check_interval(self, largest: float, wavenumber: float) -> None:
        """Raise InputError if the time step is too long for the largest velocity and wavenumber of all ranks."""
        longest, interval = LIMITS[self.grid.time_order] / (largest * wavenumber), self.geometry.interval
        if interval > longest:
            raise InputError(
                f"a time step of {interval:g} s is unstable for the largest velocity, {largest:g} m/s: "
                f"it may be at most {longest:.6g} s on this grid"
            )

    def march(self, coefficients: LocalArray) -> Any:
        """Return the time loops for coefficients on the tile."""
        engine = engine_of(coefficients)
        loops, slabs = _loops_of(engine), self.slabs
        if engine not in self._steps:
            options = self._kernels, self.threads, engine.xp
            self._steps[engine] = loops.make_steps(self.medium, slabs, self.dtype, *options)
        kind = loops.march_for(self._steps[engine], self.time_loops)
        memory, c = self.row_elements(self.tile), coefficients.astype(self.dtype)
        return kind(self.tile, self._steps[engine], memory, c, self._fill, self.storage)

    def shot(self, number: int) -> Shot:
        """Return a shot on the tile; the last one is kept, since a gradient and the next call need it again."""
        if self._shot is None or self._shot[0] != number:
            density = self.parameters.get("density")
            shot = Shot.create(self.geometry, number, self.tile, self.dtype, density)
            self._shot = number, self.medium.shot(shot)
        return self._shot[1]

    def scaled(self, c: LocalArray) -> LocalArray:
        """Return new coefficients times the squared time step, in their memory, 0 where all fields vanish."""
        c *= self.geometry.interval**2
        if self.tile.surface and self.medium.vanishes_at_surface:
            c[..., 0] = 0
        return c

    def no_traces(self, engine: Engine) -> LocalArray:
        """Return zeros for the traces of this rank's shots."""
        return engine.xp.zeros((len(self.shots), *self.geometry.shape[1:]), self.dtype)

    def kept(self, engine: Engine, wavefields: Callable[[], LocalArray]) -> tuple[dict[int, LocalArray], bool]:
        """Return memory for the wavefields of shots that are kept, and whether all ranks agree to reuse them.

        The shots are numbered on this rank, and ``wavefields()`` returns the memory of one. They fit the memory, and
        half of what is available, besides the wavefields of one shot that is not kept; if they cannot be allocated,
        none are kept. Only exact ones are kept. The ranks of the tiles of a shot keep the same. On devices all ranks
        keep all shots or none, since the storage of others takes what is free. Collective: one small allreduce, and on
        devices one metadata message before it.
        """
        host = engine.memory == "host"
        if self.storage.checkpoints or self.storage.bits:
            return {}, host
        fitting = 1 if self.memory is None else int(self.memory) // self.storage.bytes
        free = available_memory(self.comm.local_size) if host else self._share_of_device(engine)
        fitting = min(fitting, free // (2 * self.storage.bytes))
        count = len(self.shots)
        if count > fitting:
            count = max(0, fitting - 1) if host else 0
        try:
            kept = {number: wavefields() for number in range(count)}
        except MemoryError:  # other processes have allocated it in the meantime
            kept = {}
        if host:
            count = int(self._group.allreduce(np.array([len(kept)]), "min")[0])
            return {number: kept[number] for number in range(count)}, True
        fits = bool(self.comm.allreduce(np.array([len(kept) == len(self.shots)], np.int64), "min")[0])
        if count and not fits:
            kept = {}
            engine.xp.get_default_memory_pool().free_all_blocks()  # ranks that share the device need it
        return kept, fits

    def _share_of_device(self, engine: Engine) -> int:
        """Return this rank's share of the free memory of its device, in bytes. Collective: one metadata message.

        All ranks measure it before one of them allocates.
        """
        free, name = free_memory(engine), name_of_device()
        return free // self.comm.allgather_metadata(name).count(name)

    def joined(self, traces: LocalArray) -> LocalArray:
        """Return the traces of all tiles, integrated over time for particle velocities. Collective."""
        traces = self._group.allreduce(traces, out=traces) if self._group.size > 1 else traces
        return integrated(traces, self.geometry.receiver_axes >= 0)

    def residuals(self, traces: LocalArray) -> LocalArray:
        """Return what receivers send back into the adjoint field: the transpose of the time integral. Sends nothing."""
        return integrated_transposed(traces, self.geometry.receiver_axes >= 0)

    def fill(self, field: LocalArray) -> LocalArray:
        """Return a field with the halo from the neighbouring tiles, in place unless it is of JAX. Collective."""
        return field if self._fill is None else self._fill(field)

    def surrounded(self, values: LocalArray, before: int, after: int, beyond: Any = "edge") -> LocalArray:
        """Return values of one field on the tile with so many more points before and after it along each axis.

        Neighbouring tiles have them; beyond the grid, edge values continue, or zeros if `beyond` is ``"constant"``.
        Collective among the ranks of the tiles: an exchange of halos.
        """
        tile, xp = self.tile, engine_of(values).xp
        padded = xp.pad(values, [(n, n) for n in tile.halo])
        padded = padded if self._fill_one is None else self._fill_one(padded)
        box, missing = [], []
        for axis, (n, halo, (lower, upper)) in enumerate(zip(tile.inner, tile.halo, tile.beside, strict=True)):
            low, high = (before, after) if axis in tile.axes else (0, 0)
            box.append(slice(halo - low * lower, halo + n + high * upper))
            missing.append((low * (not lower), high * (not upper)))
        return xp.pad(padded[tuple(box)], missing, mode=beyond)

    @property
    def slabs(self) -> list[Slab]:
        """The layers of this rank's tile."""
        return self._slabs(self.tile)

    def row_elements(self, tile: Tile) -> int:
        """Return the elements of a row of the memory variables of a tile: of its layers, and of the medium."""
        return self.medium.layer_elements(tile, self._slabs(tile)) + self.medium.memory(tile)

    def _slabs(self, tile: Tile) -> list[Slab]:
        return tile.slabs(self.absorption, self.dtype)

    @property
    def absorption(self) -> Absorption:
        """The parameters of the layers."""
        layers, interval = self.grid.layers, self.geometry.interval
        velocity, frequency = layers.velocity, layers.frequency
        if velocity is None:
            velocity = self.grid.largest_step(1.0) / interval  # for which this step is the longest stable one
        if frequency is None:
            frequency = mean_frequency(np.asarray(self.geometry.wavelet), interval)
        return Absorption(interval, velocity, frequency)

    def _storage(self, tiles: list[Tile], memory: int | None, bits: int | None) -> Storage:
        """Return the storage of the largest tile: all tiles of a shot recompute the same steps together."""
        checked_bits(bits)
        if memory is not None and not isinstance(memory, int | np.integer):
            raise InputError(f"memory must be an integer number of bytes, not {memory!r}")
        memory = None if memory is None else int(memory)  # of NumPy it would overflow
        fields, loops = math.prod(self.medium.fields), self.time_loops
        field = math.prod(loops.parts) * fields * max(math.prod(tile.inner) for tile in tiles)
        layers = (loops.laplacians * self.row_elements(tile) for tile in tiles)
        state = max(2 * (fields * math.prod(tile.shape) + own) for tile, own in zip(tiles, layers, strict=True))
        itemsize = self.dtype.itemsize
        steps = self.geometry.shape[2] - 1 + loops.lead
        compressed = compressed_bytes(field, self.dtype, bits) if bits else 0
        return Storage.within(memory, steps, field * itemsize, state * itemsize, bits, compressed)


def check_supported(array: object, what: str) -> None:
    """Raise UnsupportedTypeError unless this is a real distributed or stacked array of NumPy or CuPy."""
    if not isinstance(array, DistributedArray | StackedArray):
        raise UnsupportedTypeError(f"{what} must be a distributed array, not {type_name(array)}")
    _loops_of(array.engine)
    if array.dtype.kind == "c":
        raise UnsupportedTypeError(f"{what} must be real, not of {array.dtype}")


def check_host(array: object, what: str) -> None:
    """Raise UnsupportedTypeError unless this is a real distributed array of NumPy."""
    check_supported(array, what)
    if isinstance(array, DistributedArray | StackedArray) and array.engine.memory != "host":
        raise UnsupportedTypeError(f"{what} must be of numpy, not of {array.engine.name}")


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
