"""Run applications, whole or in parts, and look at the results."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import zarr

from collops.apps.recipe import Job, run_job
from collops.backend import engine
from tests.seismic.files import REAL

COMMON_KEYS = {
    *("residual_initial", "residual_final", "residual_reduction", "relative_error", "adjoint_relative_error"),
    *("seconds_per_iteration", "execution", "transport", "engine", "ranks", "iterations", "dtype", "versions"),
}
PROFILE_KEYS = {"seconds_split", "messages_per_iteration"}
needs_real_data = pytest.mark.skipif(not REAL.is_dir(), reason=f"the real data are not at {REAL}")


APPLICATIONS = ("lsm", "mdd", "poststack", "reflectivity", "solve")


def application_of(name: str) -> Any:
    """Return the module of an application."""
    return importlib.import_module(f"collops.{'apps' if name == 'solve' else 'seismic'}.{name}")


class Listener:
    live = False

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str, **numbers: Any) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def stage(self, text: str | None) -> None:
        pass


def job_of(options: Any, comm: Any, compute: str = "numpy") -> Job:
    """Return a job whose parts a test runs one by one."""
    return Job(options, comm, engine(compute), Listener())


def job_numbers(run: Callable, options: Any, comm: Any) -> dict[str, Any]:
    """Run an application, over results of an earlier run; return its numbers with its notes and warnings."""
    listener = Listener()
    outcome = run_job(run, dataclasses.replace(options, overwrite=True), comm, listener)
    comm.barrier()
    assert all(path.exists() for path in outcome.files)
    assert outcome.numbers.keys() >= COMMON_KEYS
    assert outcome.numbers.keys() & PROFILE_KEYS == (PROFILE_KEYS if options.profile else set())
    if options.profile:
        assert outcome.seconds is not None and list(outcome.seconds) == ["modelling", "communication", "rest"]
        for kind, each in outcome.seconds.items():
            expected = {"min": each.min(), "mean": each.mean(), "max": each.max()}
            assert len(each) == comm.size and outcome.numbers["seconds_split"][kind] == expected
    return outcome.numbers | {"notes": listener.notes, "warnings": listener.warnings}


def group_of(folder: Any, name: str) -> Any:
    """Open the group that a job wrote."""
    return zarr.open_group(str(folder / name / "result.zarr"), mode="r")
