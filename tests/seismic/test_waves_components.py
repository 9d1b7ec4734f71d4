"""Particle velocities and forces: exact transposes, the derivatives of Green's functions, mirrors and reciprocity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import collops
from collops.errors import InputError
from collops.extend.communication import alone
from collops.seismic.waves import Geometry, Grid, Layers, Propagator, SourceEncoding
from tests.seismic.test_waves import arrays_of, assert_exact_adjoint, products, small
from tests.seismic.test_waves_physics import VELOCITY, analytic, ricker


def directed(ndim=2, **options):
    """A grid, and a geometry whose receivers and sources are of all kinds."""
    grid, geometry = small(ndim, **options)
    axes = "xyz" if ndim == 3 else "xz"
    positions = np.concatenate([np.asarray(geometry.receivers), np.asarray(geometry.receivers)[:1]])
    sources = np.stack([geometry.sources] * 2, axis=1)
    sources[:, 1] += 4.0
    components = ("p", "v" + axes[0], "vz", "v" + axes[-2])
    return grid, Geometry(sources, positions, geometry.wavelet, 0.001, components, ("f" + axes[-2], "fz"))


@pytest.mark.parametrize(("ndim", "density", "time_order"), [(2, True, 2), (3, False, 2), (2, True, 4)])
def test_the_adjoint_is_exact(comm, ndim, density, time_order):
    grid, geometry = directed(ndim, shots=2, samples=25)
    grid = replace(grid, time_order=time_order)
    values = 1500 + 300 * np.random.default_rng(5).random(grid.shape) if density else None
    F = Propagator(grid, geometry, dtype="float64", kernels="numpy", density=values, comm=comm)
    assert_exact_adjoint(F)
    model = arrays_of(F)[0]
    windowed = Propagator(grid, geometry, dtype="float64", kernels="numpy", density=values, aperture=500.0, comm=comm)
    np.testing.assert_array_equal(windowed(model).gather(), F(model).gather())
    if not density:
        W = F.wavelet_operator(model)
        wavelet = collops.from_global(np.asarray(geometry.wavelet), layout=W.domain, comm=comm)
        assert float((W @ wavelet - F(model)).norm()) < 1e-12 * float(F(model).norm())
        encoding = SourceEncoding([[1.0, -1.0]])
        E = Propagator(grid, encoding.geometry(geometry), dtype="float64", kernels="numpy", comm=comm)
        traces, expected = E(model), encoding.data(F(model))
        assert float((traces - expected).norm()) < 1e-12 * float(expected.norm())


def test_the_same_bits_on_any_ranks_and_tiles(comm):
    grid, geometry = directed(shots=1, samples=20)
    density = 1500 + 300 * np.random.default_rng(5).random(grid.shape)
    serial = products(Propagator(grid, geometry, density=density, kernels="numpy", comm=alone()))
    for tiles in (None, (comm.size, 1), (1, comm.size)):
        F = Propagator(grid, geometry, density=density, kernels="numpy", tiles=tiles, comm=comm)
        assert products(F) == serial


def traces(grid, source, receivers, wavelet, interval, components="p", force="p", density=None):
    """The traces of one shot in a constant velocity."""
    geometry = Geometry([source], receivers, wavelet, interval, components, force)
    F = Propagator(grid, geometry, dtype="float64", kernels="numpy", density=density, comm=alone())
    return F(collops.full(F.domain, VELOCITY, comm=F.comm)).local_array[0]


def gradient(ndim, source, receiver, t):
    """The derivative of the analytic field with respect to the position of the receiver, along each axis."""
    step, differences = 0.05, []
    for axis in range(ndim):
        ends = [receiver + sign * step * np.eye(ndim)[axis] - source for sign in (1, -1)]
        differences.append(analytic(ndim, np.linalg.norm(ends[0]), t) - analytic(ndim, np.linalg.norm(ends[1]), t))
    return np.array(differences) / (2 * step)


@pytest.mark.serial
@pytest.mark.parametrize("ndim", [2, 3])
def test_derivatives_of_green_functions(ndim):
    h, interval, samples, n = 6.0, 0.001, 75, 40 if ndim == 2 else 25
    grid = Grid((n,) * ndim, (h,) * ndim, layers=Layers(12 if ndim == 2 else 0))
    t, center = np.arange(samples) * interval, (n // 2) * h
    source, receiver = np.full(ndim, center + 2.1), np.full(ndim, center) - [31.0, 4.0, 17.5][:ndim]
    axes = "xz" if ndim == 2 else "xyz"
    slopes = gradient(ndim, source, receiver, t)
    components = ["v" + axis for axis in axes]
    found = traces(grid, source, [receiver] * ndim, ricker(25.0, t), interval, components)
    steps = (slopes[:, 1:] + slopes[:, :-1]) / 2
    expected = -interval * np.concatenate([np.zeros((ndim, 1)), np.cumsum(steps, axis=1)], axis=1)
    scale = np.abs(expected).max()
    assert np.abs(found - expected).max() < 0.02 * scale
    for axis, name in enumerate(axes):  # p = -d_a u of the force, at the receiver
        found = traces(grid, source, [receiver], ricker(25.0, t), interval, "p", "f" + name)[0]
        assert np.abs(found + slopes[axis]).max() < 0.02 * np.abs(slopes).max()


@pytest.mark.serial
@pytest.mark.parametrize("time_order", [2, 4])
def test_plane_waves(time_order):
    """The pressure is the particle velocity times density and velocity, with the sign of the direction."""
    grid = Grid((80,), (6.0,), time_order=time_order)
    receivers = [[100.0], [100.0], [381.3], [381.3]]
    wavelet = ricker(25.0, np.arange(300) * 0.001)
    up, v_up, down, v_down = traces(
        grid, [240.0], receivers, wavelet, 0.001, ("p", "vz") * 2, density=np.full(80, 1800.0)
    )
    impedance = 1800.0 * VELOCITY
    assert np.abs(down).max() > 0.5 * VELOCITY / 2 * np.abs(np.cumsum(wavelet)).max() * 0.001
    np.testing.assert_allclose(impedance * v_down, down, rtol=0, atol=0.01 * np.abs(down).max())
    np.testing.assert_allclose(impedance * v_up, -up, rtol=0, atol=0.01 * np.abs(up).max())


@pytest.mark.serial
def test_a_free_surface_doubles_the_vertical_velocity():
    h, interval, samples = 6.0, 0.001, 70
    grid = Grid((25, 25, 21), (h,) * 3, layers=Layers(0), free_surface=True)
    source, receiver, mirror = np.array([75.0, 77.0, 22.1]), np.array([60.0, 81.0, 7.0]), np.array([1, 1, -1])
    top, t = receiver * [1, 1, 0], np.arange(samples) * interval
    found = traces(grid, source, [receiver, receiver, top, top], ricker(25.0, t), interval, ("vx", "vz", "vx", "vz"))

    def velocity(position):
        slopes = gradient(3, source, position, t) - gradient(3, source * mirror, position, t)
        steps = np.pad((slopes[:, 1:] + slopes[:, :-1]) / 2, ((0, 0), (1, 0)))
        return -interval * np.cumsum(steps, axis=1)

    inside, above = velocity(receiver), velocity(top)
    scale = np.abs(above).max()
    for trace, expected in zip(found, (inside[0], inside[2], above[0], above[2]), strict=True):
        assert np.abs(trace - expected).max() < 0.02 * scale
    assert np.abs(found[2]).max() < 1e-12 * scale  # the pressure is 0 along the surface
    # A vertical force near the surface: its image above has the same direction.
    near, far = source * [1, 1, 0.5], np.array([36.0, 111.0, 7.0])
    found = traces(grid, near, [far], ricker(25.0, t), interval, "p", "fz")[0]
    expected = gradient(3, near, far * mirror, t)[2] - gradient(3, near, far, t)[2]
    assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()


@pytest.mark.serial
def test_reciprocity():
    """Of velocities of forces exactly, with any density; of a force and a velocity to the error of an integral."""
    rng = np.random.default_rng(3)
    grid = Grid((30, 25), (10.0, 10.0), order=4, layers=Layers(0), free_surface=True)
    one, two = np.array([51.3, 38.0]), np.array([201.0, 187.7])
    t = np.arange(150) * 0.002
    density = 1500 + 800 * rng.random(grid.shape)
    there = traces(grid, one, [two], ricker(25.0, t), 0.002, "vx", "fz", density)
    back = traces(grid, two, [one], ricker(25.0, t), 0.002, "vz", "fx", density)
    assert np.abs(there - back).max() < 1e-11 * np.abs(there).max()
    s = np.pi * 25 * (t - 1.2 / 25)
    integral = s / (np.pi * 25) * np.exp(-(s**2))  # of the wavelet
    velocity = traces(grid, one, [two], ricker(25.0, t), 0.002, "vx")
    pressure = traces(grid, two, [one], integral, 0.002, "p", "fx")
    assert np.abs(velocity + pressure).max() < 0.01 * np.abs(velocity).max()


def test_unusable_components(comm):
    _, geometry = small(2)
    for arguments, words in [
        ({"components": "vy"}, "components must be one of p, vx, vz, or a sequence of 3 of them, not 'vy'"),
        ({"components": ("p", "vz")}, "a sequence of 3 of them"),
        ({"source_components": "vz"}, "source_components must be one of p, fx, fz, or a sequence of 1"),
    ]:
        with pytest.raises(InputError, match=words):
            replace(geometry, **arguments)
    with pytest.raises(InputError, match="sequence of"):
        replace(geometry, components=np.array([["p", "vx"]]))
    assert set(map(type, replace(geometry, components=np.array(["p"] * geometry.shape[1])).components)) == {str}
    with pytest.raises(InputError, match="one of p, vz,"):
        Geometry([[1.0]], [[2.0]], np.ones(5), 0.1, "vx")
