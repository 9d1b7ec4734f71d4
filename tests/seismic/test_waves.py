"""The propagator and its Jacobian: exact transposes, the same bits on any ranks, tiles and storage."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.extend.communication import alone
from collops.seismic.signals import ricker
from collops.seismic.waves import Geometry, Grid, Layers, Propagator, Storage, WaveformMisfit
from collops.seismic.waves.compression import BLOCK, CompressedFields, error_bound
from collops.seismic.waves.storage import Reversal

SHAPES = {1: (10,), 2: (17, 14), 3: (9, 8, 10)}
POSITIONS = np.array(
    [[33.0, 41.0, 52.0], [71.0, 62.0, 12.3], [40.0, 22.7, 40.0], [55.5, 30.1, 9.0], [20.0, 50.0, 66.0]]
)


def small(ndim=2, order=4, surface=True, shots=3, samples=40, width=5):
    grid = Grid(SHAPES[ndim], (10.0, 11.0, 9.0)[:ndim], order=order, layers=Layers(width), free_surface=surface)
    wavelet = ricker(40.0, 0.001)[0]
    wavelet = np.pad(wavelet, (0, samples))[5 : samples + 5]
    receivers = POSITIONS[2:, :ndim] + [[3.0], [0.0], [10.0]]
    return grid, Geometry(POSITIONS[:shots, :ndim], receivers, wavelet, 0.001)


def arrays_of(F, seed=0, engine="numpy"):
    """A model, a change of it, and data, the same on any ranks."""
    rng = np.random.default_rng(seed)
    values = 2000 + 200 * rng.standard_normal(F.grid.shape), rng.standard_normal(F.grid.shape)
    data = rng.standard_normal(F.geometry.shape)
    layouts = F.domain, F.domain, F.range
    return [
        collops.from_global(x, layout=layout, comm=F.comm, engine=engine)
        for x, layout in zip((*values, data), layouts, strict=True)
    ]


def products(F):
    """Data, linearised data and image as bytes of global arrays."""
    model, change, data = arrays_of(F)
    J = F.jacobian(model)
    return [x.gather().tobytes() for x in (F(model), J.forward(change), J.adjoint(data))]


def linearised_products(F):
    """As `products`, of the derivative that keeps wavefields."""
    model, change, data = arrays_of(F)
    traces, J = F.linearise(model)
    return [x.gather().tobytes() for x in (traces, J.forward(change), J.adjoint(data))]


def assert_exact_adjoint(F, engine="numpy"):
    """Check that the Jacobian is the derivative, to second order, and its adjoint the exact transpose; return it."""
    model, change, data = arrays_of(F, engine=engine)
    J = F.jacobian(model)
    modelled, image = J.forward(change), J.adjoint(data)
    missed = abs(float(modelled.dot(data)) - float(change.dot(image)))
    assert missed < 1e-12 * float(modelled.norm()) * float(data.norm())
    traces = F(model)
    one, two = (float((F(model + step * change) - traces - step * modelled).norm()) for step in (1.0, 2.0))
    assert 3.9 < two / one < 4.1
    return J


def assert_exact_on_tiles(comm, grid, geometry, tiles, share=0.5, **options):
    """Check the adjoint on tiles, and that one rank with a share of the memory computes the same bits."""
    F = Propagator(grid, geometry, tiles=tiles if comm.size < 4 else None, comm=comm, **options)
    assert_exact_adjoint(F)
    memory = int(share * Propagator(grid, geometry, comm=alone(), **options).storage.bytes)
    other = Propagator(grid, geometry, memory=memory, comm=alone(), **options)
    assert other.storage.checkpoints and products(F) == products(other)


def assert_same_waves(F, other):
    """Check that traces, their derivative and its transpose are equal to rounding."""
    model, change, data = arrays_of(F)
    J, expected = F.jacobian(model), other.jacobian(model)
    for found, right in [
        (F(model), other(model)),
        (J.forward(change), expected.forward(change)),
        (J.adjoint(data), expected.adjoint(data)),
    ]:
        assert float((found - right).norm()) < 1e-13 * float(right.norm())


@pytest.mark.parametrize(("ndim", "order", "surface"), [(1, 16, True), (2, 2, True), (2, 8, False), (3, 4, True)])
def test_the_adjoint_is_exact(comm, ndim, order, surface):
    F = Propagator(*small(ndim, order, surface), dtype="float64", kernels="numpy", comm=comm)
    assert_exact_adjoint(F)


@pytest.mark.parametrize("inner", [(), (3,)])
def test_numba_computes_the_same_bits_as_numpy(comm, monkeypatch, inner):
    numba_acoustic = pytest.importorskip("collops.seismic.waves.steps.numba_acoustic")
    # With an edge within them, several tasks share the layers across the second axis.
    monkeypatch.setattr(numba_acoustic, "_edges", lambda tile, *_: np.array([0, *inner, tile.inner[1]]))
    grid, geometry = small(3, 2, samples=25)
    made = [Propagator(grid, geometry, dtype="float64", kernels=kind, comm=comm) for kind in ("numba", "numpy")]
    assert products(made[0]) == products(made[1])


def test_numba_computes_the_same_bits_in_a_shallow_model(comm):
    """The stencil at a layer reaches above the free surface."""
    pytest.importorskip("numba")
    grid = Grid((17, 3), (10.0, 11.0), layers=Layers(5), free_surface=True)
    geometry = Geometry([[33.0, 11.0]], [[71.0, 11.0]], np.resize(ricker(40.0, 0.001)[0], 40), 0.001)
    made = [Propagator(grid, geometry, kernels=kind, comm=comm) for kind in ("numba", "numpy")]
    assert products(made[0]) == products(made[1])


@pytest.mark.parametrize("shots", [1, 5])
def test_the_same_bits_on_any_ranks_and_tiles(comm, shots):
    grid, geometry = small(2, 4, shots=shots)
    serial = products(Propagator(grid, geometry, kernels="numpy", comm=alone()))
    for tiles in dict.fromkeys([None, (comm.size, 1), (1, comm.size), (2, 1), (2, 2)]):
        if tiles is None or comm.size % np.prod(tiles) == 0:
            F = Propagator(grid, geometry, tiles=tiles, kernels="numpy", comm=comm)
            assert products(F) == serial


def test_three_axes_in_tiles(comm):
    grid, geometry = small(3, 8, shots=1, samples=15)
    serial = products(Propagator(grid, geometry, dtype="float64", kernels="numpy", comm=alone()))
    tiles = (1, comm.size, 1) if comm.size < 3 else (1, 1, 1)
    assert products(Propagator(grid, geometry, tiles=tiles, dtype="float64", kernels="numpy", comm=comm)) == serial


def test_checkpoints_change_no_bit(comm):
    grid, geometry = small(2, 4, shots=1)
    stored = Propagator(grid, geometry, kernels="numpy", comm=comm)
    assert str(stored.storage) == "all 39 wavefields, 0.08 MB"
    field = stored.storage.bytes // 39
    for fields in (8, 20):
        F = Propagator(grid, geometry, kernels="numpy", memory=fields * field, comm=comm)
        assert F.storage.checkpoints > 0
        assert F.storage.bytes <= fields * field
        assert products(F) == products(stored)
    with pytest.raises(InputError, match="too small"):
        Propagator(grid, geometry, kernels="numpy", memory=field, comm=comm)


@pytest.mark.serial
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bits", [8, 16])
def test_compressed_wavefields_are_within_their_bound(bits, dtype):
    rng = np.random.default_rng(bits)
    values = rng.standard_normal((9, 50)) * 10.0 ** rng.integers(-30, 30, (9, 50))
    values[2], values[3] = 0, 1e-40 * rng.standard_normal(50)
    values[-1, -1] = np.nan
    fields = CompressedFields(2, values.shape, np.dtype(dtype), bits)
    for number, factor in enumerate((1, -1)):
        fields.space(number)[...] = factor * values
        fields.store(number)
    for number, factor in enumerate((1, -1)):
        found, exact = fields.load(number).reshape(-1), factor * values.astype(dtype).reshape(-1)
        for begin in range(0, 448, BLOCK):
            block = slice(begin, begin + BLOCK)
            bound = error_bound(bits) * np.abs(exact[block]).max() + 32767 * np.finfo(dtype).tiny
            assert np.abs(found[block] - exact[block]).max() <= bound
        assert not np.isfinite(found[448:]).any()
    fields.space(0)[...] = 1  # after an undefined block
    fields.store(0)
    np.testing.assert_allclose(fields.load(0), 1, rtol=0.01)


@pytest.mark.parametrize(("bits", "share"), [(8, 0.55), (16, 0.6), (16, 0.3)])
def test_compressed_storage_keeps_its_bound(comm, bits, share):
    grid, geometry = small(2, 4, shots=2)
    exact = Propagator(grid, geometry, dtype="float64", kernels="numpy", comm=comm)
    budget = int(share * exact.storage.bytes)
    F, again = (
        Propagator(grid, geometry, dtype="float64", kernels="numpy", memory=m, wavefield_bits=bits, comm=comm)
        for m in (budget, None)
    )
    assert F.storage.bits == bits and F.storage.bytes <= budget and again.storage == exact.storage
    assert f"of {bits} bits" in str(F.storage) and f"{error_bound(bits):.2g} of the largest of 64" in str(F.storage)
    model, change, data = arrays_of(F)
    J, largest = F.jacobian(model), np.zeros(F._modelling.tile.inner)
    adjoint = J._march._steps.adjoint

    def recorded(u, before, memory, c, w, image):
        """Add the largest value of each block, whose errors are relative to it, times the adjoint field."""
        blocks = np.pad(np.abs(w).reshape(-1), (0, -w.size % BLOCK)).reshape(-1, BLOCK)
        tops = np.repeat(blocks.max(axis=1), BLOCK)[: w.size].reshape(w.shape)
        largest[...] += np.abs(u[F._modelling.tile.box]) * tops
        adjoint(u, before, memory, c, w, image)

    J._march._steps.adjoint = recorded
    image, modelled = J.adjoint(data), J.forward(change)
    tile, velocity = F._modelling.tile, F._modelling.velocity(model)
    size = (2 / velocity * np.abs(tile.extend(change.local_array)) * comm.allreduce(largest)).sum()
    rounding = 1e-12 * float(modelled.norm()) * float(data.norm())
    missed = abs(float(modelled.dot(data)) - float(change.dot(image)))
    assert rounding < missed <= error_bound(bits) * size + rounding
    assert np.abs(image.gather() - exact.jacobian(model).adjoint(data).gather()).max() < 2 * error_bound(bits) * float(
        image.norm("inf")
    )


class Counter:
    """A state of a simulation whose wavefield is the number of its step."""

    def __init__(self, step=0):
        self.step = step

    def copy(self):
        return Counter(self.step)

    def restore(self, other):
        self.step = other.step

    def advance(self, n, field):
        assert self.step == n
        self.step += 1
        if field is not None:
            field[...] = n


@pytest.mark.serial
@pytest.mark.parametrize(("checkpoints", "wavefields", "steps"), [(0, 9, 9), (1, 1, 7), (3, 2, 31), (4, 5, 120)])
def test_steps_in_reverse(checkpoints, wavefields, steps):
    budget = 10 * wavefields + 25 * checkpoints
    storage = Storage.within(budget, steps, 10, 25)
    if checkpoints > 1:  # this division of the budget, which is not the best one
        storage = Storage(steps, checkpoints, wavefields, budget, 0)
    walk = Reversal(storage, (1,), np.dtype(int))
    seen = [(n, int(field[0])) for n, field in walk.walk(Counter(), Counter.advance)]
    assert seen == [(n, n) for n in range(steps)][::-1]
    assert len(walk._saved) <= checkpoints
    assert walk.computed >= steps
    chosen = Storage.within(budget, steps, 10, 25)
    walk = Reversal(chosen, (1,), np.dtype(int))
    assert len(list(walk.walk(Counter(), Counter.advance))) == steps
    assert walk.computed == chosen.computed  # as predicted
    assert len(walk._saved) <= chosen.checkpoints


def test_a_long_step_is_refused_with_the_longest_one(comm):
    grid, geometry = small(2, 8, shots=1)
    F = Propagator(grid, geometry, kernels="numpy", tiles=(comm.size, 1) if comm.size < 4 else None, comm=comm)
    longest = grid.largest_step(9000.0)
    model = np.full(grid.shape, 2000.0)
    model[-1] = 9000.0  # on the last tile only
    with pytest.raises(InputError, match=f"at most {longest:.6g} s"):
        F(collops.from_global(model, layout=F.domain, comm=comm))
    model[-1] = np.nan
    with pytest.raises(InputError, match="positive and finite"):
        F.jacobian(collops.from_global(model, layout=F.domain, comm=comm))


def test_unusable_arguments(comm):
    grid, geometry = small(2)
    for arguments, error, words in [
        ({"tiles": (comm.size + 1, 1)}, InputError, "cannot be divided"),
        ({"tiles": (1,)}, InputError, "2 axes"),
        ({"dtype": "float16"}, UnsupportedTypeError, "float32 or float64"),
        ({"kernels": "cuda"}, InputError, "numba"),
        ({"memory": 1e9}, InputError, "integer"),
        ({"memory": np.uint64(1000)}, InputError, "too small"),
        ({"wavefield_bits": 12}, InputError, "in 8 or 16 bits, not 12"),
        ({"wavefield_bits": [8]}, InputError, "in 8 or 16 bits"),
    ]:
        with pytest.raises(error, match=words):
            Propagator(grid, geometry, comm=comm, **{"kernels": "numpy", **arguments})
    if comm.size > 1:
        with pytest.raises(LayoutError, match="fewer tiles"):
            Propagator(Grid((5, 14), (10.0, 11.0)), Geometry([[1, 1]], [[2, 2]], [1, 1], 1e-3), tiles=(comm.size, 1))
    with pytest.raises(InputError, match="outside the model"):
        Propagator(grid, Geometry([[500.0, 1.0]], [[1.0, 1.0]], np.ones(9), 0.001), kernels="numpy", comm=comm)
    F = Propagator(grid, geometry, kernels="numpy", comm=comm)
    for wrong, error in [
        (collops.ones(5, comm=comm), LayoutError),
        (np.ones(grid.shape), UnsupportedTypeError),
        (collops.full(F.domain, 2000 + 1j, comm=comm), UnsupportedTypeError),
    ]:
        with pytest.raises(error):
            F(wrong)
    with pytest.raises(LayoutError, match="observed"):
        WaveformMisfit(F, collops.ones(5, comm=comm))


@pytest.mark.serial
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (Grid, ((5,), (1.0, 1.0))),
        (Grid, ((5, 1), (1.0, 1.0))),
        (Grid, ((5, 5), (1.0, -1.0))),
        (Grid, ((5, 5), (1.0, 1.0), 5)),
        (Grid, ((5, 5), (1.0, 1.0), 4, 20)),
        (Grid, (None, (1.0, 1.0))),
        (Layers, (-1,)),
        (Layers, (5, 0.0)),
        (Geometry, ([1.0], [[1.0]], [1.0, 2.0], 1.0)),
        (Geometry, ([[1.0]], [[1.0, 2.0]], [1.0, 2.0], 1.0)),
        (Geometry, ([[1.0]], [[[1.0]], [[1.0]]], [1.0, 2.0], 1.0)),
        (Geometry, ([[1.0]], [[1.0]], [1.0], 1.0)),
        (Geometry, ([[1.0]], [[1.0]], [1.0, 2.0], 0.0)),
        (Geometry, ([[np.nan]], [[1.0]], [1.0, 2.0], 1.0)),
        (Geometry, ([["a"]], [[1.0]], [1.0, 2.0], 1.0)),
    ],
)
def test_unusable_descriptions(kind, arguments):
    with pytest.raises(InputError):
        kind(*arguments)
