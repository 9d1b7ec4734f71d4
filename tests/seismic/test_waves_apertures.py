"""Shots on windows of the model: exact transposes, the whole model where the aperture covers it, traces that agree."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import collops
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.extend.communication import alone
from collops.seismic.signals import ricker
from collops.seismic.waves import Geometry, Grid, Layers, Propagator
from collops.seismic.waves.apertures import window_costs
from tests.seismic.test_waves import arrays_of, assert_exact_adjoint, products, small


def shots_along_a_line(shots=3, ndim=2, **options):
    """Return a propagator of shots that each have receivers near their source."""
    shape = (30, 9) if ndim == 2 else (18, 5, 6)
    grid = Grid(shape, (10.0,) * ndim, order=4, layers=Layers(4))
    begin = np.linspace(35.0, 10.0 * shape[0] - 95.0, shots)
    sources = np.stack([begin, *[np.full(shots, 30.0)] * (ndim - 1)], axis=1)
    receivers = sources[:, np.newaxis] + np.array([[12.0, 4.0, 3.0], [50.0, 0.0, -11.0]])[:, 3 - ndim :]
    receivers[..., 0] = sources[:, :1] + [12.0, 50.0]
    geometry = Geometry(sources, receivers, np.pad(ricker(40.0, 0.001)[0], (0, 50))[15:55], 0.001)
    return Propagator(grid, geometry, dtype="float64", kernels="numpy", **options)


@pytest.mark.parametrize("ndim", [2, 3])
def test_the_adjoint_is_exact(comm, ndim):
    F = shots_along_a_line(4 if ndim == 2 else 2, ndim, aperture=27.0, comm=comm)
    J = assert_exact_adjoint(F)
    # Each shot is the propagator of its window, and only this.
    window = F._windows._boxes[1]
    inside = np.zeros(F.grid.shape)
    inside[window] = 1
    only = np.zeros(F.geometry.shape)
    only[1] = 1
    single = J.adjoint(collops.from_global(only, layout=F.range, comm=comm)).gather()
    assert single.any() and not single[inside == 0].any() and not inside.all()


def test_an_aperture_that_covers_the_model_changes_nothing(comm):
    grid, geometry = small(2, 4, surface=True, samples=30)
    density = 1500 + 300 * np.random.default_rng(5).random(grid.shape)
    whole, windowed = (
        Propagator(grid, geometry, dtype="float64", kernels="numpy", density=density, aperture=aperture, comm=comm)
        for aperture in (None, 500.0)
    )
    model, change, data = arrays_of(whole)
    J, other = whole.jacobian(model), windowed.jacobian(model)
    np.testing.assert_array_equal(windowed(model).gather(), whole(model).gather())
    np.testing.assert_array_equal(other.forward(change).gather(), J.forward(change).gather())
    image = J.adjoint(data).gather()
    np.testing.assert_allclose(other.adjoint(data).gather(), image, rtol=1e-11, atol=1e-12 * np.abs(image).max())
    impulse = windowed.wavelet_operator(model)
    wavelet = collops.from_global(np.asarray(geometry.wavelet), layout=impulse.domain, comm=comm)
    np.testing.assert_allclose(impulse.forward(wavelet).gather(), whole(model).gather(), atol=1e-10)


def test_waves_that_stay_in_the_window_are_those_of_the_whole_model(comm):
    """Until waves come back from the edges of the window: 40 samples of 1 ms, 2000 m/s, 6 points of 10 m."""
    traces = []
    for aperture in (60.0, None):
        F = shots_along_a_line(aperture=aperture, comm=comm)
        velocity = np.linspace(1900.0, 2100.0, 270).reshape(F.grid.shape)
        traces.append(F(collops.from_global(velocity, layout=F.domain, comm=comm)).gather())
    np.testing.assert_allclose(*traces, atol=2e-3 * np.abs(traces[1]).max())
    assert (traces[0] != traces[1]).any()


def test_windows_need_less_memory(comm):
    whole, windowed = (shots_along_a_line(aperture=aperture, comm=comm) for aperture in (None, 20.0))
    assert windowed.storage.bytes == whole.storage.bytes // 2  # 19 of 38 points with layers
    less = shots_along_a_line(aperture=20.0, memory=windowed.storage.bytes // 2, comm=comm)
    model, _, data = arrays_of(less)
    images = [F.jacobian(model).adjoint(data).gather() for F in (windowed, less)]
    np.testing.assert_array_equal(*images)


def test_shots_are_shared_by_the_cost_of_their_windows(comm):
    grid = Grid((50, 9), (10.0, 10.0), order=2, layers=Layers(4))
    sources = np.stack([np.linspace(30.0, 460.0, 5), np.full(5, 30.0)], axis=1)
    receivers = sources[:, np.newaxis] + np.array([[10.0, 5.0]])
    receivers[0, 0, 0] = 480.0  # the window of the first shot is the whole line
    geometry = Geometry(sources, receivers, ricker(40.0, 0.001)[0][:25], 0.001)
    options: dict[str, Any] = {"dtype": "float64", "kernels": "numpy", "aperture": 20.0}
    shared, single = (Propagator(grid, geometry, comm=group, **options) for group in (comm, alone()))
    costs = window_costs(grid, geometry, 20.0)
    assert costs == [57 * 17, *[15 * 17] * 3, 14 * 17]  # points with layers
    sizes = shared.range.sizes[0]
    assert sizes[0] == 1 or comm.size == 1  # its window costs more than any two others
    assert sizes == {1: (5,), 2: (1, 4), 3: (1, 2, 2)}.get(comm.size, sizes) and max(sizes[2:], default=0) <= 2
    assert products(shared) == products(single)
    model = collops.full(shared.domain, 2000.0, comm=comm)
    assert shared.wavelet_operator(model, common=False).dottest()


def test_steps_are_stable_in_all_windows(comm):
    """Where a window ends, its edge value continues: here the light layer, among points of three times its density."""
    density = np.full((60, 12), 3500.0)
    density[:20], density[20] = 1000.0, 3000.0
    grid = Grid(density.shape, (10.0, 10.0), order=2, layers=Layers(4))
    sources = np.array([[110.0, 50.0], [400.0, 50.0]])
    geometry = Geometry(sources, sources[:, np.newaxis], np.ones(5), 0.00335)
    whole, windowed = (
        Propagator(grid, geometry, density=density, kernels="numpy", aperture=aperture, comm=comm)
        for aperture in (None, 90.0)
    )
    model = collops.full(whole.domain, 2000.0, comm=comm)
    whole(model)
    for product in (windowed, windowed.jacobian, windowed.wavelet_operator):
        with pytest.raises(InputError, match="unstable"):  # also on the rank whose window allows the step
            product(model)


def test_parameters_are_those_of_the_construction(comm):
    grid, geometry = small(2, 4, samples=20)
    density = np.full(grid.shape, 1500.0)
    F = Propagator(grid, geometry, kernels="numpy", density=density, aperture=50.0, comm=comm)
    model = collops.full(F.domain, 2000.0, comm=comm)
    traces, of_wavelet = F(model).gather(), F.wavelet_operator(model)
    x = collops.random(of_wavelet.domain, seed=1, comm=comm)
    expected = (of_wavelet @ x).gather()
    density[: len(density) // 2] = 3000.0
    np.testing.assert_array_equal(F(model).gather(), traces)
    np.testing.assert_array_equal((F.wavelet_operator(model) @ x).gather(), expected)


def test_unusable_apertures(comm):
    for aperture in (0.0, -3.0, "near", np.nan, np.complex64(100), True):
        with pytest.raises(InputError, match="positive number of metres"):
            shots_along_a_line(aperture=aperture, comm=comm)
    if comm.size == 2:
        with pytest.raises(InputError, match="undivided grids"):
            shots_along_a_line(aperture=20.0, tiles=(2, 1), comm=comm)
    with pytest.raises(InputError, match="a wavefield take"):  # of some windows, in three dimensions
        shots_along_a_line(2, 3, aperture=20.0, memory=10_000, comm=comm)
    if importlib.util.find_spec("numba"):
        with pytest.raises(InputError, match="threads must be"):  # one shot: only one rank takes steps
            Propagator(*small(2, 4, shots=1), aperture=50.0, threads=0, comm=comm)
    grid, geometry = small(2, 4, width=0)
    with pytest.raises(InputError, match="need absorbing layers"):
        Propagator(grid, geometry, aperture=20.0, comm=comm)
    F = shots_along_a_line(aperture=20.0, comm=comm)
    with pytest.raises(LayoutError):
        F.jacobian(collops.ones(5, comm=comm))
    model = np.full(F.grid.shape, 2000.0)
    model[0, 0] = np.nan  # in the window of the first shot only
    with pytest.raises(InputError, match="positive and finite"):
        F(collops.from_global(model, layout=F.domain, comm=comm))
    pytest.importorskip("jax")
    with pytest.raises(UnsupportedTypeError, match="numpy or cupy"):
        F(collops.full(F.domain, 2000.0, engine="jax", comm=comm))
