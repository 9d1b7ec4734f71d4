"""Waves of fourth order in time: convergence, stability, exact adjoints, the same bits on any tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import collops
from collops.errors import InputError
from collops.extend.communication import alone
from collops.seismic.waves import Geometry, Grid, Layers, Propagator, largest_step, phase_velocity
from tests.seismic.test_waves import assert_exact_adjoint, products, small
from tests.seismic.test_waves_physics import VELOCITY, analytic, traces
from tests.seismic.wave_media import varying_density as varying


@pytest.mark.parametrize(("ndim", "order", "kernels"), [(3, 2, "numba"), (2, 4, "numpy")])
def test_the_adjoint_is_exact_on_any_tiles(comm, ndim, order, kernels):
    """With constant and with variable density."""
    grid, geometry = small(ndim, order, shots=1, samples=25)
    grid = replace(grid, time_order=4, shape=((12, 8, 10), (17, 14))[3 - ndim], layers=Layers(3))
    options = {"density": varying(grid)} if ndim == 2 else {}
    tiles = (((comm.size, 1, 1), (1, comm.size))[3 - ndim]) if comm.size < 4 else None
    F = Propagator(grid, geometry, dtype="float64", kernels="numpy", tiles=tiles, comm=comm, **options)
    assert_exact_adjoint(F)
    options |= {"dtype": "float64", "kernels": kernels, "comm": alone()}
    memory = Propagator(grid, geometry, **options).storage.bytes // 2
    other = Propagator(grid, geometry, memory=memory, **options)
    assert other.storage.checkpoints and products(F) == products(other)


@pytest.mark.serial
def test_errors_fall_with_the_fourth_power_of_the_time_step():
    for time_order, least in ((4, 14.5), (2, 3.5)):
        errors = []
        for refinement in (1, 2):
            h, interval = 10.0 / refinement, 0.004 / refinement
            grid = Grid((80 * refinement,), (h,), order=4, layers=Layers(0), time_order=time_order)
            samples = round(0.2 / interval)
            found = traces(grid, [300.0], [[500.0]], interval, samples, frequency=15.0)[0]
            errors.append(np.abs(found - analytic(1, 200.0, np.arange(samples) * interval, frequency=15.0)).max())
        assert least < errors[0] / errors[1] < 1.3 * 2**time_order


@pytest.mark.serial
def test_the_longest_step_is_stable_with_layers():
    """Beyond it short waves travel backwards, and layers amplify them."""
    rng = np.random.default_rng(4)
    grid = Grid((16, 18), (10.0, 8.0), layers=Layers(8), free_surface=True, time_order=4)
    model = VELOCITY * (1 + 0.5 * rng.random(grid.shape))
    longest = grid.largest_step(model.max())
    assert longest == pytest.approx(np.sqrt(1.5) * largest_step(8, grid.spacing, model.max()))
    found = traces(grid, [70.0, 60.0], [[30.0, 50.0]], 0.999 * longest, 700, frequency=40.0, model=model)[0]
    assert np.abs(found[-100:]).max() < 1e-3 * np.abs(found).max()
    with pytest.raises(InputError, match=f"at most {longest:.6g} s"):
        traces(grid, [70.0, 60.0], [[30.0, 50.0]], 1.001 * longest, 9, model=model)
    assert abs(phase_velocity(16, 8.0, 0.5, 4) - 1) < 0.02 * abs(phase_velocity(16, 8.0, 0.5) - 1)
    for order in (3, [2]):
        for wrong in (
            lambda order=order: phase_velocity(4, 8.0, 0.5, order),
            lambda order=order: largest_step(4, (10.0,), 2000.0, order),
            lambda order=order: Grid((20,), (10.0,), time_order=order),
        ):
            with pytest.raises(InputError, match="in time must be 2 or 4"):
                wrong()


@pytest.mark.serial
def test_traces_are_convolutions_of_the_wavelet():
    grid = Grid((14,), (10.0,), order=2, layers=Layers(3, velocity=3000.0, frequency=30.0), time_order=4)
    wavelet = np.random.default_rng(2).random(20)  # which does not begin with 0
    F = Propagator(grid, Geometry([[33.0]], [[70.0]], wavelet, 0.002), dtype="float64", kernels="numpy", comm=alone())
    model = collops.full(F.domain, VELOCITY, comm=F.comm)
    W = F.wavelet_operator(model)
    expected = F(model)
    found = W @ collops.from_global(wavelet, layout=W.domain, comm=F.comm)
    assert float((found - expected).norm()) < 1e-12 * float(expected.norm())


@pytest.mark.serial
@pytest.mark.parametrize("order", [0, 3, "4"])
def test_unusable_orders(order):
    with pytest.raises(InputError, match="2 or 4"):
        Grid((5,), (1.0,), time_order=order)
