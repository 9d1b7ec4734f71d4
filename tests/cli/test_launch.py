from __future__ import annotations

import sys
from pathlib import Path

import pytest

from collops.cli.launch import command_for, environment_for
from collops.comm.cores import available_cores
from collops.errors import InputError

pytestmark = pytest.mark.serial


def _program(folder: Path, name: str, answer: str = "") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


def test_the_launcher_inside_a_slurm_allocation(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    srun = _program(tmp_path, "srun")
    program = [sys.executable, "-m", "collops", "lsm"]
    allocation = {"SLURM_JOB_ID": "1", "PATH": str(tmp_path)}
    by_srun = [str(srun), "--ntasks=3000", *program]
    assert command_for(3000, ["lsm"], allocation) == by_srun
    (tmp_path / "bin").mkdir()
    beside = _program(tmp_path / "bin", "mpiexec")
    # More than one machine can bear, but an allocation has several.
    assert command_for(3000, ["lsm"], allocation) == [str(beside), "-n", "3000", *program]
    for name, value in (("SLURM_MPI_TYPE", "pmix"), ("MPI4PY_LIBMPI", "/opt/libmpi.so")):
        assert command_for(3000, ["lsm"], {**allocation, name: value}) == by_srun


def test_the_mpiexec_beside_the_interpreter_comes_before_that_on_the_path(tmp_path, monkeypatch):
    beside, elsewhere = tmp_path / "beside", tmp_path / "elsewhere"
    beside.mkdir()
    elsewhere.mkdir()
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    far = _program(elsewhere, "mpiexec", "HYDRA build details:")
    environment = {"PATH": f"{elsewhere}:/usr/bin:/bin"}
    assert command_for(2, [], environment)[:3] == [str(far), "-n", "2"]
    near = _program(beside, "mpiexec", "HYDRA build details:")
    assert command_for(2, ["lsm", "--nx", "5"], environment) == [
        str(near), "-n", "2", str(beside / "python"), "-m", "collops", "lsm", "--nx", "5",
    ]  # fmt: skip


def test_open_mpi_is_asked_for_more_ranks_than_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    mpiexec = _program(tmp_path, "mpiexec", "mpiexec (Open MPI) 5.0.11")
    options = ["--oversubscribe"] if len(available_cores()) < 128 else []  # 5.0.11 has no --quiet
    assert command_for(64, [], {"PATH": "/usr/bin:/bin"})[:-3] == [str(mpiexec), *options, "-n", "64"]
    assert environment_for(64, {})["OMPI_MCA_orte_execute_quiet"] == "1"


def test_more_ranks_than_a_machine_can_bear_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    _program(tmp_path, "mpiexec", "HYDRA build details:")
    with pytest.raises(InputError, match="too many for one machine"):
        command_for(100_000, [], {"PATH": "/usr/bin:/bin"})


def test_the_user_may_name_the_launcher(tmp_path):
    launcher = _program(tmp_path, "mpirun")
    command = command_for(2, [], {"COLLOPS_MPIEXEC": f"{launcher} --bind-to none", "SLURM_JOB_ID": "1"})
    assert command[:5] == [str(launcher), "--bind-to", "none", "-n", "2"]
    for wrong in ("/no/such/mpirun", "mpirun --option 'without its end"):
        with pytest.raises(InputError, match="COLLOPS_MPIEXEC"):
            command_for(2, [], {"COLLOPS_MPIEXEC": wrong})


def test_without_a_launcher_the_user_learns_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(InputError, match=r"collops\[mpi\]"):
        command_for(2, [], {"PATH": str(tmp_path)})


def test_cores_are_shared_unless_the_user_says_otherwise():
    assert environment_for(10_000, {})["NUMBA_NUM_THREADS"] == "1"
    assert environment_for(10_000, {"NUMBA_NUM_THREADS": "5"})["NUMBA_NUM_THREADS"] == "5"
    assert "OMP_NUM_THREADS" not in environment_for(2, {"SLURM_JOB_ID": "1"})
