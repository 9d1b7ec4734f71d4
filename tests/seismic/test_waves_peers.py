"""Seismograms of other packages equal the propagator's to the difference of the schemes; shots are shared by cost."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest

import collops
from collops.errors import InputError
from collops.extend.communication import alone
from collops.seismic.waves import Geometry, Grid, Propagator, share_by_cost
from collops.seismic.waves.shot_shares import consecutive_shares
from tests.seismic.test_waves_physics import VELOCITY, analytic, ricker

pytestmark = pytest.mark.serial
SHAPE, SPACING, INTERVAL, FREQUENCY = (50, 40), 10.0, 0.001, 15.0
SOURCE, RECEIVERS = np.array([[100.0, 200.0]]), np.array([[200.0, 200.0], [350.0, 200.0]])
WAVELET = ricker(FREQUENCY, np.arange(330) * INTERVAL)


def difference(traces, other):
    return np.linalg.norm(traces - other) / np.linalg.norm(other)


def own_and_exact():
    grid = Grid(SHAPE, (SPACING, SPACING))
    F = Propagator(grid, Geometry(SOURCE, RECEIVERS, WAVELET, INTERVAL), dtype="float64", kernels="numpy", comm=alone())
    t = np.arange(len(WAVELET)) * INTERVAL
    exact = [analytic(2, distance, t, FREQUENCY) for distance in RECEIVERS[:, 0] - SOURCE[0, 0]]
    return F(collops.full(F.domain, VELOCITY, comm=F.comm)).local_array[0], np.array(exact)


def test_deepwave():
    deepwave = pytest.importorskip("deepwave", reason="deepwave is not installed")
    torch = pytest.importorskip("torch")
    source, receivers = (torch.tensor(x / SPACING).round().long()[None] for x in (SOURCE, RECEIVERS))
    found = deepwave.scalar(
        torch.full(SHAPE, VELOCITY, dtype=torch.float64),
        SPACING,
        INTERVAL,
        source_amplitudes=torch.tensor(WAVELET)[None, None],
        source_locations=source,
        receiver_locations=receivers,
        accuracy=8,
        pml_freq=FREQUENCY,
    )[-1][0].numpy()
    own, exact = own_and_exact()
    assert difference(own, -found / SPACING**2) < 1e-5
    assert abs(difference(own, exact) - difference(-found / SPACING**2, exact)) < 1e-5


def test_gradients_of_deepwave_in_elastic_media():
    """With respect to both Lamé parameters, away from the stations, where the source of deepwave has no derivative."""
    deepwave = pytest.importorskip("deepwave", reason="deepwave is not installed")
    torch = pytest.importorskip("torch")
    grid = Grid(SHAPE, (SPACING, SPACING))
    F = Propagator(
        grid,
        Geometry(SOURCE, RECEIVERS, WAVELET, INTERVAL),
        shear_velocity=0.0,
        dtype="float64",
        comm=alone(),
        kernels="numpy",
    )
    bump = np.exp(-((np.arange(50)[:, np.newaxis] - 24) ** 2 + (np.arange(40) - 15) ** 2) / 60)
    speeds = VELOCITY - 100 * bump, 0.5 * VELOCITY + 60 * bump
    model = collops.StackedArray([collops.from_global(v, layout=F.domain, comm=F.comm) for v in speeds])
    traces, J = F.linearise(model)
    own = J.adjoint(traces)
    (v, shear), (of_v, of_shear) = speeds, (x.local_array for x in own)
    own = of_v / (2 * v), of_v / v + of_shear / (2 * shear)  # with a density of 1

    lame = [torch.tensor(x, requires_grad=True) for x in (v**2 - 2 * shear**2, shear**2)]
    source, receivers = (np.rint(x / SPACING).astype(int) for x in (SOURCE, RECEIVERS))
    bulk = (v**2 - shear**2)[tuple(source[0])]
    rate = torch.tensor(bulk * INTERVAL * np.cumsum(WAVELET) / SPACING**2)[None, None]
    found = deepwave.elastic(
        *lame,
        torch.ones(SHAPE, dtype=torch.float64),
        SPACING,
        INTERVAL,
        source_amplitudes_pressure_rate=rate,
        source_locations_pressure_rate=torch.tensor(source)[None],
        receiver_locations_p=torch.tensor(receivers)[None],
        accuracy=8,
        pml_freq=FREQUENCY,
    ).receiver_amplitudes_p[0]
    assert difference(traces.local_array[0], found.detach().numpy()) < 1e-4
    (torch.tensor(traces.local_array[0]) * found).sum().backward()
    away = np.ones(SHAPE)
    for i, k in (*source, *receivers):
        away[i - 1 : i + 2, k - 1 : k + 2] = 0
    for gradient, parameter in zip(own, lame, strict=True):
        assert difference(away * gradient, away * parameter.grad.numpy()) < 1e-5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own
def test_devito():
    pytest.importorskip("devito", reason="Devito is not installed")
    from examples.seismic import AcquisitionGeometry, Model
    from examples.seismic.acoustic import AcousticWaveSolver
    from pylops.waveeqprocessing._twoway import _CustomSource

    velocity, step = np.full(SHAPE, VELOCITY / 1000, np.float32), 1000 * INTERVAL  # in km/s and ms
    model = Model((0, 0), (SPACING, SPACING), SHAPE, 8, velocity, nbl=60, bcs="damp", dt=step)
    geometry = AcquisitionGeometry(model, RECEIVERS, SOURCE, 0.0, (len(WAVELET) - 1) * step)
    source = _CustomSource(name="src", grid=model.grid, wav=WAVELET, time_range=geometry.time_axis)
    source.coordinates.data[:] = SOURCE
    found = np.array(AcousticWaveSolver(model, geometry, space_order=8).forward(src=source)[0].data).T / SPACING**2
    own, exact = own_and_exact()
    assert difference(own, exact) < 0.01
    assert difference(found, exact) < 0.02  # its layers reflect more
    assert difference(own, found) < 0.01


@pytest.mark.parametrize("ranks", [1, 3, 7])
def test_shots_are_shared_by_cost(ranks):
    costs = np.random.default_rng(0).integers(1, 9, 13)
    shares = share_by_cost(costs, ranks)
    assert sorted(shot for share in shares for shot in share) == list(range(13))
    largest = max(costs[share].sum() for share in shares)
    assert largest <= 4 / 3 * max(costs.max(), -(-costs.sum() // ranks))  # at most 4/3 of a bound from below
    assert share_by_cost([], 2) == [[], []]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_consecutive_shares_are_the_cheapest(ranks):
    rng = np.random.default_rng(ranks)
    for costs in [[3] * 7, [], *(rng.integers(0, 9, count).tolist() for count in (1, 2, 4, 6, 7) for _ in range(4))]:
        sizes, sums = consecutive_shares(costs, ranks), np.cumsum([0, *costs])
        assert len(sizes) == ranks and sum(sizes) == len(costs) and min(sizes) >= 0
        cuts = combinations_with_replacement(range(len(costs) + 1), ranks - 1)
        cheapest = min(np.diff(sums[[0, *cut, len(costs)]]).max() for cut in cuts)
        assert np.diff(sums[np.cumsum([0, *sizes])]).max() == cheapest
        assert min(sizes) > 0 or len(costs) < ranks  # no rank is idle
    assert consecutive_shares([5] * 10, 4) == [3, 3, 2, 2]  # even, if that is as cheap
    assert consecutive_shares([100, 1, 1, 1], 3) == [1, 1, 2]


@pytest.mark.parametrize(
    "arguments", [([-1.0], 2), ([np.nan], 2), ([[1.0]], 2), (["a"], 2), ([1j], 2), ([1.0], 0), ([1.0], 1.5)]
)
def test_unusable_costs(arguments):
    with pytest.raises(InputError):
        share_by_cost(*arguments)
