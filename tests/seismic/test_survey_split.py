"""Surveys with an image that is split over the ranks, against the same with an image that every rank has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import collops
from collops.apps import stages
from collops.errors import InputError, LayoutError
from collops.seismic.kirchhoff import Weighting, split
from collops.seismic.survey import Geometry, Grid, Survey
from tests.seismic.files import FREQUENCY, INTERVAL
from tests.seismic.test_survey import area_survey


def line_survey(comm: Any) -> tuple[Survey, Grid]:
    """Towed shots and, after them, some with one spread, on a grid of fewer columns than some worlds have ranks."""
    towed = [np.stack([10.0 + 20 * shot + 12.0 * np.arange(5), np.full(5, 3.0)]) for shot in range(3)]
    fixed = np.stack([np.linspace(0, 180, 7), np.zeros(7)])
    sources = np.stack([np.linspace(5, 190, 6), np.full(6, 2.0)])
    return Survey(Geometry(sources, [*towed, *[fixed] * 3], 60, INTERVAL), comm), Grid(3, 21, 100.0, 10.0)


def products(comm: Any, A: Any) -> list[np.ndarray]:
    """Return the data of an image, and the image of some data, whole."""
    rng = np.random.default_rng(2)
    image, data = (rng.normal(size=layout.shape).astype(A.dtype) for layout in (A.domain, A.range))
    return [
        (A @ collops.from_global(image, A.domain, comm=comm)).gather(),
        (A.H @ collops.from_global(data, A.range, comm=comm)).gather(),
    ]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (line_survey, {"mode": "eikonal", "dtype": "float32", "antialias": True}),
        (area_survey, {"coarsen": 3, "weighting": Weighting("3d", 250.0, 60.0)}),
    ],
)
def test_the_operator_is_that_of_a_replicated_image(comm, make, options, monkeypatch):
    survey, grid = make(comm)
    monkeypatch.setattr(split, "BLOCK", survey.layout.size // 2)
    options = {"frequency": FREQUENCY, "dtype": "float64", **options}
    whole, parted = (survey.operator(1500.0, grid, split=each, **options) for each in (False, True))
    assert parted.range is whole.range is survey.layout
    assert parted.domain is collops.Layout.split(grid.shape, comm.size)
    assert parted.dottest()
    limit = 1e-12 if options["dtype"] == "float64" else 1e-5
    for found, expected in zip(products(comm, parted), products(comm, whole), strict=True):
        assert np.abs(found - expected).max() <= limit * np.abs(expected).max()
    traces = [np.random.default_rng(shot).normal(size=survey.trace_shape(shot)) for shot in survey.shots]
    images = [survey.by_offset(each, 2, traces=traces)[1] for each in (parted, whole)]
    for found, expected in zip(*images, strict=True):
        assert np.abs(found - expected).max() <= limit * np.abs(expected).max()


def test_an_image_is_split_where_its_tables_do_not_fit_otherwise(comm, monkeypatch):
    survey, grid = line_survey(comm)
    stations = len(survey.geometry.stations[0])
    own = int(comm.allreduce(np.array(len(survey.geometry.needed(survey.shots))), "max"))
    if comm.size == 1:
        own += 1  # one rank cannot split
    else:
        assert stations / comm.size < own - 1
    monkeypatch.setattr(stages, "available_memory", lambda _: (8 + own - 0.5) * 4 * grid.points / 0.8)
    A = survey.operator(1500.0, grid, frequency=FREQUENCY, coarsen=1)
    assert A.domain.is_replicated == (comm.size == 1)
    assert ("is split over" in (survey.notes or [""])[-1]) == (comm.size > 1)
    if comm.size > 1:
        with pytest.raises(InputError, match=r"travel times of .* stations .* need"):
            survey.operator(1500.0, grid, frequency=FREQUENCY, coarsen=1, split=False)


def test_refusals(comm):
    survey, grid = line_survey(comm)
    with pytest.raises(InputError, match="omit streamed or split"):
        survey.operator(1500.0, grid, frequency=FREQUENCY, streamed=True, split=True)
    if comm.size > 1:
        A = survey.operator(1500.0, grid, frequency=FREQUENCY, split=True)
        with pytest.raises(LayoutError, match="split=False"):
            survey.normal_equations(A)
