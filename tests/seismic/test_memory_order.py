"""The memory order, byte order and type of arrays in files and from programs change no result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.io import mmwrite

from collops.apps import solve
from collops.array import from_global
from collops.seismic import lsm, mdd, poststack, reflectivity
from collops.seismic.survey import Survey
from collops.seismic.survey.velocity import load_velocity
from tests.apps.jobs import group_of, job_numbers
from tests.seismic.files import random_traces, small_geometry, write_survey

FORMS = {
    "Fortran": np.asfortranarray,
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "reversed": lambda a: np.flip(np.ascontiguousarray(np.flip(a))),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
}


def save(comm: Any, path: Path, values: np.ndarray) -> str:
    if comm.rank == 0:
        np.save(path, values)
    comm.barrier()
    return str(path)


def images(comm: Any, run: Any, options: type, folder: Path, arrays: dict[str, np.ndarray], field: str, **more) -> None:
    """Assert that a command has the same result from files in all forms."""
    expected = None
    for number, form in enumerate([np.ascontiguousarray, *FORMS.values()]):
        files = {name: save(comm, folder / f"{name}{number}.npy", form(array)) for name, array in arrays.items()}
        job_numbers(run, options(**files, **more, out=str(folder / f"out{number}"), engine="numpy"), comm)
        found = group_of(folder, f"out{number}")[field][...]
        expected = found if expected is None else expected
        assert np.abs(found).max() > 0
        np.testing.assert_array_equal(found, expected)


def test_velocities_of_a_migration(comm, folder):
    geometry, rng = small_geometry(shots=3, samples=60, towed=True), np.random.default_rng(1)
    if comm.rank == 0:
        write_survey(folder / "a.sgy", geometry, random_traces(geometry), {})
    velocity = np.rint(1500 + 300 * rng.random((59, 23)) + 20 * np.arange(59)[:, None]).astype(np.float32)
    more = {"survey": str(folder / "a.sgy"), "mute": "none", "iterations": 2, "dx": 12.5, "dz": 10.0, "x0": -50.0}
    images(comm, lsm.run, lsm.Options, folder, {"velocity": velocity}, "image", **more)


@pytest.mark.parametrize("form", FORMS)
def test_velocities_of_a_program(comm, form):
    survey, rng = Survey(small_geometry(shots=3), comm), np.random.default_rng(2)
    velocity = np.rint(1500 + 300 * rng.random((59, 23)) + 20 * np.arange(59)[:, None])
    grid = survey.grid(velocity, dx=12.5, dz=10.0, x0=-50.0)
    image = rng.standard_normal(grid.shape)
    kinds = {"float64": velocity, form: FORMS[form](velocity), "integers": FORMS[form](velocity.astype(np.int16))}
    data = []
    for values in kinds.values():
        A = survey.operator(values, grid, frequency=25.0)
        data.append((A @ from_global(image, A.domain, comm=comm)).gather())
        assert load_velocity(values, 2, None).flags.c_contiguous  # type: ignore[union-attr]
    assert np.abs(data[0]).max() > 0
    np.testing.assert_array_equal(data[1:], data[:1] * 2)


def test_volumes_wavelets_and_backgrounds(comm, folder):
    rng = np.random.default_rng(3)
    arrays = {"volume": rng.standard_normal((4, 5, 40)), "wavelet": np.array([0.1, -0.4, 1.0, -0.3, 0.2])}
    images(comm, reflectivity.run, reflectivity.Options, folder, arrays, "reflectivity", iterations=3, interval=4.0)
    arrays["background"] = 5e6 + 1e5 * rng.random((4, 5, 40))
    images(comm, poststack.run, poststack.Options, folder, arrays, "impedance", iterations=3, interval=4.0)


def test_fields_of_a_deconvolution(comm, folder):
    rng = np.random.default_rng(4)
    arrays = {"down": rng.standard_normal((4, 5, 32)), "up": rng.standard_normal((4, 5, 32))}
    images(comm, mdd.run, mdd.Options, folder, arrays, "response", iterations=3, interval=4.0, spacing=10.0)


def test_right_hand_sides(comm, folder):
    matrix = folder / "a.mtx"
    if comm.rank == 0:
        mmwrite(matrix, sp.diags_array(np.arange(1.0, 28.0)))
    rhs = {"rhs": np.random.default_rng(5).standard_normal(27)}
    images(comm, solve.run, solve.Options, folder, rhs, "solution", matrix=str(matrix))
