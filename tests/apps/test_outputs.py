"""What every application does about its folders before the first iteration, and that nothing is lost there."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zarr

from collops.apps import recipe
from collops.apps.recipe import run_job
from collops.comm.files import is_seen
from collops.errors import InputError
from collops.jacobi import job as jacobi
from tests.apps.jobs import Listener, application_of
from tests.apps.test_checkpoints import JOBS
from tests.cli.commands import environment

LSM = JOBS["lsm"][0] | {"iterations": 2}


def start(name, comm, run=None, **options):
    application = application_of(name)
    chosen = application.Options(**{**JOBS[name][0], "iterations": 2, **options})
    return run_job(run or application.run, chosen, comm, Listener())


def not_reached(job):
    raise AssertionError("the application has begun")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", JOBS)
def test_results_of_an_earlier_run_are_replaced_only_on_request(comm, folder, name):
    out = folder / "out"
    start(name, comm, out=str(out))
    comm.barrier()
    before = contents(out)
    application = application_of(name)
    known = application.Options(**JOBS[name][0], out=str(out)).results()
    assert set(out.iterdir()) <= set(known)
    comm.barrier()
    with pytest.raises(InputError, match=r"earlier run exist: .*result\.zarr.*--overwrite"):
        start(name, comm, not_reached, out=str(out))
    with pytest.raises(InputError, match="--overwrite"):  # it asks for a checkpoint to resume from, and there is none
        start(name, comm, not_reached, out=str(out), checkpoint=str(folder / "none"), resume=True)
    assert contents(out) == before
    comm.barrier()
    outcome = start(name, comm, out=str(out), overwrite=True, iterations=3)
    assert outcome.numbers["iterations"] == 3
    comm.barrier()
    assert zarr.open_group(str(out / "result.zarr"), mode="r").attrs["iterations"] == 3


@pytest.mark.serial
@pytest.mark.parametrize("name", ["result.zarr", "image.png", "convergence.png", "result.html"])
def test_one_file_is_enough_and_a_broken_link_counts(comm, tmp_path, name):
    (tmp_path / name).symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match=re.escape(name)):
        start("lsm", comm, not_reached, out=str(tmp_path))
    start("lsm", comm, out=str(tmp_path), overwrite=True)


@pytest.mark.serial
def test_results_that_a_run_does_not_have_are_removed_and_no_input_is_replaced(comm, tmp_path):
    out, survey = tmp_path / "out", tmp_path / "a.zarr"
    start("lsm", comm, out=str(tmp_path / "first"), write_survey=str(survey))
    recorded = {"survey": str(survey), "shots": None, "receivers": None, "samples": None, "noise": None, "seed": 0}
    start("lsm", comm, **recorded, out=str(out), uncertainty=2)
    names = {"image.sgy", "adjoint.sgy", "predicted.sgy", "residual.sgy", "deviation.sgy"}
    assert {path.name for path in out.glob("*.sgy")} == names
    for path in (out / "residual.sgy", out / "result.zarr" / "data_residual"):
        before = contents(out)
        with pytest.raises(InputError, match=r"would replace its input .* .--survey."):
            start("lsm", comm, not_reached, **recorded | {"survey": str(path)}, out=str(out), overwrite=True)
        assert contents(out) == before
    start("lsm", comm, **recorded, out=str(out), overwrite=True)
    assert {path.name for path in out.glob("*.sgy")} == names - {"deviation.sgy"}
    (out / "notes.sgy").write_text("mine")
    start("lsm", comm, out=str(out), overwrite=True)
    assert {path.name for path in out.glob("*.sgy")} == {"notes.sgy"}


@pytest.mark.serial
def test_a_survey_is_a_result_and_other_files_are_none(comm, tmp_path):
    survey = tmp_path / "a.sgy"
    (tmp_path / "data.npy").write_text("mine")
    start("lsm", comm, out=str(tmp_path), write_survey=str(survey))
    written = survey.read_bytes()
    with pytest.raises(InputError, match=r"a\.sgy"):
        start("lsm", comm, not_reached, out=str(tmp_path / "other"), write_survey=str(survey))
    assert survey.read_bytes() == written and (tmp_path / "data.npy").read_text() == "mine"


def test_a_resumed_job_replaces_its_own_results(comm, folder):
    safe = {"checkpoint": str(folder / "state"), "resume": True, "out": str(folder / "out")}
    start("solve", comm, **safe)
    assert start("solve", comm, **safe | {"iterations": 3}).numbers["resumed_from"] == 2


def test_jacobi_keeps_its_pictures(comm, folder):
    def run(**options):
        lines: list[str] = []
        chosen = jacobi.Options(
            nx=12, ny=16, niter=4, engine="numpy", variant="mpi_overlap", out=str(folder / "out"), **options
        )
        return jacobi.run_job(chosen, comm, Listener(), lines.append)

    run(timeline=True)
    comm.barrier()
    made = {path.name for path in (folder / "out").iterdir()}
    assert made == {"timeline-mpi_overlap.png"}
    comm.barrier()
    with pytest.raises(InputError, match=r"timeline-mpi_overlap\.png"):
        run(timeline=True)
    run()  # draws nothing
    run(timeline=True, overwrite=True)


@pytest.mark.parametrize("option", ["out", "checkpoint"])
def test_a_folder_that_only_some_ranks_see_is_one_error(comm, folder, monkeypatch, option):
    """Each rank has another current folder, as on hosts with disks of their own."""
    monkeypatch.setattr("collops.comm.files._SECONDS_TO_APPEAR", 0.3)
    own = folder / f"rank-{0 if comm.rank == 1 else comm.rank}"  # ranks 0 and 1 share theirs
    own.mkdir(exist_ok=True)
    monkeypatch.chdir(own)
    folders = {"out": str(folder / "out"), "checkpoint": str(folder / "state"), option: "mine"}
    if comm.size < 3:
        start("lsm", comm, **folders)
        return
    with pytest.raises(InputError) as caught:
        start("lsm", comm, not_reached, **folders)
    others = "rank 2" if comm.size == 3 else f"ranks 2-{comm.size - 1}"
    host = platform.node()
    assert f"rank 0 on {host} can write into the folder mine, but not {others} on {host}" in str(caught.value)
    assert str(caught.value).endswith(f"with --{option}") and caught.value.on_all_ranks
    comm.barrier()
    assert not list(folder.rglob(".collops-*"))


@pytest.mark.serial
def test_a_file_that_a_network_file_system_shows_late(tmp_path):
    def write() -> None:
        time.sleep(0.5)
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "proof").write_text("proof")

    late = threading.Thread(target=write)
    late.start()
    assert is_seen(tmp_path / "folder" / "proof", "proof")
    late.join()
    (tmp_path / "folder" / "proof").write_text("of another run")
    assert not is_seen(tmp_path / "folder" / "proof", "proof")


@pytest.mark.parametrize("name", JOBS)
def test_the_room_that_is_asked_for_is_that_of_the_result(comm, folder, monkeypatch, name):
    asked = []

    def check_room(where, needed, option):
        asked.append(needed)
        assert (where, option) == (folder / "out", "--out")

    monkeypatch.setattr(recipe, "check_room", check_room)
    start(name, comm, out=str(folder / "out"), dtype="float64")
    comm.barrier()
    if comm.rank == 0:
        group = zarr.open_group(str(folder / "out" / "result.zarr"), mode="r")
        arrays = {name: array.nbytes for name, array in group.arrays()}
        small = sum(array.nbytes for _, array in group.arrays() if array.ndim == 1 and array.size < 500)
        needed = asked.pop() - recipe._MAX_FIGURE_BYTES
        gathers = 2 * 4 * 3 * 64 * 250 if name == "lsm" else 0  # at most
        assert sum(arrays.values()) - small <= needed <= sum(arrays.values()) + gathers
    assert not asked


def test_no_room_is_one_error_before_the_solver(comm, folder, monkeypatch):
    monkeypatch.setattr("collops.apps.files.free_room", lambda where: 100_000)
    monkeypatch.setattr("collops.cgls", not_reached)
    with pytest.raises(InputError, match=r"the results need .* MiB, but .* has 97\.7 KiB free"):
        start("lsm", comm, out=str(folder / "out"))


def isolated(*command: str) -> list[str]:
    """Return a command that sees mounts of its own."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("this user may not have mounts of its own (unshare -m)")
    return ["unshare", "-m", "sh", "-c", *command]


SMALL = "-m collops lsm --nx 31 --nz 21 --shots 5 --receivers 9 --samples 101 --iterations 2 --quiet"


@pytest.mark.serial
def test_a_real_disk_without_room(tmp_path):
    (tmp_path / "out").mkdir()
    mounted = f"mount -t tmpfs -o size=1m none {tmp_path}/out && exec {sys.executable} {SMALL} --out {tmp_path}/out"
    done = subprocess.run(
        isolated(mounted), env=environment(), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 2 and done.stdout == ""
    assert re.search(r"the results need 2\.\d+ MiB, but .*/out has \d+ KiB|1 MiB", done.stderr), done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.serial
def test_a_real_host_without_the_folder(tmp_path):
    """The second rank has mounts of its own: where the first one writes it sees an empty disk."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        pytest.skip("no mpiexec of MPICH beside the interpreter")
    out = tmp_path / "out"
    out.mkdir()
    program = f"{sys.executable} {SMALL} --out {out}"
    elsewhere = isolated(f"mount -t tmpfs none {out} && exec {program}")
    command = [str(mpiexec), "-n", "1", *program.split(), ":", "-n", "1", *elsewhere]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 2, done
    assert done.stdout == ""
    host = platform.node()
    assert done.stderr == (
        f"collops lsm: rank 0 on {host} can write into the folder {out}, but not rank 1 on {host}: choose a folder "
        "that all ranks share with --out\n"
    )
    assert os.listdir(out) == []
