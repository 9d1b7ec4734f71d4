"""The job around the programming models: the samples' lines, the comparison with one rank, the files."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace

import numpy as np
import pytest

from collops.backend import engine
from collops.comm import alone
from collops.comm.agreement import shared_error
from collops.comm.nccl import NO_P2P
from collops.errors import InputError
from collops.jacobi import MODELS, Problem, make, run
from collops.jacobi.job import Measured, Options, Outcome, csv_line, heading, norm_line, run_job, summary
from collops.jacobi.measure import STRETCH, Difference, Reference
from collops.jacobi.messages import Messages
from collops.jacobi.one_process import OneProcess
from collops.jacobi.samples import Sample, run_sample
from collops.profile import count_messages
from tests.apps.jobs import Listener
from tests.jacobi.model import relaxed
from tests.jacobi.test_variants import process_grids

ONE_PROCESS = [name for name, model in MODELS.items() if issubclass(model.variant, OneProcess)]
SMALL = {"nx": 40, "ny": 33, "niter": 120, "engine": "numpy"}


def job(comm, **options):
    lines: list[str] = []
    return run_job(Options(**{**SMALL, **options}), comm, Listener(), lines.append), lines


@pytest.mark.serial
def test_lines_are_those_of_the_samples():
    problem = Problem(nx=16384, ny=32768)
    assert summary(problem, 4, 0.7539, 2.9257) == [
        "Num GPUs: 4.",
        "16384x32768: 1 GPU:   2.9257 s, 4 GPUs:   0.7539 s, speedup:     3.88, efficiency:    97.02 ",
    ]
    assert summary(problem, 4, 0.7539, None) == ["Num GPUs: 4.", "16384x32768: 4 GPUs:   0.7539 s "]
    assert csv_line("nccl", problem, 4, 0.75, 2.5) == "nccl, 16384, 32768, 1000, 1, 4, 1, 0.750000, 2.500000"
    assert (
        csv_line("nccl", problem, 4, 0.75, None, p2p=False) == "nccl, 16384, 32768, 1000, 1, 4, 0, 0.750000, 0.000000"
    )
    assert norm_line(100, 0.8979832) == "  100, 0.897983"
    assert heading(problem, "Single GPU ").startswith("Single GPU jacobi relaxation: 1000 iterations on 32768 x 16384")


def test_one_variant(comm):
    outcome, lines = job(comm, variant="mpi")
    assert outcome.ranks == comm.size
    if comm.rank > 0:
        assert not lines
        return
    _, norms = relaxed(Problem(nx=40, ny=33), 101)
    assert lines[1:3] == [norm_line(0, norms[0]), norm_line(100, norms[100])]
    assert lines[-2] == f"Num CPUs: {comm.size}."
    assert re.fullmatch(rf"40x33: 1 CPU: .* s, {comm.size} CPUs: .* s, speedup: .*, efficiency: .* ", lines[-1])
    (measured,) = outcome.variants
    assert measured.difference.points == 0
    assert measured.iterations == outcome.single.iterations == 120
    assert outcome.numbers["variants"][0]["efficiency"] == pytest.approx(
        outcome.single.seconds / measured.seconds / comm.size
    )


@pytest.mark.serial
def test_devices_of_one_process_count_in_speed_ups(monkeypatch):
    monkeypatch.setattr("collops.jacobi.parts.available_cores", lambda: frozenset(range(3)))
    outcome, lines = job(alone(), variant="threads_peer")
    (measured,) = outcome.variants
    assert measured.difference.points == 0
    assert lines[-2] == "Num CPUs: 3."
    assert outcome.numbers["variants"][0]["efficiency"] == pytest.approx(outcome.single.seconds / measured.seconds / 3)


def test_without_the_run_on_one_rank(comm):
    outcome, lines = job(comm, variant="mpi_overlap", skip_single_gpu=True, csv=True)
    assert outcome.single is None
    if comm.rank == 0:
        assert len(lines) == 1
        assert lines[0].startswith(f"mpi_overlap, 40, 33, 120, 1, {comm.size}, 1, ")
        assert lines[0].endswith(", 0.000000")


def test_compare_runs_all_and_draws(comm, folder, one_host):
    outcome, lines = job(comm, compare=True, profile=True, niter=5, out=str(folder / "out"))
    assert not lines
    if comm.rank > 0:
        return
    one_process = ONE_PROCESS if comm.size == 1 else []
    ran = [*one_process, "mpi", "mpi_overlap", "shared"]
    assert [measured.name for measured in outcome.variants] == ran
    assert outcome.limit > 0
    assert list(outcome.missing) == [name for name in ONE_PROCESS if name not in ran]
    for one in outcome.numbers["variants"]:
        assert one["profile"]["longer_iterations"] == 5 * one["iterations"] == 25
        assert len(one["profile"]["sweeps_us"]) == comm.size
        assert min(one["profile"]["sweeps_us"]) > 0
        assert one["profile"]["first_call_seconds"] > 0
    names = {path.name for path in outcome.files}
    assert names == {"jacobi.png", *(f"timeline-{name}.png" for name in ran)}
    for path in outcome.files:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_compare_omits_variants_that_need_a_larger_grid(comm, folder, monkeypatch, one_host):
    monkeypatch.setattr("collops.jacobi.job.bar_chart", lambda outcome, path: path)
    outcome, _ = job(comm, compare=True, ny=3, niter=5, out=str(folder / "out"))
    assert list(outcome.missing) == ([] if comm.size == 1 else [*ONE_PROCESS, "shared"])
    if comm.rank == 0:
        assert {"mpi", "mpi_overlap"} <= {measured.name for measured in outcome.variants}


@pytest.mark.parametrize("fast", ["mpi", "mpi_overlap"])
def test_the_default_is_the_fastest_in_a_trial(comm, monkeypatch, fast):
    """Ranks choose alike, also if only one of them is slow. The trial leaves the values alone."""
    of_hosts = {model.variant for model in MODELS.values() if "host" in model.memory}
    for kind in of_hosts - {MODELS[fast].variant}:

        def slow(self, count, norms, _advance=kind.advance):
            time.sleep(0.03 * (self.comm.rank == self.comm.size - 1))
            _advance(self, count, norms)

        monkeypatch.setattr(kind, "advance", slow)
    listener = Listener()
    options = Options(**SMALL, skip_single_gpu=True, csv=True)
    lines: list[str] = []
    outcome = run_job(options, comm, listener, lines.append)
    tried = outcome.numbers["trial_us"]
    assert set(tried) >= {"mpi", "mpi_overlap"}
    assert min(tried, key=tried.get) == fast
    assert comm.allgather_metadata(tried) == [tried] * comm.size
    assert listener.notes[0].startswith(f"variant {fast}: the fastest in a trial")
    if comm.rank == 0:
        assert [measured.name for measured in outcome.variants] == [fast]
        assert lines[0].startswith(f"{fast}, 40, 33, 120, ")


def test_a_variant_without_memory_is_left_out(comm, folder, monkeypatch):
    """Containers often have little memory that processes can share: the trial and the comparison do without."""

    class TooLarge(Messages):
        def prepare(self):
            if self.problem.ny == 33:
                raise shared_error("MemoryError", "/dev/shm has 7 free")
            super().prepare()

    monkeypatch.setattr("collops.jacobi.job.bar_chart", lambda outcome, path: path)
    monkeypatch.setitem(MODELS, "shared", MODELS["shared"]._replace(variant=TooLarge))
    outcome, _ = job(comm, niter=5)
    assert {"mpi", "mpi_overlap"} <= set(outcome.trial)
    assert "shared" not in outcome.trial
    outcome, _ = job(comm, compare=True, niter=5, out=str(folder / "out"))
    assert "/dev/shm has 7 free" in outcome.missing["shared"]
    with pytest.raises(InputError, match=r"variant shared: .*has 7 free") as caught:
        job(comm, variant="shared", niter=5)
    assert caught.value.on_all_ranks


def script(folder, text):
    """A program that does as the samples do, or not."""
    path = folder / "sample"
    path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
    path.chmod(0o755)
    return path


LINE = "nccl, 40, 33, 120, 1, 4, 1, 0.006000, 0.020000"


def test_a_peer_stands_in_the_outcome(comm, folder):
    if comm.rank == 0:
        script(folder, f'echo "$@" > {folder}/arguments; echo Jacobi; echo "{LINE}"; echo bye >&2')
    comm.barrier()
    outcome, lines = job(comm, variant="mpi", skip_single_gpu=True, csv=True, peer=[f"theirs={folder}/sample -fast"])
    if comm.rank > 0:
        return
    asked = " ".join((folder / "arguments").read_text("utf-8").split())
    assert asked == "-fast -nx 40 -ny 33 -niter 120 -nccheck 1 -csv"
    (peer,) = outcome.numbers["peers"]
    assert peer == {"name": "theirs", "devices": 4, "seconds": 0.006, "us_per_iteration": pytest.approx(50.0)}
    assert lines[1] == "theirs, 40, 33, 120, 1, 4, 1, 0.006000, 0.000000"


def test_a_peer_that_fails_ends_the_job_on_all_ranks(comm, folder):
    if comm.rank == 0:
        script(folder, "echo 'no device' >&2; exit 3")
    comm.barrier()
    with pytest.raises(InputError, match=r"--peer theirs: .*sample ended with exit code 3 \(no device\)") as caught:
        job(comm, peer=[f"theirs={folder}/sample"])
    assert caught.value.on_all_ranks


@pytest.mark.serial
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo hello", "did not print a line like NVIDIA's samples"),
        ("echo 'nccl, 40, 33, 500, 1, 4, 1, 0.006000, 0.020000'", "did not print a line"),  # another problem
        ("echo 'nccl, 40, 33, 120, 1, 4, 1, 0.000000, 0.020000'", "did not print a line"),
        ("exec yes", "printed more than 1 MiB"),
        ("exec sleep 60", r"did not end within 0.3 s: choose a smaller -niter"),
        ("exit 1", r"exit code 1 \(it printed nothing\)"),
    ],
)
def test_peers_that_are_no_samples_are_one_sentence(tmp_path, monkeypatch, text, said):
    monkeypatch.setenv("COLLOPS_TIMEOUT", "0.6")
    with pytest.raises(InputError, match=said) as caught:
        run_sample("theirs", [str(script(tmp_path, text))], Problem(nx=40, ny=33, iterations=120))
    assert "\n" not in str(caught.value)


@pytest.mark.serial
def test_the_line_of_the_sample_for_one_device_is_read(tmp_path):
    path = script(tmp_path, "echo 'single_gpu, 40, 33, 120, 1, 0.020000'; cat")
    assert run_sample("one", [str(path)], Problem(nx=40, ny=33, iterations=120)) == Sample("one", 1, 0.02)


@pytest.mark.serial
def test_a_peer_does_not_take_over_the_rank(tmp_path, monkeypatch):
    """A launcher in the user's command would else believe that it is a rank itself."""
    names = "PMI_RANK", "OMPI_COMM_WORLD_RANK", "HYDI_CONTROL_FD"
    for name in names:
        monkeypatch.setenv(name, "7")
    path = script(tmp_path, f"env > {tmp_path}/env; echo '{LINE}'")
    run_sample("theirs", [str(path)], Problem(nx=40, ny=33, iterations=120), ["-nop2p"])
    seen = (tmp_path / "env").read_text("utf-8")
    assert "PATH=" in seen
    assert not [name for name in names if f"{name}=" in seen]


@pytest.mark.serial
def test_without_peer_access(monkeypatch):
    """Models that store into the memory of peers are refused, and NCCL must be told before the ranks connect."""
    from collops.jacobi.command import _begin
    from collops.jacobi.job import _check_without_peer_access, _Job

    comm = SimpleNamespace(size=1, rank=0, device_transport="nccl")
    device = SimpleNamespace(name="cupy", memory="device", mutable=True)
    chosen = _Job(Options(nop2p=True), comm, device, Listener(), print)
    for name in ("peer", "nvshmem", "persistent", "nvshmem_block", "mpi"):
        assert "which --nop2p turns off" in chosen.obstacle(name)
    assert chosen.obstacle("nccl") is None
    monkeypatch.setenv(NO_P2P, "0")
    with pytest.raises(InputError, match="NCCL_P2P_DISABLE=1"):
        _check_without_peer_access(comm, device)
    with pytest.raises(InputError, match="--transport"):
        _check_without_peer_access(SimpleNamespace(device_transport="mpi"), device)
    with pytest.raises(InputError, match="for GPUs"):
        _check_without_peer_access(comm, engine("numpy"))
    _begin(Options())
    with pytest.raises(InputError, match="NCCL_P2P_DISABLE=1"):
        _check_without_peer_access(comm, device)
    _begin(Options(nop2p=True))
    _check_without_peer_access(comm, device)


def test_differences_are_found(comm):
    """All ranks find a single wrong bit on a single rank."""
    problem = Problem(nx=24, ny=4 * comm.size + 2, iterations=3)
    reference = Reference(problem, comm, engine("numpy"))
    for process_grid in process_grids(comm.size):
        variant = make("mpi", problem, comm, engine("numpy"), process_grid)
        run(variant)
        assert reference.difference(variant) == (0, 0.0)
        if comm.rank == comm.size - 1:
            variant.values[-1, 1] = np.nextafter(variant.values[-1, 1], np.float32(9))
        found = reference.difference(variant)
        assert found.points == 1
        assert found.largest > 0


@pytest.mark.serial
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nx": 2}, "--nx"),
        ({"nccheck": 0}, "--nccheck"),
        ({"tolerance": -1.0}, "--tolerance"),
        ({"variant": "fast"}, "--variant"),
        ({"process_grid": "2by2"}, "--process-grid"),
        ({"compare": True, "csv": True}, "-csv"),
        ({"out": ""}, "--out"),
        ({"compare": True, "variant": "mpi"}, "--variant"),
        ({"profile": True, "variant": "single"}, "--profile"),
        ({"peer": ["nccl"]}, "--peer must be NAME=PATH"),
        ({"peer": ["nccl=/nowhere/jacobi"]}, "no program /nowhere/jacobi"),
        ({"peer": ["nccl='./jacobi"]}, "--peer"),
        ({"peer": ["a=true", "a=false"]}, "one name: a, a"),
    ],
)
def test_invalid_options_raise(wrong, said):
    with pytest.raises(InputError, match=said):
        Options(**wrong).check()


def test_impossible_requests_raise_before_anything_runs(comm):
    wrong = (
        *({"process_grid": f"{comm.size + 1}x1"}, {"variant": "peer"}, {"nx": 10**7, "ny": 10**7}),
        {"nop2p": True},
    )
    for options, said in zip(wrong, ("process grid", "cupy", "iB", "for GPUs"), strict=True):
        with pytest.raises(InputError, match=said) as caught:
            job(comm, **options)
        assert caught.value.on_all_ranks


def test_first_rank_sends_messages_during_its_run(comm, monkeypatch):
    """The run may take longer than the deadline of the waits of the other ranks."""
    monkeypatch.setattr("collops.jacobi.measure._PULSE_SECONDS", 0.0)
    with count_messages() as messages:
        Reference(Problem(nx=8, ny=8, iterations=3 * STRETCH - 1, tolerance=0.0), comm, engine("numpy"))
    assert messages["bcast"] == 4


@pytest.mark.serial
def test_the_table_compares_variants_with_one_rank_and_the_memory():
    from collops.jacobi.command import _table

    def measured(name: str, seconds: float, difference: Difference | None = None) -> Measured:
        devices = 1 if name == "single" else 2
        return Measured(
            iterations=10,
            seconds=seconds,
            norms={0: 1.0},
            reached=None,
            name=name,
            devices=devices,
            difference=difference,
        )

    variants = [measured("mpi", 8e-4, Difference(3, 0.5)), measured("shared", 5e-4)]
    peers = [Sample("theirs", 4, 4e-4)]
    outcome = Outcome(Problem(iterations=10), 2, "CPU", measured("single", 1e-3), variants, limit=2e-5, peers=peers)
    rows = list(zip(*(column.cells for column in _table(outcome).columns), strict=True))
    assert rows == [
        ("one CPU", "100", "", "", "40 %", ""),
        ("mpi", "80", "1.25", "62.5 %", "25 %", "3"),
        ("shared", "50", "2.00", "100.0 %", "40 %", ""),
        ("theirs (peer)", "40", "2.50", "62.5 %", "25 %", ""),
    ]
