"""Migrations with an image that is split over the ranks, against the same with an image that every rank has."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from collops.seismic.conditioning import Conditioned
from collops.seismic.lsm import Options, run
from collops.seismic.lsm.inversion import invert
from collops.seismic.lsm.migrate import illumination, kirchhoff
from collops.seismic.lsm.regularisation import local_inverse_root, probed_diagonal
from collops.seismic.lsm.resident import ResidentSurvey
from tests.apps.jobs import group_of, job_numbers, job_of
from tests.seismic.test_lsm_job import SMALL
from tests.seismic.test_lsm_migrate import modelled, small_problem


def assert_close(found: np.ndarray, expected: np.ndarray, limit: float = 1e-9) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=limit * np.abs(expected).max())


@pytest.mark.parametrize("regularise", ["dip", "tv"])
def test_penalties_are_those_of_a_replicated_image(comm, regularise):
    problem = small_problem(comm, towed=True, mode="analytic")
    images = []
    for split in (False, True):
        chosen: dict[str, Any] = {"regularise": regularise, "weight": 0.1, "iterations": 2}
        job, operator, traces = modelled(comm, problem, split_image=split, **chosen)
        assert operator.domain.is_replicated == (not split or comm.size == 1)
        images.append(invert(job, operator, traces).image)
    assert_close(images[1], images[0])


def test_preconditioners_are_those_of_a_replicated_image(comm):
    problem, found = small_problem(comm, towed=True, mode="analytic"), []
    weights = [
        np.random.default_rng(shot).uniform(size=(problem.survey.geometry.receivers[shot].shape[1], 90))
        for shot in problem.survey.shots
    ]
    conditioned = [Conditioned(each, each, np.ones((1, 1)), np.ones(len(each))) for each in weights]
    for split in (False, True):
        job, tables = job_of(Options(dtype="float64", split_image=split), comm), []
        operator = kirchhoff(job, problem, tables)
        problem = dataclasses.replace(problem, conditioned=conditioned)
        reduced = ResidentSurvey(job, problem, operator).operator
        M = local_inverse_root(job, reduced.H @ reduced, 60.0, problem.grid)
        ones = np.random.default_rng(1).normal(size=problem.grid.shape)
        found.append(
            [
                illumination(problem, operator, tables),
                probed_diagonal(job, reduced.H @ reduced),
                job.gather(M.forward(job.distribute(operator.domain, ones))),
            ]
        )
    for parted, whole in zip(*found[::-1], strict=True):
        assert_close(parted, whole)


def test_a_job_gives_the_same_results_and_resumes_with_another_layout(comm, folder):
    options = SMALL | {"gathers": 2, "damp": 0.3, "nx": 3, "dx": 187.5, "frequency": 20.0}
    for name, more in {
        "whole": {},
        "half": {"checkpoint": str(folder / "c"), "every": 2, "iterations": 3, "gathers": None},
        "parts": {"checkpoint": str(folder / "c"), "resume": True, "split_image": True, "uncertainty": 2},
    }.items():
        numbers = job_numbers(run, Options(**(options | more | {"out": str(folder / name)})), comm)
        assert numbers["image_split"] == (name == "parts" and comm.size > 1)
    assert numbers["resumed_from"] == 3
    whole, parts = (group_of(folder, name) for name in ("whole", "parts"))
    for name in ("image", "adjoint_image", "residual_norms", "illumination", "common_image_gathers", "data_residual"):
        assert_close(parts[name][...], whole[name][...], 1e-6 if name == "data_residual" else 1e-9)
    assert parts["standard_deviation"].shape == (3, 21)
