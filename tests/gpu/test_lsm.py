"""The migration on devices against the same on hosts, on any number of ranks; straight rays need no further package."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.seismic.lsm import run
from collops.seismic.lsm.inversion import invert
from collops.seismic.survey import checks, operator
from tests.apps.jobs import group_of, job_numbers
from tests.seismic.files import FREQUENCY, small_geometry
from tests.seismic.test_lsm_migrate import modelled, small_problem
from tests.seismic.test_lsm_streamed import options_of
from tests.seismic.test_survey_streamed import GRID, survey_on_disk

cupy = pytest.importorskip("cupy")
try:
    _DEVICES = cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError:
    _DEVICES = 0
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_DEVICES == 0, reason="no GPU")]


@pytest.mark.parametrize("towed", [False, True])
def test_devices_find_the_image_that_hosts_find(comm, towed):
    found = []
    for name in ("numpy", "cupy"):
        problem = small_problem(comm, towed=towed, mode="analytic")
        found.append(invert(*modelled(comm, problem, name, iterations=8, damp=0.1)))
    host, device = found
    np.testing.assert_allclose(device.image, host.image, rtol=0, atol=1e-7 * np.abs(host.image).max())
    np.testing.assert_allclose(device.solution.residuals, host.solution.residuals, rtol=1e-7)
    assert device.solution.execution == "replayed CUDA graph"


def test_a_profile_divides_iterations_on_devices(comm):
    problem = small_problem(comm, towed=False, mode="analytic")
    host, device = (
        invert(*modelled(comm, problem, name, iterations=8, profile=True)).solution for name in ("numpy", "cupy")
    )
    assert device.execution == "eager"
    assert all(each.shape == (comm.size,) and (each >= 0).all() for each in device.seconds.values())
    assert device.seconds["modelling"].any()
    assert device.messages <= host.messages


@pytest.mark.parametrize("towed", [False, True])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_normal_equations_on_devices_are_those_on_hosts(comm, tmp_path, monkeypatch, towed, kept, weighted):
    """With the kernels kept, and made for each application where their copies of the traces would be too large."""
    monkeypatch.setattr(operator, "_MAX_KERNEL_SHARE", 1.0 if kept else 0.0)
    folder = type(tmp_path)(comm.allgather_metadata(str(tmp_path))[0])
    survey = survey_on_disk(comm, folder, small_geometry(shots=7, samples=80, towed=towed))
    mutes = [np.random.default_rng(shot).uniform(size=(5, 80)).round(1) for shot in range(7)]
    mutes[3][...] = 0
    images, misfits = [], []
    for name in ("numpy", "cupy"):
        A = survey.operator("1500+0.6z", GRID, frequency=FREQUENCY, dtype="float64", engine=name)
        equations = survey.normal_equations(A, weights=mutes.__getitem__ if weighted else None, engine=name)
        result = collops.cg(equations.operator, equations.right, niter=8, tol=0)
        images.append(result.x.engine.to_host(result.x.local_array))
        misfits.append(equations.misfit(result.x))
    assert result.execution.startswith("replayed CUDA graph" if kept and not weighted else "eager")
    np.testing.assert_allclose(images[1], images[0], rtol=0, atol=1e-7 * np.abs(images[0]).max())
    assert misfits[1] == pytest.approx(misfits[0], rel=1e-7)


@pytest.mark.parametrize("towed", [False, True])
def test_the_command_streams_to_devices_as_to_hosts(comm, tmp_path, monkeypatch, towed):
    monkeypatch.setattr("collops.apps.recipe._draw", lambda *_, **__: [])
    folder = type(tmp_path)(comm.allgather_metadata(str(tmp_path))[0])
    monkeypatch.setattr(checks, "_COPIES_ON_DEVICE", 1 << 50)
    images = []
    for name, copies in (("numpy", 1 << 50), ("cupy", checks._COPIES)):
        monkeypatch.setattr(checks, "_COPIES", copies)
        options = options_of(comm, folder, towed=towed, name=name, regularise="laplacian", weight=0.1, engine=name)
        assert job_numbers(run, options, comm)["streamed"]
        images.append(group_of(folder, name)["image"][:])
    np.testing.assert_allclose(images[1], images[0], rtol=0, atol=1e-7 * np.abs(images[0]).max())
