"""The physics of the propagator: analytic fields, convergence, reciprocity, absorption and stability."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.extend.communication import alone
from collops.seismic.waves import Geometry, Grid, Layers, Propagator, largest_step, phase_velocity
from collops.seismic.waves.stencil import ORDERS, first_derivative, second_derivative

pytestmark = pytest.mark.serial
VELOCITY = 2000.0


def ricker(frequency, t):
    x = (np.pi * frequency * (t - 1.2 / frequency)) ** 2
    return (1 - 2 * x) * np.exp(-x)


def traces(grid, source, receivers, interval, samples, frequency=25.0, model=VELOCITY):
    wavelet = ricker(frequency, np.arange(samples) * interval)
    F = Propagator(
        grid, Geometry([source], receivers, wavelet, interval), dtype="float64", kernels="numpy", comm=alone()
    )
    values = np.broadcast_to(np.asarray(model, float), grid.shape).copy()
    return F(collops.from_global(values, layout=F.domain, comm=F.comm)).local_array[0]


def analytic(ndim, distance, t, frequency=25.0):
    """The field of a point source in a constant velocity."""
    if ndim == 1:
        fine = np.linspace(0, t[-1], 20_001)
        steps = np.diff(fine)[0] * (ricker(frequency, fine[1:]) + ricker(frequency, fine[:-1])) / 2
        integral = np.concatenate([[0.0], np.cumsum(steps)])
        return VELOCITY / 2 * np.interp(t - distance / VELOCITY, fine, integral, left=0.0)
    if ndim == 2:
        angle = np.linspace(0, 8, 4001)
        late = t[:, np.newaxis] - distance / VELOCITY * np.cosh(angle)
        return np.trapezoid(np.where(late > 0, ricker(frequency, late), 0.0), angle, axis=1) / (2 * np.pi)
    late = t - distance / VELOCITY
    return np.where(late > 0, ricker(frequency, late), 0.0) / (4 * np.pi * distance)


@pytest.mark.parametrize(("ndim", "n", "samples"), [(1, 60, 130), (2, 40, 130), (3, 24, 70)])
def test_green_functions(ndim, n, samples):
    h, interval = 6.0, 0.001
    layers = Layers(0 if ndim == 3 else 12)  # the record in 3-D ends before the edges reflect
    grid = Grid((n,) * ndim, (h,) * ndim, layers=layers)
    center = (n // 2) * h
    source, receiver = np.full(ndim, center + 2.1), np.full(ndim, center) - [31.0, 4.0, 7.5][:ndim]
    found = traces(grid, source, [receiver], interval, samples)[0]
    expected = analytic(ndim, np.linalg.norm(source - receiver), np.arange(samples) * interval)
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_a_free_surface_mirrors_the_source():
    h, samples = 6.0, 75
    grid = Grid((26, 26, 22), (h,) * 3, layers=Layers(0), free_surface=True)
    source, receiver = np.array([75.0, 77.0, 15.1]), np.array([60.0, 88.0, 7.0])
    found = traces(grid, source, [receiver], 0.001, samples)[0]
    t, mirror = np.arange(samples) * 0.001, source * [1, 1, -1]
    direct, ghost = (analytic(3, np.linalg.norm(x - receiver), t) for x in (source, mirror))
    assert np.abs(found - (direct - ghost)).max() < 0.02 * np.abs(direct).max()


@pytest.mark.parametrize("order", [2, 4, 6])
def test_errors_fall_with_the_order(order):
    errors = []
    for refinement in (1, 2):
        h, interval = 10.0 / refinement, 0.002 / refinement ** (order // 2)  # the scheme is of second order in time
        samples = round(0.2 / interval)
        grid = Grid((80 * refinement,), (h,), order=order, layers=Layers(0))
        found = traces(grid, [300.0], [[500.0]], interval, samples, frequency=15.0)[0]
        expected = analytic(1, 200.0, np.arange(samples) * interval, frequency=15.0)
        errors.append(np.abs(found - expected).max())
    assert errors[0] / errors[1] > 0.8 * 2**order


@pytest.mark.parametrize("order", ORDERS)
def test_stencils_differentiate_polynomials(order):
    half = order // 2
    k = np.arange(1, half + 1)
    first, second = first_derivative(order), second_derivative(order)
    for power in range(order + 1):
        sides = [x.astype(float) ** power for x in (k, -k)]
        assert np.isclose(first @ (sides[0] - sides[1]), power == 1, atol=1e-6)
        assert np.isclose(second[0] * (power == 0) + second[1:] @ (sides[0] + sides[1]), 2 * (power == 2), atol=1e-6)
    assert abs(phase_velocity(order, 8.0, 1e-3) - 1) < 0.06 * 0.5**half
    assert phase_velocity(2, 7.0, 1.0) == pytest.approx(1.0)  # exact at this Courant number
    assert largest_step(2, [5.0], 1000.0) == pytest.approx(0.005)


def test_reciprocity():
    rng = np.random.default_rng(3)
    model = VELOCITY * (1 + 0.2 * rng.random((30, 25)))
    ends = np.array([51.3, 38.0]), np.array([201.0, 187.7])
    for width, tolerance in ((0, 1e-11), (10, 1e-3)):  # the layers are not symmetric
        grid = Grid(model.shape, (10.0, 10.0), order=4, layers=Layers(width), free_surface=True)
        there, back = (traces(grid, x, [y], 0.002, 150, model=model)[0] for x, y in (ends, ends[::-1]))
        assert np.abs(there - back).max() < tolerance * np.abs(there).max()


def test_layers_absorb_at_all_angles_up_to_70_degrees():
    h, depth, margin = 10.0, 80.0, 35
    offsets = 2 * depth * np.tan(np.radians([0.0, 30.0, 60.0, 70.0]))
    found = []
    for more in (0, margin):
        grid = Grid((62, 20 + 2 * more), (h, h), order=4)
        z = depth + more * h
        receivers = [[60.0 + x, z] for x in offsets]
        found.append(traces(grid, [60.0, z], receivers, 0.002, 240, frequency=15.0))
    reflected = np.abs(found[0] - found[1]).max(axis=1) / np.abs(found[1]).max(axis=1)
    assert (20 * np.log10(reflected) < -60).all()


def test_the_longest_step_is_stable_with_layers():
    rng = np.random.default_rng(4)
    grid = Grid((16, 18), (10.0, 8.0), layers=Layers(8), free_surface=True)
    model = VELOCITY * (1 + 0.5 * rng.random(grid.shape))
    interval = 0.999 * grid.largest_step(model.max())
    found = traces(grid, [70.0, 60.0], [[30.0, 50.0]], interval, 700, frequency=40.0, model=model)[0]
    assert np.abs(found[-100:]).max() < 1e-3 * np.abs(found).max()
