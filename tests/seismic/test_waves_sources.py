"""Several sources in a shot, and encoded shots: sums of the shots of the single sources, on all kernels."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import collops
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.extend.communication import alone
from collops.profile import count_messages
from collops.seismic.waves import Geometry, Propagator, SourceEncoding, WaveformMisfit
from tests.seismic.test_waves import POSITIONS, arrays_of, assert_exact_adjoint, products, small


def together(ndim=2, shots=2, **options):
    """A grid, a geometry of shots with two sources each, and the geometry of these sources as shots."""
    grid, single = small(ndim, shots=2 * shots, **options)
    factors = np.array([1.0, -0.5, 2.0, 0.7])[: 2 * shots, np.newaxis]
    single = replace(single, wavelet=factors * np.asarray(single.wavelet))
    sources, wavelets = np.asarray(single.sources), np.asarray(single.wavelet)
    several = replace(single, sources=sources.reshape(shots, 2, -1), wavelet=wavelets.reshape(shots, 2, -1))
    return grid, several, single


@pytest.mark.parametrize("density", [False, True])
def test_traces_are_sums_over_the_sources(comm, density):
    grid, several, single = together(samples=30)
    values = 1500 + 300 * np.random.default_rng(5).random(grid.shape) if density else None
    F, S, windowed = (
        Propagator(grid, geometry, dtype="float64", kernels="numpy", density=values, aperture=aperture, comm=comm)
        for geometry, aperture in ((several, None), (single, None), (several, 500.0))
    )
    model = arrays_of(F)[0]
    traces, parts = F(model).gather(), S(model).gather()
    np.testing.assert_allclose(traces, parts[::2] + parts[1::2], rtol=0, atol=1e-12 * np.abs(parts).max())
    np.testing.assert_array_equal(windowed(model).gather(), traces)
    if not density:
        assert_exact_adjoint(F)


def test_a_source_that_sends_nothing_does_not_change_the_layers(comm):
    """They have the mean frequency of all wavelets, in whatever order."""
    grid, several, _ = together(shots=1, samples=20)
    wavelet = np.asarray(several.wavelet)[0, 0]
    found = [
        Propagator(grid, replace(several, wavelet=[pair]), kernels="numpy", comm=comm)
        for pair in ([wavelet, 0 * wavelet], [0 * wavelet, wavelet])
    ]
    frequencies = [F._modelling.absorption.frequency for F in found]
    power, f = np.abs(np.fft.rfft(wavelet)) ** 2, np.fft.rfftfreq(20, several.interval)
    np.testing.assert_allclose(frequencies, (f * power).sum() / power.sum(), rtol=1e-12)


def test_the_same_bits_on_any_ranks_and_tiles(comm):
    grid, several, _ = together(shots=1, samples=20)
    serial = products(Propagator(grid, several, kernels="numpy", comm=alone()))
    for tiles in (None, (comm.size, 1), (1, comm.size)):
        assert products(Propagator(grid, several, kernels="numpy", tiles=tiles, comm=comm)) == serial


def test_wavelets_of_arrays_of_sources(comm):
    grid, several, single = together(samples=20)
    common = replace(several, wavelet=np.asarray(single.wavelet)[0])
    scaled = replace(several, wavelet=np.asarray(single.wavelet)[::2])
    both = [Propagator(grid, geometry, dtype="float64", kernels="numpy", comm=comm) for geometry in (common, scaled)]
    model = arrays_of(both[0])[0]
    first, second = (F(model) for F in both)
    np.testing.assert_allclose(second.gather(), first.gather() * np.array([1.0, 2.0])[:, None, None], rtol=1e-11)
    W = both[0].wavelet_operator(model)
    wavelet = collops.from_global(np.asarray(common.wavelet), layout=W.domain, comm=comm)
    assert float((W @ wavelet - first).norm()) < 1e-12 * float(first.norm())
    with pytest.raises(InputError, match="wavelets of their own"):
        Propagator(grid, several, kernels="numpy", comm=comm).wavelet_operator(model)


def test_windows_are_around_all_sources(comm):
    """The second source is far from the receivers."""
    grid, geometry = small(2, shots=1, surface=False)
    sources = np.array([[[40.0, 50.0], [150.0, 50.0]]])
    geometry = replace(geometry, sources=sources, receivers=[[30.0, 40.0]])
    F = Propagator(grid, geometry, aperture=15.0, kernels="numpy", comm=comm)
    assert F._windows._boxes == [(slice(1, 17), slice(0, 14))]


@pytest.mark.parametrize(("shots", "encoded"), [(3, 1), (3, 2)])
def test_the_mean_over_all_signs_is_the_misfit_of_the_single_shots(comm, shots, encoded):
    grid, geometry = small(2, shots=shots, samples=18, width=2)
    geometry = replace(geometry, wavelet=np.outer([1.0, -0.7, 2.0], np.asarray(geometry.wavelet)))
    options = {"dtype": "float64", "kernels": "numpy", "comm": comm}
    F = Propagator(grid, geometry, **options)
    model, _, data = arrays_of(F)

    def misfit_and_gradient(propagator, observed):
        problem = WaveformMisfit(propagator, observed)
        residual = problem.residual(model)
        return 0.5 * float(residual.norm()) ** 2, problem.jacobian(model).adjoint(residual).gather()

    expected, gradient = misfit_and_gradient(F, data)
    members = np.asarray(SourceEncoding.random(shots, encoded, seed=1).weights) != 0
    assert members.sum(axis=0).tolist() == [1] * shots and members.any(axis=1).all()
    values, gradients = [], []
    for signs in itertools.product((1.0, -1.0), repeat=shots - 1):
        encoding = SourceEncoding(members * np.array([1.0, *signs]))  # the first sign does not matter
        E = Propagator(grid, encoding.geometry(geometry), **options)
        value, image = misfit_and_gradient(E, encoding.data(data))
        values.append(value)
        gradients.append(image)
    assert np.mean(values) == pytest.approx(expected, rel=1e-12)
    assert encoded == shots or np.ptp(values) > 1e-3 * expected
    mean = np.mean(gradients, axis=0)
    np.testing.assert_allclose(mean, gradient, rtol=0, atol=1e-12 * np.abs(gradient).max())


def test_encoded_data_are_the_same_bits_on_any_ranks(comm):
    """And the traces of the encoded shots, whose sources and receivers may be in arrays."""
    grid, several, _ = together(samples=20)
    several = replace(several, receivers=np.stack([np.asarray(several.receivers)] * 2))
    F = Propagator(grid, several, dtype="float64", kernels="numpy", tiles=(comm.size, 1), comm=comm)
    S = Propagator(grid, several, dtype="float64", kernels="numpy", comm=alone())
    encoding = SourceEncoding([[1.0, -0.3], [0.0, 2.0]])
    E = Propagator(grid, encoding.geometry(several), dtype="float64", kernels="numpy", comm=comm)
    assert np.shape(E.geometry.sources) == (2, 4, 2)
    model = arrays_of(F)[0]
    alike = collops.from_global(model.gather(), layout=E.domain, comm=comm)
    local = collops.from_global(model.gather(), layout=S.domain, comm=S.comm)
    expected, traces = encoding.data(S(local)).gather(), F(model)
    by_shots = traces.redistribute(collops.Layout.split(traces.shape, comm.size))
    with count_messages() as messages:
        encoding.data(by_shots)
    assert messages["alltoallv"] == messages.total == (2 if comm.size > 1 else 0)
    for found in (encoding.data(traces), encoding.data(by_shots)):
        np.testing.assert_array_equal(found.gather(), expected)
    assert encoding.data(by_shots).layout is E.range
    np.testing.assert_allclose(E(alike).gather(), expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_unusable_arguments(comm):
    _, geometry = small(2)
    for arguments, words in [
        ({"sources": POSITIONS[:, 0]}, r"\(shots, axes\) or \(shots, sources, axes\)"),
        ({"wavelet": np.ones((3, 2, 5))}, r"\(samples,\) or \(3, samples\), not"),
        ({"sources": np.ones((3, 2, 2)), "wavelet": np.ones((3, 4, 5))}, r"or \(3, 2, samples\), not \(3, 4, 5\)"),
        ({"sources": np.ones((4, 2, 2)), "receivers": np.ones((3, 1, 2))}, "receivers of 3 shots do not fit 4"),
    ]:
        with pytest.raises(InputError, match=words):
            replace(geometry, **arguments)
    for weights in ([1.0, 2.0], [[]], [[1.0, np.nan]], [[1.0], [0.0]], "random"):
        with pytest.raises(InputError, match=r"weights|encoded shot 1 has no shot"):
            SourceEncoding(weights)
    for arguments in ((0, 1), (3, 4), (3, 0), (3.0, 1)):
        with pytest.raises(InputError, match="number"):
            SourceEncoding.random(*arguments)
    with pytest.raises(InputError, match="seeds"):
        SourceEncoding.random(3, 1, seed=-1)
    encoding = SourceEncoding.random(3, 2)
    with pytest.raises(InputError, match="weights of 3 shots do not fit a geometry of 2"):
        encoding.geometry(Geometry(POSITIONS[:2], POSITIONS, np.ones(5), 0.1))
    with pytest.raises(InputError, match="fixed spread"):
        encoding.geometry(replace(geometry, receivers=np.arange(12.0).reshape(3, 2, 2)))
    with pytest.raises(UnsupportedTypeError, match="distributed array"):
        encoding.data(np.ones((3, 2, 5)))
    for shape in ((3, 2), (2, 4, 5)):
        with pytest.raises(LayoutError, match=r"three axes|do not fit"):
            encoding.data(collops.ones(collops.Layout.split(shape, comm.size), comm=comm))
