"""Amplitudes, apertures and anti-aliasing of Kirchhoff operators against geometry and Green's functions."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.errors import InputError
from collops.seismic.kirchhoff import FixedTables
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.kirchhoff.rays import trace_rays
from collops.seismic.kirchhoff.weights import Bands
from tests.seismic import kirchhoff_matrix
from tests.seismic.arrivals import eikonal

pytest.importorskip("numba")

V, DT, PEAK = 2000.0, 0.002, 25.0
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def ricker(times: np.ndarray) -> np.ndarray:
    square = (np.pi * PEAK * times) ** 2
    return (1 - 2 * square) * np.exp(-square)


WAVELET, CENTER = ricker(DT * np.arange(-40, 41)), 40


def modelled(image: np.ndarray, sources: list, receivers: list, samples: int, axes: dict, **options) -> np.ndarray:
    """Traces of an image in a constant velocity, (sources, receivers, samples)."""
    t = np.arange(samples) * DT
    stations = (np.array(where, float).T for where in (sources, receivers))
    operator = collops.seismic.Kirchhoff(
        axes["z"], axes["x"], t, *stations, V, WAVELET, CENTER, y=axes.get("y"), mode="analytic", threads=1, **options
    )
    data = operator.forward(collops.from_global(image, operator.domain)).local_array
    return data.reshape(operator.local.dimsd)


# ---- the definition -------------------------------------------------------------------------------------------------


@pytest.mark.serial
@pytest.mark.parametrize(("kernels", "dtype"), [("numba", "float32"), ("numba", "float64"), ("numpy", "float64")])
@pytest.mark.parametrize(("amplitude", "aperture", "dip"), kirchhoff_matrix.WEIGHTINGS)
def test_weights_are_those_of_geometry(amplitude, aperture, dip, kernels, dtype):
    kirchhoff_matrix.check_weighted_matrix(dtype, amplitude, aperture, dip, engine="numpy", kernels=kernels, threads=1)


def test_weights_and_bands_of_an_image_of_several_blocks(comm):
    """More points than kernels process at a time, more receivers than a task has, against plain NumPy kernels."""
    x, z, t = 9.0 * np.arange(41), 7.0 * np.arange(31), np.arange(120) * DT
    stations = (np.stack([np.linspace(*ends, n), np.zeros(n)]) for *ends, n in ((40.0, 300.0, 3), (0.0, 360.0, 6)))
    options = {"amplitude": "2.5d", "aperture": 200.0, "max_dip": 60.0, "antialias": True, "mode": "analytic"}
    arguments = z, x, t, *stations, V, WAVELET[30:51], 10
    fast, slow = (
        collops.seismic.Kirchhoff(*arguments, **options, comm=comm, threads=1, kernels=kernels).local
        for kernels in ("numba", "numpy")
    )
    rng = np.random.default_rng(4)
    for size, name in ((fast.shape[1], "forward_local"), (fast.shape[0], "adjoint_local")):
        vector = rng.standard_normal(size)
        found, expected = (getattr(each, name)(vector) for each in (fast, slow))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max(initial=1e-300))


@pytest.mark.serial
def test_a_point_between_source_and_receiver_has_no_dip():
    """The rays to it have opposite directions: their sum is zero, and so is the weight."""
    x, z = 10.0 * np.arange(5), 10.0 * np.arange(3)
    source, receiver = np.array([[0.0], [0.0]]), np.array([[40.0], [0.0]])
    operator = collops.seismic.Kirchhoff(
        *(z, x, np.arange(40) * DT, source, receiver, V, [1.0], 0), mode="analytic", max_dip=60.0, threads=1
    )
    image = np.zeros((5, 3))
    image[2, 0] = 1.0
    np.testing.assert_array_equal(operator.local.forward_local(image.ravel()), 0)
    migrated = operator.local.adjoint_local(np.ones(40)).reshape(5, 3)
    assert np.isfinite(migrated).all() and migrated[2, 0] == 0 and migrated.any()


# ---- rays -----------------------------------------------------------------------------------------------------------


@pytest.mark.serial
@pytest.mark.parametrize(("shape", "position"), [((121, 91), (410.0, 0.0)), ((21, 26, 23), (200.0, 260.0, 40.0))])
def test_rays_in_a_velocity_that_increases_with_depth(shape, position):
    """Rays are arcs of circles, and wavefronts are spheres of a hyperbolic space, whose spreading is a formula."""
    gradient, step = 0.8, 10.0 if len(shape) == 2 else 20.0
    axes = tuple(step * np.arange(n) for n in shape)
    grid, position = ImageGrid(axes, (step,) * len(axes)), np.array(position)
    places = np.meshgrid(*axes, indexing="ij")
    velocity = 1500 + gradient * places[-1]
    at = 1500 + gradient * position[-1]
    distance = np.sqrt(sum((p - c) ** 2 for p, c in zip(places, position, strict=True)))
    times = 2 / gradient * np.arcsinh(gradient * distance / (2 * np.sqrt(velocity * at)))
    wide = np.sinh(gradient * times) / gradient
    far = distance > 3 * step
    solved = eikonal(grid, position, velocity)
    rays = trace_rays(solved + 0.3, grid, position, velocity)  # only differences of times count
    with np.errstate(divide="ignore"):
        exact = 1 / np.sqrt(8 * np.pi * wide) if len(shape) == 2 else 1 / (4 * np.pi * wide * np.sqrt(velocity * at))
    np.testing.assert_allclose(rays.amplitude[far], exact[far], rtol=0.02)
    np.testing.assert_allclose(rays.spreading[far], (at * velocity * wide)[far], rtol=0.01)
    slope = np.stack(np.gradient(times, step))
    cosine = (slope * rays.direction).sum(axis=0) / np.linalg.norm(slope, axis=0)
    inner = far & np.pad(np.ones([n - 2 for n in shape], bool), 1)
    assert cosine[inner].min() > 0.999


@pytest.mark.serial
def test_rays_stay_bounded_where_ray_theory_fails():
    """Interfaces, a body of salt and a focus: many wavefronts, of which the first may carry little."""
    x, z = 10.0 * np.arange(101), 10.0 * np.arange(91)
    grid, (wide, deep) = ImageGrid((x, z), (10.0, 10.0)), np.meshgrid(x, z, indexing="ij")
    position = np.array([350.0, 0.0])
    salt = np.where((wide - 600) ** 2 + (deep - 400) ** 2 < 200**2, 4500.0, np.where(deep < 250, 1500.0, 2600.0))
    lens = 2000 - 700 * np.exp(-((wide - 500) ** 2 + (deep - 300) ** 2) / 150**2)
    # The second has times of another velocity.
    for velocity, of_times, most in ((salt, salt, np.exp(2)), (salt, lens, np.exp(2)), (lens, lens, 2.0)):
        times = eikonal(grid, position, of_times)
        rays = trace_rays(times, grid, position, velocity)
        at = velocity[35, 0]
        straight = np.sqrt(at / (8 * np.pi * np.maximum(np.hypot(wide - 350, deep), 5)))
        assert (rays.amplitude >= 0.999 * np.exp(-2) * straight).all()
        assert (rays.amplitude <= 1.001 * most * straight).all()
        assert (rays.spreading > 0).all() and np.isfinite(rays.direction).all()
    assert (rays.amplitude / straight).max() > 1.2  # behind the lens, which focuses


# ---- amplitudes of waves --------------------------------------------------------------------------------------------


@pytest.mark.serial
@pytest.mark.parametrize("amplitude", ["2d", "2.5d", "3d"])
def test_point_diffractor_has_the_amplitude_of_green_functions(amplitude):
    """The exact Green's functions of the Helmholtz equation, in frequencies; in 2.5-D of a line of points."""
    from scipy.special import hankel1

    axes = {"x": 10.0 * np.arange(-40, 41), "z": 10.0 * np.arange(61)}
    source, receivers, point = [-250.0, 0.0], [[100.0, 0.0], [-350.0, 20.0]], np.array([50.0, 400.0])
    if amplitude == "3d":
        axes["y"] = 10.0 * np.arange(3)
        source, receivers = [10.0, *source], [[10.0, *receiver] for receiver in receivers]
        point = np.array([10.0, *point])
    order = [name for name in ("y", "x", "z") if name in axes]
    image = np.zeros([len(axes[name]) for name in order])
    node = tuple(int(np.argmin(np.abs(axes[name] - p))) for name, p in zip(order, point, strict=True))
    image[node] = 1.0
    samples = 512
    found = modelled(image, [source], receivers, samples, axes, amplitude=amplitude)[0]

    f = 2 * np.pi * np.fft.rfftfreq(samples, DT)[1:]  # of time dependence exp(-i f t)
    spectrum = np.conj(np.fft.rfft(ricker(DT * np.arange(samples) - 0.1)))[1:] * np.exp(-0.1j * f)
    for receiver, trace in zip(receivers, found, strict=True):
        ours, theirs = np.array(source) - point, np.array(receiver) - point
        cosine = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
        factor = 2 * np.sqrt((1 + cosine) / 2) / V * 10.0 ** len(order)
        lengths = np.linalg.norm(ours), np.linalg.norm(theirs)
        if amplitude == "2d":  # the wavelet is the half-integral of the line source's
            green = np.prod([0.25j * hankel1(0, f * r / V) for r in lengths], axis=0) * np.sqrt(-1j * f)
        else:
            out_of_plane = [0.0] if amplitude == "3d" else np.arange(-1500, 1500, 4.0)
            reach = [np.hypot(r, out_of_plane)[:, np.newaxis] for r in lengths]
            green = np.exp(1j * f / V * (reach[0] + reach[1])) / (16 * np.pi**2 * reach[0] * reach[1])
            green = green.sum(axis=0) * (1.0 if amplitude == "3d" else 4.0)
        exact = np.fft.irfft(np.conj(np.append(0, factor * -1j * f * green * spectrum)), samples)
        np.testing.assert_allclose(trace, exact, rtol=0, atol=0.05 * np.abs(exact).max())


@pytest.mark.serial
@pytest.mark.parametrize(("amplitude", "dip"), [("2d", 0.0), ("2d", 15.0), ("2.5d", 15.0), ("3d", 0.0)])
def test_plane_reflects_with_its_coefficient(amplitude, dip):
    """The reflection is a straight ray from the mirror image of the source, times the coefficient."""
    normal, depth, coefficient = np.array([np.sin(np.radians(dip)), np.cos(np.radians(dip))]), 300.0, 0.3
    axes = {"x": 5.0 * np.arange(-100, 101), "z": 2.5 * np.arange(180)}
    if amplitude == "3d":
        axes = {"x": 10.0 * np.arange(-50, 51), "z": np.array([0.0, depth]), "y": 10.0 * np.arange(-50, 51)}
    step = axes["z"][1] - axes["z"][0]
    away = axes["x"][:, np.newaxis] * normal[0] + axes["z"] * normal[1] - depth
    image = coefficient * np.maximum(1 - np.abs(away) / (step * normal[1]), 0) / (step * normal[1])
    source, receivers = np.array([0.0, 0.0]), np.array([[-100.0, 0.0], [0.0, 0.0], [150.0, 0.0]])
    mirror = source + 2 * depth * normal
    if amplitude == "3d":
        image = np.broadcast_to(image, (101, *image.shape))
        source, mirror = np.append(0.0, source), np.append(0.0, mirror)
        receivers = np.insert(receivers, 0, 40.0, axis=1)
    found = modelled(image, [source], receivers, 300, axes, amplitude=amplitude)[0]
    for receiver, trace in zip(receivers, found, strict=True):
        length = np.linalg.norm(mirror - receiver)
        spread = np.sqrt(V / (8 * np.pi * length)) if amplitude == "2d" else 1 / (4 * np.pi * length)
        event = coefficient * spread * ricker(DT * np.arange(300) - length / V)
        near = slice(*(round(length / V / DT) + half for half in (-25, 25)))  # before the ends of the plane
        np.testing.assert_allclose(trace[near], event[near], rtol=0, atol=0.05 * np.abs(event).max())


@pytest.mark.serial
def test_least_squares_returns_the_amplitude_of_a_diffractor():
    """The data are those of one point by formula, with straight rays and the half-derivative of the wavelet."""
    axes = {"x": 25.0 * np.arange(17), "z": 200 + 25.0 * np.arange(9)}
    surface = np.stack([np.linspace(0, 400, 21), np.full(21, 200.0)])
    t = np.arange(300) * DT
    operator = collops.seismic.Kirchhoff(
        axes["z"],
        axes["x"],
        t,
        surface[:, ::4],
        surface,
        V,
        WAVELET,
        CENTER,
        mode="analytic",
        amplitude="2d",
        threads=1,
    )
    point, strength = np.array([200.0, 300.0]), 0.7
    padded = np.fft.rfft(ricker(DT * np.arange(-600, 600)))
    half = np.fft.irfft(padded * np.sqrt(2j * np.pi * np.fft.rfftfreq(1200, DT)), 1200)
    data = np.zeros(operator.dimsd)
    for i, source in enumerate(surface[:, ::4].T):
        for j, receiver in enumerate(surface.T):
            ours, theirs = source - point, receiver - point
            lengths = np.hypot(*ours), np.hypot(*theirs)
            obliquity = np.sqrt(2 + 2 * (ours @ theirs) / np.prod(lengths)) / V
            green = V / (8 * np.pi) / np.sqrt(np.prod(lengths))
            lag = t - sum(lengths) / V
            data[i, j] = strength * 25.0**2 * obliquity * green * np.interp(lag, DT * np.arange(-600, 600), half)
    d = collops.from_global(data.ravel(), operator.range)
    image = collops.cgls(operator, d, niter=40, tol=0.0).x.local_array
    assert abs(image[8, 4] / strength - 1) < 0.05
    image[8, 4] = 0
    assert np.abs(image[:, 2:-2]).max() < 0.1 * strength


# ---- aliasing -------------------------------------------------------------------------------------------------------


@pytest.mark.serial
def test_triangles_are_as_long_as_the_delay_between_receivers():
    rng = np.random.default_rng(3)
    positions = np.stack([np.arange(6) * 30.0, np.zeros(6)], axis=1)[rng.permutation(6)]
    slopes = rng.uniform(0, 0.02, 40) / 30.0  # seconds a metre, at 40 points
    times = FixedTables.from_seconds(np.zeros((1, 40)), positions[:, :1] * slopes, 0.001, 500, "float64")
    positions = np.insert(positions, 0, -1e3, axis=0)  # the first row is that of the source
    (bands,) = Bands.between([times], positions, None, 200)
    lengths = np.array(bands.lengths)[bands.choice]
    delay = slopes * 30.0 / 0.001  # samples
    assert (lengths >= delay).all() and (lengths <= np.maximum(1, np.maximum(1.5 * delay, delay + 1))).all()
    (wide,) = Bands.between([times], positions, 60.0, 200)
    assert (np.array(wide.lengths)[wide.choice] >= 2 * delay).all()
    wavelets, center = bands.wavelets(np.array([0.0, 1.0, 0.5]), 1)
    np.testing.assert_allclose(wavelets.sum(axis=1), 1.5)
    for wavelet, length in zip(wavelets, bands.lengths, strict=True):  # no amplitude at the frequencies 1 / length
        if length > 1:
            wave = np.exp(2j * np.pi / length * np.arange(wavelet.size))
            assert abs(wavelet @ wave) < 1e-12
    assert wavelets[0, center] == 1
    (alone,) = Bands.between([times.select([0], [1])], positions, None, 9)
    assert alone.lengths == (1,)


@pytest.mark.serial
def test_antialiasing_reduces_the_artefacts_of_a_dipping_event():
    """Receivers 60 m apart, for wavelengths of 80 m: aliases are 0.75 of a reflector of 20 degrees, then 0.22."""
    x, z, t = 10.0 * np.arange(121), 10.0 * np.arange(81), np.arange(500) * DT
    receivers = np.stack([np.arange(0, 1201, 60.0), np.zeros(21)])
    source, dip = np.array([[600.0], [0.0]]), np.radians(20.0)
    depth = 400.0  # below the source, along the normal
    mirror = source + 2 * depth * np.array([[np.sin(dip)], [np.cos(dip)]])
    lengths = np.hypot(*(receivers - mirror))
    data = ricker(t - lengths[:, np.newaxis] / V).ravel()
    away = np.abs((x[:, np.newaxis] - 600.0) * np.sin(dip) + z * np.cos(dip) - depth)
    artefacts, events = [], []
    for antialias in (False, True):
        operator = collops.seismic.Kirchhoff(
            *(z, x, t, source, receivers, V, WAVELET, CENTER),
            **{"mode": "analytic", "amplitude": "2d", "antialias": antialias, "threads": 1},
        )
        image = operator.adjoint(collops.from_global(data, operator.range)).local_array
        artefacts.append(np.linalg.norm(image[(away > 100) & (z > 50)]))
        events.append(np.linalg.norm(image[away < 40]))
    assert artefacts[1] / events[1] < 0.35 * artefacts[0] / events[0]
    assert events[1] > 0.5 * events[0]


# ---- all ranks ------------------------------------------------------------------------------------------------------

EVERY = [
    {"amplitude": "2d"},
    {"amplitude": "2.5d", "aperture": 70.0, "max_dip": 50.0, "antialias": True},
    {"amplitude": "3d", "antialias": 40.0},
    {"aperture": 60.0},
    {"max_dip": 40.0},
    {"antialias": True},
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", EVERY, ids=str)
def test_dot_test_and_ranks_agree(comm, options, dtype):
    """In a velocity that varies, where ranks share the receivers' rays; against plain NumPy kernels on one rank."""
    rng = np.random.default_rng(2)
    z, x, y = 8.0 * np.arange(9), 8.0 * np.arange(12), 8.0 * np.arange(5)
    three = options.get("amplitude") == "3d"
    low, high = (np.array([[axis[end]] for axis in ((y, x, z) if three else (x, z))]) for end in (0, -1))
    sources, receivers = (low + (high - low) * rng.uniform(0, 0.9, (low.size, n)) for n in (4, 6))
    velocity = np.broadcast_to(1500 + 5 * z, (5, 12, 9) if three else (12, 9))
    arguments = [z, x, np.arange(60) * DT, sources, receivers, velocity, WAVELET[20:61], 20]
    more = {"y": y if three else None, "dtype": dtype} | options
    operator = collops.seismic.Kirchhoff(*arguments, **more, comm=comm, threads=1)
    image = rng.standard_normal(operator.dims).astype(dtype)
    assert operator.dottest()
    there = operator.forward(collops.from_global(image, operator.domain))
    one = collops.seismic.Kirchhoff(*arguments, **more, comm=comm.split(comm.rank), kernels="numpy")
    expected = one.forward(collops.from_global(image, one.domain, comm=one.comm)).local_array.reshape(operator.dimsd)
    mine = there.local_array.reshape(-1, 6, 60)
    ours = expected[operator.shots.start : operator.shots.stop]
    np.testing.assert_allclose(mine, ours, rtol=0, atol=20 * TOLERANCE[dtype] * np.abs(expected).max())
    assert np.abs(expected).max() > 0


@pytest.mark.serial
def test_given_times_have_the_amplitudes_of_their_velocity():
    x, z = 10.0 * np.arange(9), 10.0 * np.arange(8)
    where = np.array([[20.0], [0.0]]), np.array([[0.0, 30.0], [0.0, 0.0]])
    wide, deep = (axis.ravel() for axis in np.meshgrid(x, z, indexing="ij"))
    times = [np.hypot(wide[:, np.newaxis] - stations[0], deep[:, np.newaxis]) / V for stations in where]
    common = (z, x, np.arange(90) * DT, *where, V, WAVELET, CENTER)
    image = np.random.default_rng(0).standard_normal(72)
    given, known = (
        collops.seismic.Kirchhoff(*common, mode=mode, travel_times=tables, amplitude="2d", antialias=True, threads=1)
        for mode, tables in (("byot", tuple(times)), ("analytic", None))
    )
    found, expected = given.local.forward_local(image), known.local.forward_local(image)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


BAD = [
    ({"amplitude": "4d"}, "amplitude must be"),
    ({"amplitude": "3d"}, "does not suit a 2-D image"),
    ({"aperture": 0.0}, "aperture"),
    ({"aperture": np.nan}, "aperture"),
    ({"aperture": "wide"}, "aperture must be"),
    ({"max_dip": 90.0}, "max_dip"),
    ({"antialias": -1.0}, "antialias"),
    ({"antialias": "triangle"}, "antialias"),
    ({"mode": "byot", "amplitude": "2d", "travel_times": (np.ones((30, 1)), np.ones((30, 2)))}, "need the velocity"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_refuses(comm, change, sentence):
    velocity = None if "mode" in change else V
    where = np.array([[10.0], [0.0]]), np.array([[0.0, 30.0], [0.0, 0.0]])
    with pytest.raises(InputError, match=sentence):
        collops.seismic.Kirchhoff(
            10.0 * np.arange(5),
            10.0 * np.arange(6),
            np.arange(20) * DT,
            *where,
            velocity,
            WAVELET,
            CENTER,
            comm=comm,
            **({"mode": "analytic"} | change),
        )
