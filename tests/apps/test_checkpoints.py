"""Every application resumes from a checkpoint as if it had not been interrupted."""

from __future__ import annotations

import numpy as np
import pytest

from collops.errors import CheckpointError, InputError
from collops.seismic import lsm
from collops.seismic.lsm import Options

from .jobs import application_of, group_of, job_numbers

JOBS = {
    "lsm": ({"shots": 3, "receivers": 7, "nx": 31, "nz": 21}, "image"),
    "mdd": ({"sources": 4, "receivers": 5, "samples": 64}, "response"),
    "poststack": ({"inlines": 6, "crosslines": 5, "samples": 32}, "impedance"),
    "reflectivity": ({"inlines": 7, "samples": 32}, "reflectivity"),
    "solve": ({"points": 60, "method": "cgls", "tol": 0.0}, "solution"),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_resumed_job_ends_as_an_uninterrupted_one(comm, folder, name):
    application = application_of(name)
    chosen, array = JOBS[name]
    safe = {"checkpoint": str(folder / "checkpoints"), "every": "1h", "resume": True}

    def run(out: str, iterations: int, **options):
        whole = application.Options(**chosen, iterations=iterations, out=str(folder / out), **options)
        numbers = job_numbers(application.run, whole, comm)
        return numbers, group_of(folder, out)[array][...]

    whole, expected = run("whole", 3)
    assert whole["resumed_from"] is None and whole["checkpoint"] is None
    begun, _ = run("begun", 2, **safe)
    assert begun["resumed_from"] is None and begun["checkpoint"] == safe["checkpoint"]
    ended, found = run("ended", 3, **safe)
    assert ended["resumed_from"] == 2 and ended["iterations"] == 3
    assert ended["residual_final"] == whole["residual_final"]
    np.testing.assert_array_equal(found, expected)


def test_another_job_does_not_resume(comm, folder):
    options = JOBS["lsm"][0] | {"checkpoint": str(folder / "checkpoints"), "out": str(folder / "out"), "iterations": 2}
    job_numbers(lsm.run, Options(**options), comm)
    with pytest.raises(CheckpointError, match="pass resume=True \\(--resume\\)"):
        job_numbers(lsm.run, Options(**options), comm)
    with pytest.raises(CheckpointError, match="its data differ"):
        job_numbers(lsm.run, Options(**options, noise=0.3, resume=True), comm)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"every": "3"}, "--every needs checkpoints"),
        ({"resume": True}, "--resume needs checkpoints"),
        ({"checkpoint": ""}, "--checkpoint must name a folder"),
        ({"out": ""}, "--out must name a folder"),
        ({"checkpoint": "a/../b", "out": "b"}, "a separate folder"),
        ({"checkpoint": "a", "every": "soon"}, "every must be"),
    ],
)
def test_options_that_make_no_sense(options, reason):
    with pytest.raises(InputError, match=reason):
        Options(**options).check()
