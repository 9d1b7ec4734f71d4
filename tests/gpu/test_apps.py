"""The jobs beside the migration on devices against the same on hosts, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest

from collops.apps.mdd.invert import deconvolve
from collops.apps.mdd.options import Options as MddOptions
from collops.apps.mdd.problem import prepare
from collops.apps.poststack import invert as poststack
from collops.apps.reflectivity import invert as reflectivity
from collops.apps.volume.cube import Axis, Cube, Volume
from collops.apps.volume.modelling import convolution, trace_operator
from collops.apps.volume.problem import Problem
from collops.apps.wavelet import ricker
from collops.backend import engine

cupy = pytest.importorskip("cupy")
try:
    _DEVICES = cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError:
    _DEVICES = 0
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_DEVICES == 0, reason="no GPU")]


def small_problem(comm, compute) -> Problem:
    shape = (7, 5, 60)
    cube = Cube((Axis("inline", np.arange(7)), Axis("crossline", np.arange(5))), 60, 0.004)
    rows = cube.layout(comm.size).slices(comm.rank)[0]
    live = np.ones(shape[:-1], bool)
    live[3, 2] = False
    wavelet = ricker(60, 0.004)[0]
    data = np.random.default_rng(5).normal(size=shape) * live[..., None]
    operator = trace_operator(convolution(wavelet, 60), cube, live[rows], comm, compute, "float64")
    return Problem(Volume(cube, data[rows], live[rows], wavelet), operator)


def assert_replayed(costs, comm) -> None:
    assert costs.execution == "replayed CUDA graph"
    assert costs.split.seconds.shape == (comm.size, 3)
    assert (costs.split.seconds >= 0).all()


def test_poststack_inversion(comm):
    found = []
    for name in ("numpy", "cupy"):
        compute = engine(name)
        problem = small_problem(comm, compute)
        traces = problem.volume.traces
        found.append(
            poststack.invert(problem, traces, comm, compute, iterations=8, weight=0.2, damp=0.1, progress=False)
        )
    host, device = found
    np.testing.assert_allclose(device.update, host.update, rtol=0, atol=1e-8)
    np.testing.assert_allclose(device.residuals, host.residuals, rtol=1e-8)
    assert_replayed(device.costs, comm)


def test_reflectivity_inversion(comm):
    found = []
    for name in ("numpy", "cupy"):
        compute = engine(name)
        problem = small_problem(comm, compute)
        found.append(
            reflectivity.invert(problem, comm, compute, iterations=12, sparsity=0.1, threshold="soft", progress=False)
        )
    host, device = found
    np.testing.assert_allclose(device.spikes, host.spikes, rtol=0, atol=1e-9)
    np.testing.assert_allclose(device.residuals, host.residuals, rtol=1e-8)
    assert_replayed(device.costs, comm)


def test_deconvolution(comm):
    options = MddOptions(sources=7, receivers=5, samples=60, dtype="float64")
    found = []
    for name in ("numpy", "cupy"):
        compute = engine(name)
        problem = prepare(options, comm, compute)
        found.append(deconvolve(problem, comm, compute, iterations=8, damp=0.1, progress=False))
    host, device = (each.response.local_array for each in found)
    np.testing.assert_allclose(device, host, rtol=0, atol=1e-8 * np.abs(host).max(initial=0.0))
    np.testing.assert_allclose(found[1].residuals, found[0].residuals, rtol=1e-7)
    assert (found[1].costs.split.seconds >= 0).all()
