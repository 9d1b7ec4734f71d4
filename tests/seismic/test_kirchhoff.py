"""The Kirchhoff operator against PyLops, its adjoint, its messages, and what it refuses."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings

import numpy as np
import pytest

from collops.array import DistributedArray, random
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import Columns
from collops.profile import count_messages
from collops.seismic import Kirchhoff
from collops.seismic.kirchhoff import FixedTables, LocalKirchhoff
from collops.seismic.kirchhoff.geometry import ImageGrid
from tests.seismic import kirchhoff_matrix
from tests.seismic.arrivals import eikonal

pytest.importorskip("numba")

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
DT = 0.004


def survey(ndim: int = 2, shots: int = 5, receivers: int = 7, samples: int = 90, taps: int = 21) -> dict:
    """A survey whose late arrivals fall off the traces, with an asymmetric wavelet."""
    x, z, y = np.arange(13) * 9.0, np.arange(11) * 7.0, np.arange(5) * 8.0
    rng = np.random.default_rng(3)
    axes, scales = ((x, z), (1, 0.3)) if ndim == 2 else ((y, x, z), (1, 1, 0.3))

    def positions(number: int) -> np.ndarray:
        return np.stack(
            [rng.uniform(axis[0], axis[-1] * scale, number) for axis, scale in zip(axes, scales, strict=True)]
        )

    return {
        "z": z,
        "x": x,
        "t": np.arange(samples) * DT,
        "sources": positions(shots),
        "receivers": positions(receivers),
        "velocity": 430.0,
        "wavelet": rng.standard_normal(taps),
        "wavelet_center": taps // 3,
        "y": None if ndim == 2 else y,
        "threads": 1,  # the ranks of this suite share few cores
    }


def gradient(s: dict) -> np.ndarray:
    shape = [axis.size for axis in (s["y"], s["x"], s["z"]) if axis is not None]
    return np.broadcast_to(400.0 + 2.0 * s["z"], shape) * 1.0


def peer(s: dict, mode: str, dtype: str, **more):
    """The same operator of PyLops, in plain NumPy, with the tables of all shots."""
    from pylops.waveeqprocessing import Kirchhoff as KirchhoffOfPylops

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return KirchhoffOfPylops(
            s["z"],
            s["x"],
            s["t"],
            s["sources"],
            s["receivers"],
            s["velocity"],
            s["wavelet"],
            s["wavelet_center"],
            y=s["y"],
            mode=mode,
            engine="numpy",
            dtype=dtype,
            **more,
        )


def peer_at_our_times(s: dict, dtype: str):
    """The operator of PyLops with eikonal times from positions between the grid points, unlike its own."""
    grid, velocity = ImageGrid.from_axes(s["z"], s["x"], s["y"]), np.asarray(s["velocity"])
    tables = (
        np.stack([eikonal(grid, position, velocity).ravel() for position in s[name].T], axis=1)
        for name in ("sources", "receivers")
    )
    return peer(s, "byot", dtype, trav=tuple(tables))


def apply_both(operator: Kirchhoff, image: np.ndarray, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the data of `image` and the image of `data` on all ranks, for whole NumPy arrays."""
    comm = operator.comm
    m = DistributedArray(operator.domain, comm, image.reshape(operator.dims).copy())
    mine = data.reshape(operator.dimsd)[operator.shots.start : operator.shots.stop]
    d = DistributedArray(operator.range, comm, mine.reshape(-1).copy())
    forward = operator.forward(m).local_array
    counts = [operator.range.local_size(rank) for rank in range(comm.size)]
    return comm.allgatherv(forward, counts), operator.adjoint(d).local_array.reshape(-1)


def relative(value: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(value.astype(float) - reference) / np.linalg.norm(reference))


def random_pair(operator: Kirchhoff) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    return (
        rng.standard_normal(operator.dims).astype(operator.dtype),
        rng.standard_normal(operator.dimsd).astype(operator.dtype),
    )


def check_against(operator: Kirchhoff, reference) -> None:
    image, data = random_pair(operator)
    modelled, migrated = apply_both(operator, image, data)
    assert modelled.dtype == migrated.dtype == operator.dtype
    tolerance = TOLERANCE[operator.dtype.name]
    assert relative(modelled, reference.matvec(image.ravel())) < tolerance
    assert relative(migrated, reference.rmatvec(data.ravel())) < tolerance
    left = np.vdot(modelled.astype(float), data.ravel().astype(float))
    right = np.vdot(image.ravel().astype(float), migrated.astype(float))
    assert abs(left - right) < 0.1 * tolerance * np.linalg.norm(modelled) * np.linalg.norm(data)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("mode", ["analytic", "eikonal"])
def test_agrees_with_pylops(comm, mode, ndim, dtype):
    s = survey(ndim)
    if mode == "eikonal":
        s["velocity"] = gradient(s)
    operator = Kirchhoff(**s, mode=mode, comm=comm, dtype=dtype)
    assert operator.dims == tuple(axis.size for axis in (s["y"], s["x"], s["z"]) if axis is not None)
    assert operator.dimsd == (5, 7, 90)
    check_against(operator, peer_at_our_times(s, dtype) if mode == "eikonal" else peer(s, mode, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernels", ["numba", "numpy"])
def test_tables_that_are_given(comm, kernels, dtype):
    """Rough tables: neighbours far apart in time, some never reached, some behind the end."""
    s = survey(shots=3, receivers=6, samples=70)
    rng = np.random.default_rng(4)
    points = s["x"].size * s["z"].size
    tables = tuple(rng.uniform(0, 50 * DT, (points, number)) for number in (3, 6))
    tables[0][5, :] = np.inf
    operator = Kirchhoff(**s, mode="byot", travel_times=tables, comm=comm, dtype=dtype, kernels=kernels)
    tables[0][5, :] = 1e3  # PyLops converts infinity to an integer, with a warning
    check_against(operator, peer(s, "byot", dtype, trav=tables))


@pytest.mark.parametrize(("taps", "center"), [(1, 0), (8, 0), (8, 7), (41, 20), (70, 3)])
def test_wavelets_of_any_length(comm, taps, center):
    s = survey(shots=2, samples=70, taps=taps)
    s["wavelet_center"] = center
    check_against(Kirchhoff(**s, mode="analytic", comm=comm), peer(s, "analytic", "float64"))


@pytest.mark.parametrize(("dtype", "heard"), [("float32", 37), ("float64", 51)])
def test_taps_that_rounding_swallows_are_left_out(dtype, heard):
    square = (np.pi * 20.0 * DT * np.arange(-40, 41)) ** 2
    ricker = (1 - 2 * square) * np.exp(-square)
    times = FixedTables.from_seconds(np.full((1, 1, 1), 60 * DT), np.zeros((1, 1, 1)), DT, 120, dtype)
    trace = LocalKirchhoff(times, (1, 1), ricker, 40).forward_local(np.ones(1, dtype))
    np.testing.assert_allclose(trace[20:101], ricker, rtol=0, atol=np.finfo(dtype).eps / 4)
    assert np.count_nonzero(trace) == heard


def test_wavelet_longer_than_the_traces(comm):
    s = survey(shots=2, samples=20, taps=65)
    operator = Kirchhoff(**s, mode="analytic", comm=comm)
    image, data = random_pair(operator)
    modelled, migrated = apply_both(operator, image, data)
    spike = peer(s | {"wavelet": np.ones(1), "wavelet_center": 0}, "analytic", "float64")
    raw = spike.matvec(image.ravel()).reshape(-1, 20)
    center = s["wavelet_center"]
    expected = np.stack([np.convolve(trace, s["wavelet"])[center : center + 20] for trace in raw])
    np.testing.assert_allclose(modelled, expected.ravel(), rtol=0, atol=1e-10 * np.abs(expected).max())
    assert np.isclose(np.vdot(modelled, data), np.vdot(image, migrated), rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_number_of_threads_gives_the_same_bits(dtype):
    import numba

    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("NUMBA_NUM_THREADS allows one thread")
    rng = np.random.default_rng(6)
    times = tables(dtype, source=rng.uniform(0, 0.06, (4, 70, 30)), receiver=rng.uniform(0, 0.06, (9, 70, 30)))
    one, two = (LocalKirchhoff(times, (70, 30), np.hanning(9), 4, threads=n) for n in (1, 2))
    image = rng.standard_normal(one.shape[1]).astype(dtype)
    data = one.forward_local(image)
    np.testing.assert_array_equal(two.forward_local(image), data)
    np.testing.assert_array_equal(two.adjoint_local(data), one.adjoint_local(data))


@pytest.mark.parametrize("shots", [0, 1, 2])
def test_ranks_without_shots(comm, shots):
    s = survey(shots=shots)
    operator = Kirchhoff(**s, mode="analytic", comm=comm)
    assert operator.dimsd == (shots, 7, 90)
    image, data = random_pair(operator)
    modelled, migrated = apply_both(operator, image, data)
    assert modelled.size == shots * 7 * 90
    if shots == 0:
        np.testing.assert_array_equal(migrated, 0)
    else:
        check_against(operator, peer(s, "analytic", "float64"))
    if comm.rank >= shots:
        assert operator.local.shape == (0, image.size)
        np.testing.assert_array_equal(operator.local.adjoint_local(np.zeros(0)), np.zeros(image.size))


def test_receivers_that_share_a_grid_point(comm):
    s = survey()
    s["receivers"][:, 4] = s["receivers"][:, 1] + 0.01
    s["sources"][:, 0] = s["receivers"][:, 1]
    s["velocity"] = gradient(s)
    check_against(Kirchhoff(**s, comm=comm), peer_at_our_times(s, "float64"))


def test_velocity_that_is_a_view(comm):
    """A profile broadcast over the columns, whose rows share memory."""
    s = survey(shots=2, receivers=3)
    profile = 300.0 + 5.0 * s["z"]
    whole = Kirchhoff(**s | {"velocity": np.tile(profile, (13, 1))}, comm=comm)
    view = Kirchhoff(**s | {"velocity": np.broadcast_to(profile, (13, 11))}, comm=comm)
    image, data = random_pair(whole)
    for found, expected in zip(apply_both(view, image, data), apply_both(whole, image, data), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_messages(comm):
    operator = Kirchhoff(**survey(), mode="analytic", comm=comm)
    image, _ = random_pair(operator)
    m = DistributedArray(operator.domain, comm, image)
    d = operator.forward(m)
    with count_messages() as messages:
        operator.forward(m, out=d)
    assert messages.total == 0
    with count_messages() as messages:
        operator.adjoint(d, out=m)
    assert messages["allreduce"] == (comm.size > 1)
    assert messages.total == messages["allreduce"]


FACTORS = {"aperture": 90.0, "antialias": True}  # test_columns_migrate_shot_by_shot has none
COLUMNS = [
    ("float32", "numba", 18, FACTORS),  # a strip of 16, and two by themselves
    ("float32", "numba", 53, FACTORS),  # three strips, and five columns of another
    ("float64", "numba", 13, {"amplitude": "2d", "aperture": 90.0, "max_dip": 60.0, "antialias": True, "coarsen": 2}),
    ("float64", "numpy", 3, {"antialias": True}),
]


@pytest.mark.parametrize(("dtype", "kernels", "count", "options"), COLUMNS)
def test_columns_are_those_of_one_vector(comm, dtype, kernels, count, options):
    """Ranks have one shot more than others, or none; all columns travel in one message."""
    op = Kirchhoff(**survey(shots=3), mode="analytic", comm=comm, dtype=dtype, kernels=kernels, **options)
    columns = Columns(op, count)
    images, data = (
        [random(layout, seed=number, comm=comm, dtype=dtype) for number in range(count)]
        for layout in (op.domain, op.range)
    )
    with count_messages() as messages:
        modelled = columns @ Columns.join(images)
        migrated = columns.H @ Columns.join(data)
    assert messages.total == messages["allreduce"] == (comm.size > 1)
    for apply, given, found in ((op, images, modelled), (op.H, data, migrated)):
        for x, image in zip(given, Columns.split(found), strict=True):
            expected = apply @ x
            assert float((image - expected).norm()) <= 5 * np.finfo(dtype).eps * float(expected.norm())
    columns.dottest()


@pytest.mark.parametrize("options", [{}, {"amplitude": "2d", "coarsen": 2}])
def test_columns_migrate_shot_by_shot(comm, monkeypatch, options):
    """As many shots as fit into the memory of filtered traces; samples that are not finite reach only their columns."""
    monkeypatch.setattr("collops.seismic.kirchhoff.cpu._FILTERED", 1)
    op = Kirchhoff(**survey(receivers=5), mode="analytic", comm=comm, dtype="float32", **options)
    data = [random(op.range, seed=number, comm=comm, dtype="float32") for number in range(35)]
    if comm.rank == 0:
        for number in (0, 33):
            data[number].local_array[:90] = np.nan  # the first trace
    found = [image.gather() for image in Columns.split(Columns(op, 35).H @ Columns.join(data))]
    for image, y in zip(found, data, strict=True):
        expected = (op.H @ y).gather()
        np.testing.assert_allclose(image, expected, atol=1e-5 * np.nanmax(np.abs(expected)), rtol=0)


@pytest.mark.parametrize("memory", [1, 1 << 23])
def test_columns_are_those_of_the_definition(monkeypatch, memory):
    """A strip of 16 columns and two alone, with the filtered traces of one shot or of all shots in memory."""
    monkeypatch.setattr("collops.seismic.kirchhoff.cpu._FILTERED", memory)
    rng = np.random.default_rng(7)
    sources, receivers, taps = rng.uniform(-2, 20, (2, 3, 4)), rng.uniform(-2, 20, (5, 3, 4)), [0.5, -1.0, 2.0, 0.25]
    times = FixedTables.from_seconds(sources, receivers, 1.0, 30, "float32")
    operator = LocalKirchhoff(times, (3, 4), taps, 1, threads=1)
    matrix = kirchhoff_matrix.matrix_of(sources, receivers, taps, 1, 30)
    images, data = (rng.standard_normal((18, size)).astype(np.float32) for size in operator.shape[::-1])
    modelled = operator.forward_columns(images, np.empty_like(data))
    migrated = operator.adjoint_columns(data, np.empty_like(images))
    np.testing.assert_allclose(modelled, images @ matrix.T, rtol=0, atol=1e-4)
    np.testing.assert_allclose(migrated, data @ matrix, rtol=0, atol=1e-4)


@pytest.mark.serial
def test_columns_in_memory_that_is_only_read():
    operator = LocalKirchhoff(tables(), (3, 4), np.hanning(9), 4)
    rng = np.random.default_rng(4)
    for apply, (size, given) in ((operator.forward_columns, operator.shape), (operator.adjoint_columns, (12, 180))):
        columns = rng.standard_normal((5, given)).astype(np.float32)
        expected = apply(columns, np.empty((5, size), np.float32))
        columns.flags.writeable = False
        np.testing.assert_array_equal(apply(columns, np.empty((5, size), np.float32)), expected)


def tables(dtype: str = "float32", **times) -> FixedTables:
    source = times.get("source", np.full((2, 3, 4), 0.01))
    return FixedTables.from_seconds(source, times.get("receiver", np.full((3, 3, 4), 0.02)), DT, 30, dtype)


@pytest.mark.parametrize("kernels", ["numba", "numpy"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_recordings_that_begin_late(dtype, kernels):
    """Negative times shift the data; arrivals before the first sample are left out."""
    rng = np.random.default_rng(2)
    source, receiver = rng.uniform(0, 15 * DT, (2, 3, 4)), rng.uniform(0, 12 * DT, (3, 3, 4))
    delay = 6 * DT
    image = rng.standard_normal(12)
    whole = LocalKirchhoff(tables(dtype, source=source, receiver=receiver), (3, 4), [1.0], 0, kernels=kernels)
    expected = whole.forward_local(image).reshape(6, 30)[:, 6:]
    for late in ((source - delay, receiver), (source, receiver - delay), (source - delay / 2, receiver - delay / 2)):
        operator = LocalKirchhoff(tables(dtype, source=late[0], receiver=late[1]), (3, 4), [1.0], 0, kernels=kernels)
        found = operator.forward_local(image).reshape(6, 30)
        # What fell before the first sample is left out, also its share of the first sample.
        np.testing.assert_allclose(found[:, 1:24], expected[:, 1:], rtol=0, atol=20 * TOLERANCE[dtype])
        np.testing.assert_array_equal(found[:, 24:], 0)


def test_local_operator_fills_what_it_is_given():
    operator = LocalKirchhoff(tables(), (3, 4), np.hanning(9), 4)
    assert operator.shape == (180, 12) and operator.dimsd == (2, 3, 30) and operator.dtype == np.float32
    image = np.arange(12, dtype=np.float32)
    expected = operator.forward_local(image)
    out = np.full(180, np.nan, np.float32)
    assert operator.forward_local(image, out) is out
    np.testing.assert_array_equal(out, expected)
    double = np.full(180, np.nan)
    assert operator.forward_local(image.astype(float), double) is double
    np.testing.assert_array_equal(double, expected)
    back = np.full(12, np.nan, np.float32)
    assert operator.adjoint_local(expected, back) is back
    np.testing.assert_array_equal(operator.rmatvec(expected), back)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernels", ["numba", "numpy"])
@pytest.mark.parametrize(("taps", "center"), kirchhoff_matrix.WAVELETS)
def test_both_ways_are_those_of_the_definition(taps, center, kernels, dtype):
    kirchhoff_matrix.check_matrix(dtype, taps, center, engine="numpy", kernels=kernels, threads=1)


@pytest.mark.serial
@pytest.mark.parametrize("kernels", ["numba", "numpy"])
@pytest.mark.parametrize("samples", [8191, 8192, 70_000])
def test_single_precision_is_enough_on_long_traces(samples, kernels):
    rng = np.random.default_rng(2)
    times = rng.uniform(-0.2, 0.6, (2, 2, 6, 7)) * samples
    single, double = (
        LocalKirchhoff(
            FixedTables.from_seconds(*times, 1.0, samples, dtype), (6, 7), [1.0], 0, engine="numpy", kernels=kernels
        )
        for dtype in ("float32", "float64")
    )
    image, data = (rng.standard_normal(n).astype(np.float32) for n in single.shape[::-1])
    assert relative(single.forward_local(image), double.forward_local(image.astype(float))) < 1e-5
    assert relative(single.adjoint_local(data), double.adjoint_local(data.astype(float))) < 1e-5


def test_traces_that_are_convolved_in_parts():
    rng = np.random.default_rng(2)
    samples, taps = 4500, [0.5, -1.0, 2.0, 0.25]
    times = rng.uniform(0, 2250, (2, 1, 12, 40))
    operator = LocalKirchhoff(FixedTables.from_seconds(*times, 1.0, samples, "float64"), (12, 40), taps, 1, threads=1)
    matrix = kirchhoff_matrix.matrix_of(*times, taps, 1, samples)
    image, data = (rng.standard_normal(size) for size in operator.shape[::-1])
    assert relative(operator.forward_local(image), matrix @ image) < TOLERANCE["float64"]
    assert relative(operator.adjoint_local(data), data @ matrix) < TOLERANCE["float64"]


def test_number_of_threads_is_restored():
    import numba

    before = numba.get_num_threads()
    operator = LocalKirchhoff(tables(), (3, 4), [1.0], 0, threads=1)
    numba.set_num_threads(max(1, numba.config.NUMBA_NUM_THREADS))
    try:
        operator.adjoint_local(operator.forward_local(np.ones(12, np.float32)))
        assert numba.get_num_threads() == numba.config.NUMBA_NUM_THREADS
    finally:
        numba.set_num_threads(before)


def test_local_operator_refuses():
    operator = LocalKirchhoff(tables(), (3, 4), np.hanning(9), 4)
    with pytest.raises(UnsupportedTypeError, match="real"):
        operator.forward_local(np.zeros(12, complex))
    with pytest.raises(LayoutError, match="12 elements, got 11"):
        operator.forward_local(np.zeros(11, np.float32))
    with pytest.raises(UnsupportedTypeError, match="real"):
        operator.forward_columns(np.zeros((3, 12), complex), np.zeros((3, 180), np.float32))
    with pytest.raises(LayoutError, match="36 elements, got 33"):
        operator.forward_columns(np.zeros((3, 11), np.float32), np.zeros((3, 180), np.float32))
    with pytest.raises(InputError, match="do not fit"):
        LocalKirchhoff(tables(), (3, 5), np.hanning(9), 4)
    with pytest.raises(InputError, match="kernels"):
        LocalKirchhoff(tables(), (3, 4), np.hanning(9), 4, kernels="fortran")
    with pytest.raises(InputError, match="threads"):
        LocalKirchhoff(tables(), (3, 4), np.hanning(9), 4, threads=10_000)
    with pytest.raises(InputError, match="NaN"):
        tables(receiver=np.full((3, 3, 4), np.nan))
    with pytest.raises(InputError, match="different image axes"):
        tables(receiver=np.ones((3, 4, 4)))
    with pytest.raises(InputError, match="too long"):
        FixedTables.from_seconds(np.full((1, 2, 2), -1e9), np.ones((1, 2, 2)), DT, 20, "float64")
    with pytest.raises(UnsupportedTypeError, match="float16"):
        tables("float16")


BAD = [
    ({"z": [0.0]}, "two points"),
    ({"z": [0.0, -1.0, -2.0]}, "increase"),
    ({"x": [0.0, 1.0, 3.0]}, "uniform"),
    ({"x": np.array([0.0, np.nan, 3.0])}, "NaN"),
    ({"t": np.arange(50) * DT + 1.0}, "begin at 0"),
    ({"sources": np.zeros((3, 4))}, "shape"),
    ({"sources": np.array([[-50.0], [0.0]])}, "outside the model"),
    ({"receivers": np.array([[0.0, 4000.0], [0.0, 0.0]])}, r"receivers\[:, 1\] is at x = 4000"),
    ({"receivers": np.array([[np.inf], [0.0]])}, "infinite"),
    ({"velocity": 0.0}, "positive"),
    ({"velocity": np.nan}, "NaN"),
    ({"velocity": None}, "needs a velocity"),
    ({"velocity": np.ones((13, 11))}, "constant velocity"),
    ({"wavelet": []}, "at least one sample"),
    ({"wavelet": [np.nan]}, "NaN"),
    ({"wavelet_center": 21}, "wavelet_center"),
    ({"wavelet_center": 1.5}, "wavelet_center"),
    ({"mode": "exact"}, "mode"),
    ({"mode": "byot"}, "travel_times"),
    ({"mode": "byot", "travel_times": (np.zeros((143, 5)), np.zeros((143, 6)))}, "receiver travel times"),
    ({"mode": "byot", "travel_times": (np.full((143, 5), np.nan), np.zeros((143, 7)))}, "NaN"),
    ({"travel_times": (np.zeros((143, 5)), np.zeros((143, 7)))}, "byot"),
    ({"mode": "eikonal", "velocity": np.ones((4, 4))}, "resample"),
    ({"engine": "abacus"}, "abacus"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_refuses(comm, change, sentence):
    with pytest.raises(InputError, match=sentence):
        Kirchhoff(**({"mode": "analytic", "comm": comm} | survey() | change))


def test_refuses_on_all_ranks_what_one_rank_gave(comm):
    s = survey()
    if comm.rank == comm.size - 1:
        s["velocity"] = -1.0
    with pytest.raises(InputError, match="positive"):
        Kirchhoff(**s, mode="analytic", comm=comm)


def test_cores_are_shared_with_the_other_ranks(monkeypatch):
    import numba

    from collops.comm import cores
    from collops.seismic import host_kernels

    monkeypatch.setattr(cores, "available_cores", lambda: frozenset(range(8)))
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 64)
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    everywhere = frozenset(range(8))
    assert host_kernels.thread_count() == 8
    assert host_kernels.thread_count((everywhere,)) == 4
    assert host_kernels.thread_count((everywhere,) * 2) == 2
    assert host_kernels.thread_count((everywhere,) * 20) == 1
    assert host_kernels.thread_count((frozenset(range(8, 16)),)) == 8  # bound elsewhere
    monkeypatch.setenv("NUMBA_NUM_THREADS", "64")
    assert host_kernels.thread_count((everywhere,) * 20) == 64


@pytest.mark.serial
def test_without_numba_it_says_so_and_works(monkeypatch):
    import collops.seismic

    package = "collops.seismic.kirchhoff"
    monkeypatch.setattr(collops.seismic, "kirchhoff", sys.modules[package])  # importing sets it
    for name in [name for name in sys.modules if name.startswith((package, "numba"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "numba" else find(name, *rest))
    fresh = importlib.import_module(package)
    times = fresh.FixedTables.from_seconds(np.full((1, 2, 2), 0.01), np.full((1, 2, 2), 0.02), DT, 20, "float32")
    with pytest.warns(RuntimeWarning, match="plain NumPy") as caught:
        operator = fresh.LocalKirchhoff(times, (2, 2), [1.0], 0)
    assert len(caught) == 1
    assert np.isclose(operator.forward_local(np.ones(4, "f4")).sum(), 4)
    assert f"{package}.cpu" not in sys.modules
