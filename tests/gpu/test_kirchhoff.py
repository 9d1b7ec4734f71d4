"""The CUDA kernels of the Kirchhoff operator against the plain NumPy ones."""

from __future__ import annotations

import numpy as np
import pytest

from collops.seismic.kirchhoff import FixedTables, Kirchhoff, LocalKirchhoff
from tests.seismic import kirchhoff_matrix

cupy = pytest.importorskip("cupy")
try:
    _DEVICES = cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError:
    _DEVICES = 0
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_DEVICES == 0, reason="no GPU")]

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def pair(sources, receivers, dims, samples, taps, dtype, *, rough=False):
    rng = np.random.default_rng(7)
    points = np.indices(dims)[:, np.newaxis]

    def table(number):
        if rough:  # neighbours far apart in time, also before the first sample
            return rng.uniform(-0.2 * samples, 0.8 * samples, (number, *dims))
        where = (rng.uniform(0, 1, (number, len(dims))) * dims).T
        where = where.reshape(len(dims), number, *(1 for _ in dims))
        return 0.02 * samples * np.sqrt(((points - where) ** 2).sum(axis=0))

    tables = FixedTables.from_seconds(table(sources), table(receivers), 1.0, samples, dtype)
    wavelet = rng.standard_normal(taps)
    return [
        LocalKirchhoff(tables, dims, wavelet, taps // 3, engine="cupy"),
        LocalKirchhoff(tables, dims, wavelet, taps // 3, engine="numpy", kernels="numpy"),
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("sources", "receivers", "dims", "samples", "taps", "rough"),
    [
        (3, 5, (37, 23), 131, 31, False),
        (9, 6, (20, 45), 600, 81, False),
        (2, 9, (13, 40), 90, 7, True),
        (12, 3, (6, 7, 33), 250, 300, False),
        (1, 1, (2, 3), 5, 1, False),
        (12, 41, (70, 90), 150, 9, False),  # segments of some columns
        (17, 101, (100, 60), 130, 31, False),  # the longest segments, two receivers a block
        (17, 101, (100, 60), 130, 31, True),
        (1, 2, (5, 6), 70_000, 11, False),  # longer than shared memory, and wide times
    ],
)
def test_agrees_with_numpy(sources, receivers, dims, samples, taps, rough, dtype):
    device, host = pair(sources, receivers, dims, samples, taps, dtype, rough=rough)
    rng = np.random.default_rng(1)
    for columns, forward in ((device.shape[1], True), (device.shape[0], False)):
        vector = rng.standard_normal(columns).astype(dtype)
        name = "forward_local" if forward else "adjoint_local"
        for _ in range(2):  # the scratch is used again
            result = getattr(device, name)(cupy.asarray(vector))
        expected = getattr(host, name)(vector)
        assert result.dtype == dtype
        error = np.linalg.norm(result.get() - expected) / np.linalg.norm(expected)
        assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("taps", "center"), kirchhoff_matrix.WAVELETS)
def test_both_ways_are_those_of_the_definition(taps, center, dtype, deterministic):
    kirchhoff_matrix.check_matrix(dtype, taps, center, engine="cupy", deterministic=deterministic)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("amplitude", "aperture", "dip"), kirchhoff_matrix.WEIGHTINGS)
def test_weights_and_bands_are_those_of_geometry(amplitude, aperture, dip, dtype, deterministic):
    kirchhoff_matrix.check_weighted_matrix(dtype, amplitude, aperture, dip, engine="cupy", deterministic=deterministic)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shots", "spread", "samples"), [(11, 61, 260), (2, 9, 9000)])
@pytest.mark.parametrize("amplitude", ["none", "2d", "2.5d", "3d"])
def test_all_options_agree_with_numba(comm, amplitude, shots, spread, samples, dtype):
    """Blocks of two receivers and long segments; then rows that are longer than shared memory, and wide times."""
    rng = np.random.default_rng(4)
    z, x = 5.0 * np.arange(40), 5.0 * np.arange(36)
    low, high, y = np.array([[0.0], [0.0]]), np.array([[175.0], [20.0]]), None
    if amplitude == "3d":
        low, high, y = np.insert(low, 0, 0.0, 0), np.insert(high, 0, 25.0, 0), 5.0 * np.arange(6)
    sources, receivers = (low + (high - low) * rng.uniform(0, 1, (len(low), n)) for n in (shots, spread))
    device, host = (
        Kirchhoff(
            *(z, x, 0.001 * np.arange(samples), sources, receivers, 1500.0, np.hanning(31) - 0.5, 15),
            **{"y": y, "mode": "analytic", "amplitude": amplitude, "antialias": True, "aperture": 150.0},
            **{"max_dip": 60.0, "dtype": dtype, "engine": engine, "comm": comm.split(comm.rank), "kernels": kernels},
        ).local
        for engine, kernels in (("cupy", None), ("numpy", "numba"))
    )
    for size, name in ((device.shape[1], "forward_local"), (device.shape[0], "adjoint_local")):
        vector = rng.standard_normal(size).astype(dtype)
        found, expected = getattr(device, name)(cupy.asarray(vector)).get(), getattr(host, name)(vector)
        assert np.linalg.norm(found - expected) < 10 * TOLERANCE[dtype] * np.linalg.norm(expected)


def test_no_shots():
    device, _ = pair(0, 4, (5, 6), 20, 3, "float32")
    assert device.forward_local(cupy.ones(30, "f4")).shape == (0,)
    out = cupy.full(30, cupy.nan, "f4")
    assert device.adjoint_local(cupy.zeros(0, "f4"), out) is out
    assert not out.any()


def test_can_be_captured():
    device, host = pair(4, 10, (30, 40), 300, 25, "float32")
    image, data = cupy.ones(device.shape[1], "f4"), cupy.zeros(device.shape[0], "f4")
    back = cupy.zeros_like(image)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        device.forward_local(image, data)
        device.adjoint_local(data, back)
        stream.begin_capture()
        device.forward_local(image, data)
        device.adjoint_local(data, back)
        graph = stream.end_capture()
        image *= 2
        graph.launch(stream)
        stream.synchronize()
    expected = host.adjoint_local(host.forward_local(np.full(image.size, 2, "f4")))
    np.testing.assert_allclose(back.get(), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 5, (37, 23), 131), (17, 101, (100, 60), 130), (1, 2, (5, 6), 70_000)])
def test_the_same_bits_in_every_run(monkeypatch, shape, dtype):
    monkeypatch.setenv("COLLOPS_DETERMINISTIC", "1")
    device, host = pair(*shape, 31, dtype, rough=True)
    rng = np.random.default_rng(1)
    for columns, name in ((device.shape[1], "forward_local"), (device.shape[0], "adjoint_local")):
        vector = (10.0 ** rng.uniform(-12, 12, 1) * rng.standard_normal(columns)).astype(dtype)
        found, *again = (cupy.asnumpy(getattr(device, name)(cupy.asarray(vector))) for _ in range(5))
        expected = getattr(host, name)(vector)
        assert np.linalg.norm(found - expected) <= TOLERANCE[dtype] * np.linalg.norm(expected)
        for other in again:
            np.testing.assert_array_equal(other, found)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["all of one sign", "few of them large", "most of them zero", "tiny", "huge"])
def test_integer_sums_of_images_of_any_range(kind, dtype, deterministic, monkeypatch):
    """Many arrivals on each sample, so that sums of many, and single large ones, do not fit a word."""
    monkeypatch.setenv("COLLOPS_DETERMINISTIC", str(int(deterministic)))
    device, host = pair(3, 9, (70, 90), 31, 5, dtype, rough=True)
    rng = np.random.default_rng(1)
    image = rng.standard_normal(device.shape[1])
    if kind == "all of one sign":
        image = np.abs(image)
    elif kind == "few of them large":
        image[::97] *= 1e7
    elif kind == "most of them zero":
        image *= rng.uniform(size=image.size) < 0.01
    else:
        image *= 1e-30 if kind == "tiny" else 1e30
    image = image.astype(dtype)
    found = device.forward_local(cupy.asarray(image)).get().astype(float)
    expected = host.forward_local(image).astype(float)
    assert np.linalg.norm(found - expected) < TOLERANCE[dtype] * np.linalg.norm(expected)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_stays_visible(monkeypatch, value, deterministic):
    monkeypatch.setenv("COLLOPS_DETERMINISTIC", str(int(deterministic)))
    device, _ = pair(2, 3, (7, 9), 50, 5, "float32")
    image = cupy.zeros(63, "float32")
    assert not cupy.asnumpy(device.forward_local(image)).any()
    image[5] = value
    assert np.isnan(cupy.asnumpy(device.forward_local(image))).all()
