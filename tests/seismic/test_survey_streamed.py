"""Surveys larger than the memory: normal equations from traces that are read shot by shot."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import collops
from collops.errors import InputError, LayoutError
from collops.seismic.survey import Geometry, Grid, Survey, read
from collops.seismic.survey.operator import SurveyModelling
from tests.seismic.files import FREQUENCY, random_traces, set_samples, small_geometry, write_survey

GRID = Grid(26, 16, 25.0, 20.0)


def survey_on_disk(comm: Any, folder: Any, geometry: Geometry) -> Survey:
    if comm.rank == 0:
        write_survey(folder / "a.sgy", geometry, random_traces(geometry), {})
    comm.barrier()
    return read(folder / "a.sgy", comm)


@pytest.mark.parametrize("towed", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_image_is_that_of_cgls_with_the_data_in_memory(comm, folder, towed, weighted):
    geometry = small_geometry(shots=7, samples=80, towed=towed)
    survey = survey_on_disk(comm, folder, geometry)
    mutes = [np.random.default_rng(shot).uniform(size=(5, 80)).round(1) for shot in range(7)]
    A = survey.operator("1500+0.6z", GRID, frequency=FREQUENCY, dtype="float64")
    equations = survey.normal_equations(A, weights=mutes.__getitem__ if weighted else None)
    found = collops.cg(equations.operator, equations.right, niter=8, tol=0)
    # In memory, by other operators.
    matrix, data = A, survey.data(dtype="float64")
    if weighted:
        weights = survey.array([mutes[shot] for shot in survey.shots], dtype="float64")
        matrix, data = collops.Diagonal(weights) @ A, weights * data
    expected = collops.cgls(matrix, data, niter=8, tol=0)
    image = expected.x.local_array
    np.testing.assert_allclose(found.x.local_array, image, rtol=0, atol=1e-9 * np.abs(image).max())
    assert equations.energy == pytest.approx(expected.residual_norms[0] ** 2)
    assert equations.misfit(found.x) == pytest.approx(expected.residual_norms[-1])
    assert expected.residual_norms[-1] < 0.99 * expected.residual_norms[0]
    assert equations.operator.dottest()


def test_matrices_of_a_users_own_model_the_shots(comm, folder):
    survey = survey_on_disk(comm, folder, small_geometry(shots=7, samples=40, towed=True))
    rows = np.random.default_rng(comm.rank).normal(size=(len(survey.shots), 5 * 40, 30))
    A = collops.VStack(list(rows), comm)
    data = survey.data(dtype="float64")
    equations = survey.normal_equations(A)
    np.testing.assert_allclose(equations.right.local_array, A.adjoint(data).local_array)
    x = collops.random(A.domain, seed=1, comm=comm)
    np.testing.assert_allclose(equations.operator.forward(x).local_array, A.adjoint(A.forward(x)).local_array)


def test_an_iteration_sends_one_image_and_a_number(comm, folder):
    survey = survey_on_disk(comm, folder, small_geometry(shots=7, samples=80, towed=True))
    A = survey.operator("1500+0.6z", GRID, frequency=FREQUENCY)
    operator = survey.normal_equations(A).operator
    with collops.profile.count_messages() as messages:
        operator.forward(collops.ones(operator.domain, comm=comm, dtype="float32"))
    assert messages.total == (0 if comm.size == 1 else 1)


@pytest.mark.serial
def test_memory_does_not_depend_on_the_number_of_shots(comm, folder):
    def peak(shots: int) -> int:
        # Two places of the boat, over and over, so that the tables are the same.
        sources = np.tile([[100.0, 300.0], [6.0, 6.0]], shots // 2)
        spread = np.stack([np.linspace(0, 400, 10), np.full(10, 2.5)])
        survey = survey_on_disk(comm, folder, Geometry(sources, [spread] * shots, 1500, 0.004))
        A = survey.operator("1500+0.6z", GRID, frequency=FREQUENCY)
        tracemalloc.start()
        equations = survey.normal_equations(A)
        collops.cg(equations.operator, equations.right, niter=3, tol=0)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(2)  # what is imported and compiled
    few, many = peak(20), peak(160)
    assert many < 1.1 * few
    assert many < 160 * 10 * 1500 * 4 / 3  # of the data alone


def test_streamed_tables_take_no_memory_however_many_shots_there_are(comm, folder, monkeypatch):
    """The bytes of all tables in memory are counted, before an application and in the largest one of a shot."""

    def of_tables(tables: Any) -> tuple[int, int]:
        """Return the bytes of times, and which of them are in memory."""
        times, base = tables.times, tables.times
        while base is not None and not isinstance(base, np.memmap):
            base = base.base
        return times.nbytes, times.nbytes if base is None else 0

    def bytes_of(shots: int, coarsen: int) -> tuple[int, int, int]:
        geometry = small_geometry(shots=shots, samples=40, towed=True)
        survey = survey_on_disk(comm, folder, geometry)
        kept: list[Any] = []
        options: dict[str, Any] = {"frequency": FREQUENCY, "folder": folder, "kept": kept, "coarsen": coarsen}
        A = survey.operator("1500+0.6z", GRID, streamed=True, **options)
        loaded = [0]

        def made(self: Any, spread: Any, *args: Any) -> Any:
            # Kernels on devices load the rows that they use.
            loaded.append(of_tables(spread.compact()[0])[1])
            return original(self, spread, *args)

        original = SurveyModelling._local
        monkeypatch.setattr(SurveyModelling, "_local", made)
        equations = survey.normal_equations(A)
        collops.cg(equations.operator, equations.right, niter=2, tol=0)
        monkeypatch.undo()
        assert len(loaded) == 1 + 5 * len(survey.shots)  # right side, and both directions in each iteration
        assert len(list(folder.iterdir())) == 1  # no file but the survey
        return (
            max((of_tables(each)[0] for each in kept), default=0),
            sum(of_tables(each)[1] for each in kept),
            max(loaded),
        )

    for coarsen in (1, 2):
        (few, held, some), (many, held_of_many, as_some) = (bytes_of(shots, coarsen) for shots in (4, 16))
        assert many > 3 * few > 0 and held == held_of_many == 0
        assert as_some == some > 0  # those of one shot


def test_errors_are_those_of_all_ranks(comm, folder):
    geometry = small_geometry(shots=4, towed=True)
    survey = survey_on_disk(comm, folder, geometry)
    A = survey.operator("1500+0.6z", GRID, frequency=FREQUENCY)
    for other in (collops.Identity(A.domain, comm=comm, dtype="float32"), A.H):
        with pytest.raises(LayoutError, match="the operator of this survey"):
            survey.normal_equations(other)
    with pytest.raises(InputError, match=r"weights of shape \(4, 1\) do not fit the traces of shot 4"):
        survey.normal_equations(A, weights=lambda shot: np.ones((4, 1)) if shot == 3 else 1.0)
    comm.barrier()
    if comm.rank == 0:
        set_samples(folder / "a.sgy", 17, np.nan)  # of the last shot
    comm.barrier()
    with pytest.raises(InputError, match="shot 4, trace 3, sample 1 is nan"):
        survey.normal_equations(A)
    silent = Survey(geometry, comm)
    with pytest.raises(InputError, match="has no traces"):
        silent.normal_equations(A)
    silent.traces = [np.zeros((5, 40)) for _ in silent.shots]
    with pytest.raises(InputError, match=r"all samples of .* are zero"):
        silent.normal_equations(A)
