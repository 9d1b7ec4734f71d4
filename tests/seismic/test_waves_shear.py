"""Models of the velocities of P and S waves: exact derivatives by both, on any ranks, tiles, storage and kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import collops
from collops.errors import InputError, LayoutError
from collops.extend.communication import alone
from collops.seismic.signals import ricker
from collops.seismic.waves import Geometry, Grid, Layers, Propagator, SourceEncoding, WaveformMisfit
from tests.seismic.elastic_models import elastic_propagator, parts, solid_problem, stack_products, stacks_of
from tests.seismic.test_waves import small

NUMPY: dict[str, Any] = {"dtype": "float64", "kernels": "numpy"}


@pytest.mark.parametrize(("ndim", "time_order"), [(2, 4), (3, 2)])
def test_the_derivative_and_its_adjoint_are_exact_on_any_tiles(comm, ndim, time_order):
    """Near a free surface and a fluid, with checkpoints; one rank computes the same bits."""
    shape = ((6, 7, 12), (13, 12))[3 - ndim]
    grid, geometry, own = solid_problem(ndim, 4, time_order, shape, shots=1, samples=20, width=2)
    tiles = ((1, 1, comm.size), (comm.size, 1))[3 - ndim]
    F = elastic_propagator(grid, geometry, own, tiles=tiles if comm.size < 4 else None, comm=comm, **NUMPY)
    shear = own["shear_velocity"]
    model, change, data = stacks_of(F, shear)
    J, traces = F.jacobian(model), F(model)
    image = J.adjoint(data)
    for direction in parts(change):
        modelled = J.forward(direction)
        missed = abs(float(modelled.dot(data)) - float(direction.dot(image)))
        assert missed < 1e-12 * float(modelled.norm()) * float(data.norm())
        one, two = (float((F(model + h * direction) - traces - h * modelled).norm()) for h in (0.1, 0.2))
        assert 3.95 < two / one < 4.05
    serial = elastic_propagator(grid, geometry, own, comm=alone(), **NUMPY)
    memory = serial.storage.bytes // 2
    assert stack_products(serial, shear) == stack_products(F, shear)
    few = elastic_propagator(grid, geometry, own, memory=memory, comm=alone(), **NUMPY)
    assert few.storage.checkpoints and stack_products(few, shear) == stack_products(F, shear)


def test_shots_on_other_ranks_and_numba_change_no_bit(comm):
    grid, geometry, own = solid_problem(2, 8, shots=3, samples=15)
    shear = own["shear_velocity"]
    expected = stack_products(elastic_propagator(grid, geometry, own, kernels="numpy", comm=alone()), shear)
    F = elastic_propagator(grid, geometry, own, kernels="numba", comm=comm)
    assert stack_products(F, shear) == expected


@pytest.mark.serial
def test_one_velocity_and_both_are_the_same_waves(comm):
    """A stack replaces the shear velocity, and derivatives with respect to the velocity of P waves are equal."""
    grid, geometry, own = solid_problem(2, 4, shots=2, samples=25)
    F, fixed = elastic_propagator(grid, geometry, own, **NUMPY), Propagator(grid, geometry, **NUMPY, **own)
    model, change, data = stacks_of(F, own["shear_velocity"])
    assert (F(model) == fixed(model[0])).all()
    J, expected = F.jacobian(model), fixed.jacobian(model[0])
    image = J.adjoint(data)
    assert float((image[0] - expected.adjoint(data)).norm()) < 1e-14 * float(image[0].norm())
    alike = J.forward(parts(change)[0]) - expected.forward(change[0])
    assert float(alike.norm()) < 1e-14 * float(F(model).norm())
    fluid = own["shear_velocity"] == 0
    assert not image[1].local_array[fluid].any() and image[1].local_array[~fluid].all()


@pytest.mark.serial
def test_gradients_are_differences_of_misfits(comm):
    """At points of both velocities inside, next to a fluid, in a corner and at a free surface; without the Jacobian."""
    grid, geometry, own = solid_problem(2, 4, shots=1, samples=30, width=3)
    F = elastic_propagator(grid, geometry, own, **NUMPY)
    model = stacks_of(F, own["shear_velocity"])[0]
    problem = WaveformMisfit(F, F(0.98 * model))
    residual = problem.residual(model)
    J = problem.jacobian(model)
    assert problem.jacobian(model) is J and problem.jacobian(parts(model)[0]) is not J  # another shear velocity
    gradient = J.adjoint(residual)
    for part in (0, 1):
        largest = np.abs(gradient[part].local_array).max()
        for point in ((3, 0), (3, 5), (0, 0), (grid.shape[0] // 2 - 1, 2), (0, grid.shape[1] - 1)):
            misfits = []
            for sign in (-1, 1):
                near = model.copy()
                near[part].local_array[point] += 0.05 * sign
                misfits.append(0.5 * float(problem.residual(near).norm()) ** 2)
            slope = (misfits[1] - misfits[0]) / 0.1
            assert abs(slope - gradient[part].local_array[point]) < 1e-6 * largest


@pytest.mark.serial
def test_linearised_reflections_have_the_analytic_coefficients():
    """By Aki and Richards: a change of S waves has -8 (b / a) sin(i)^2 cos(i)^2 times the echo of one of P waves."""
    h, depth, interface, offsets = 5.0, 40.0, 44, np.array([0.0, 120.0, 200.0])
    grid = Grid((68, 54), (h, h), layers=Layers(12))
    wavelet = np.pad(ricker(25.0, 0.00125)[0], (0, 220))[:220]
    receivers = np.stack([60 + offsets, np.full(3, depth)], axis=1)
    F = Propagator(
        grid, Geometry([[60.0, depth]], receivers, wavelet, 0.00125), shear_velocity=0.0, comm=alone(), **NUMPY
    )
    a, b = (collops.full(F.domain, v, comm=F.comm) for v in (2000.0, 1000.0))
    below = collops.from_global((np.arange(54) >= interface) * np.ones((68, 1)), layout=F.domain, comm=F.comm)
    J = F.jacobian(collops.StackedArray([a, b]))
    pairs = (below, 0 * below), (0 * below, below)
    of_p, of_s = (J.forward(collops.StackedArray(pair)).local_array[0] for pair in pairs)
    angle = np.arctan(offsets / 2 / ((interface - 0.5) * h - depth))
    expected = -8 * 0.5 * (np.sin(angle) * np.cos(angle)) ** 2
    np.testing.assert_allclose((of_s * of_p).sum(axis=1) / (of_p * of_p).sum(axis=1), expected, atol=0.02)


@pytest.mark.serial
def test_windows_wavelets_encoding_and_compressed_storage(comm, monkeypatch):
    grid, geometry, own = solid_problem(2, 4, surface=False, shots=2, samples=25)
    options = {"comm": comm, **NUMPY}
    F, windowed = (elastic_propagator(grid, geometry, own, aperture=x, **options) for x in (None, 500.0))
    model, change, data = stacks_of(F, own["shear_velocity"])
    J, expected = F.jacobian(model), F(model)
    checks, check = [], Propagator._check_windows
    with monkeypatch.context() as patch:
        patch.setattr(Propagator, "_check_windows", lambda *arguments: checks.append(check(*arguments)))
        traces, same = windowed.linearise(model)
    assert len(checks) == 1  # which sends messages
    pairs = [(traces, expected), (windowed(model), expected), (same.forward(change), J.forward(change))]
    for found, right in (*pairs, *zip(same.adjoint(data), J.adjoint(data), strict=True)):
        assert float((found - right).norm()) < 1e-13 * float(right.norm())
    W = F.wavelet_operator(model)
    wavelet = collops.from_global(np.asarray(geometry.wavelet), layout=W.domain, comm=comm)
    assert float((W @ wavelet - expected).norm()) < 1e-12 * float(expected.norm())
    encoding = SourceEncoding(np.array([[1.0, -1.0]]))
    encoded = elastic_propagator(grid, encoding.geometry(geometry), own, **options)
    assert float((encoded(model) - encoding.data(expected)).norm()) < 1e-12 * float(expected.norm())
    lossy = elastic_propagator(grid, geometry, own, memory=int(0.6 * F.storage.bytes), wavefield_bits=16, **options)
    assert lossy.storage.bits == 16
    for found, right in zip(lossy.jacobian(model).adjoint(data), J.adjoint(data), strict=True):
        assert 0 < float((found - right).norm()) < 1e-4 * float(right.norm())


def test_windows_raise_the_errors_of_one_on_all_ranks(comm):
    """Where the window of one shot ends, a light column continues: its longest time step is shorter."""
    grid, geometry = small(2, 4, surface=False, shots=3, samples=5)
    density = np.full(grid.shape, 3000.0)
    density[9] = 100.0
    whole, windowed = (
        Propagator(grid, geometry, shear_velocity=0.0, density=density, aperture=x, comm=comm, **NUMPY)
        for x in (None, 10.0)
    )
    model, change, data = stacks_of(windowed, np.full(grid.shape, 500.0))
    J = windowed.jacobian(model)
    modelled = J.forward(change)
    missed = abs(float(modelled.dot(data)) - float(change.dot(J.adjoint(data))))
    assert missed < 1e-12 * float(modelled.norm()) * float(data.norm())
    fast = collops.StackedArray([collops.full(windowed.domain, v, comm=comm) for v in (5700.0, 0.0)])
    whole(fast)
    for use in (windowed, windowed.jacobian):
        with pytest.raises(InputError, match="unstable"):
            use(fast)


def test_shear_velocities_whose_squares_are_no_normal_numbers(comm):
    """As in a fluid, without a warning: their moduli have no reciprocals."""
    grid, geometry, own = solid_problem(2, 4, shots=1, samples=12)
    F = elastic_propagator(grid, geometry, own, comm=comm, **NUMPY)
    (v, shear), _, data = stacks_of(F, own["shear_velocity"])
    fluid, tiny = (collops.StackedArray([v, 0 * shear + value]) for value in (0.0, 1e-160))
    assert float((F(tiny) - F(fluid)).norm()) <= 1e-14 * float(F(fluid).norm())
    image, expected = (F.jacobian(model).adjoint(data) for model in (tiny, fluid))
    assert float((image[0] - expected[0]).norm()) <= 1e-14 * float(expected[0].norm())
    assert np.isfinite(image[1].local_array).all()


def test_unusable_models(comm):
    grid, geometry, own = solid_problem(2, 4, shots=1, samples=5)
    F = elastic_propagator(grid, geometry, own, comm=comm, **NUMPY)
    model, _, _ = stacks_of(F, own["shear_velocity"])
    v, shear = model
    for wrong, error, words in [
        ([v, -1 * shear], InputError, "finite and not negative"),
        ([v, shear * np.nan], InputError, "finite and not negative"),
        ([-1 * v, shear], InputError, "positive and finite"),
        ([v, 4 * shear], InputError, "Poisson's ratio"),
        ([v, shear, shear], LayoutError, "velocities of P and of S waves"),
        ([9 * v, 5 * shear], InputError, "unstable"),
    ]:
        for use in (F, F.jacobian):
            with pytest.raises(error, match=words):
                use(collops.StackedArray(wrong))
    acoustic = Propagator(*small(2, 4, shots=1, samples=5), comm=comm, **NUMPY)
    with pytest.raises(InputError, match="elastic medium"):
        acoustic(collops.StackedArray([v, shear]))
    with pytest.raises(LayoutError, match="takes an array"):
        F.jacobian(model).forward(v)


def test_a_model_may_have_a_solid_surface_where_the_propagator_has_none(comm):
    grid = Grid((9, 12), (10.0, 8.0), order=2, layers=Layers(3), free_surface=True)
    F = Propagator(
        grid, Geometry([[40.0, 17.0]], [[40.0, 40.0]], np.ones(3), 0.001), shear_velocity=0.0, comm=comm, **NUMPY
    )
    fast, shear = (collops.full(F.domain, v, comm=comm) for v in (2000.0, 900.0))
    F(collops.StackedArray([fast, 0 * shear]))
    with pytest.raises(InputError, match="1 of the sources"):
        F(collops.StackedArray([fast, shear]))
