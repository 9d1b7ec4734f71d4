"""The jobs beside the migration on devices against the same on hosts, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest

from collops.apps.recipe import Job, Solution
from collops.seismic import mdd, poststack, reflectivity
from collops.seismic.mdd import deconvolve
from collops.seismic.signals import ricker
from collops.seismic.volume.files import Axis, Cube
from collops.seismic.volume.modelling import convolution, trace_operator
from collops.seismic.volume.problem import Problem, Volume
from tests.apps.jobs import job_of

cupy = pytest.importorskip("cupy")
try:
    _DEVICES = cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError:
    _DEVICES = 0
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_DEVICES == 0, reason="no GPU")]


def small_problem(job: Job) -> Problem:
    shape = (7, 5, 60)
    cube = Cube((Axis("inline", np.arange(7)), Axis("crossline", np.arange(5))), 60, 0.004)
    rows = job.share(7)
    live = np.ones(shape[:-1], bool)
    live[3, 2] = False
    wavelet = ricker(60, 0.004)[0]
    data = np.random.default_rng(5).normal(size=shape) * live[..., None]
    operator = trace_operator(job, convolution(wavelet, 60), live[rows])
    return Problem(job, Volume(cube, data[rows], live[rows], wavelet), operator)


def assert_same_residuals(host: Solution, device: Solution, tolerance: float) -> None:
    np.testing.assert_allclose(device.residuals, host.residuals, rtol=tolerance)
    assert device.execution == "replayed CUDA graph"


def test_poststack_inversion(comm):
    found = []
    for name in ("numpy", "cupy"):
        job = job_of(poststack.Options(dtype="float64", iterations=8, weight=0.2, damp=0.1), comm, name)
        problem = small_problem(job)
        found.append(poststack.invert(job, problem, problem.volume.traces))
    host, device = found
    np.testing.assert_allclose(device.model, host.model, rtol=0, atol=1e-8)
    assert_same_residuals(host.solution, device.solution, 1e-8)


def test_reflectivity_inversion(comm):
    found = []
    for name in ("numpy", "cupy"):
        job = job_of(reflectivity.Options(dtype="float64", iterations=12, sparsity=0.1), comm, name)
        found.append(reflectivity.invert(job, small_problem(job)))
    host, device = found
    np.testing.assert_allclose(device.model, host.model, rtol=0, atol=1e-9)
    assert_same_residuals(host.solution, device.solution, 1e-8)


def test_deconvolution(comm):
    options = mdd.Options(sources=7, receivers=5, samples=60, dtype="float64", iterations=8, damp=0.1)
    found = []
    for name in ("numpy", "cupy"):
        job = job_of(options, comm, name)
        found.append(deconvolve.invert(job, deconvolve.prepare(job)))
    host, device = found
    scale = np.abs(host.response).max(initial=0.0)
    np.testing.assert_allclose(device.response, host.response, rtol=0, atol=1e-8 * scale)
    np.testing.assert_allclose(device.solution.residuals, host.solution.residuals, rtol=1e-7)
