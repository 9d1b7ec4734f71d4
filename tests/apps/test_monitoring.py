"""Metrics that a reader of Prometheus understands, lines about progress, and structured logs."""

from __future__ import annotations

import json
import re
import shutil
import socket
import urllib.request

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import collops
from collops import profile
from collops.apps import monitoring
from collops.apps.options import CommonOptions
from collops.apps.recipe import Findings, run_job
from collops.errors import InputError
from tests.apps.jobs import Listener


def samples(text: str) -> dict[str, float]:
    """Return the values of all samples without labels, and of messages by operation."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[f"{sample.name} {sample.labels['operation']}" if "operation" in sample.labels else sample.name] = (
                sample.value
            )
    return found


def free_port(comm) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return comm.allgather_metadata(probe.getsockname()[1])[0]


def run(comm, options, look=lambda: None, listener=None):
    """Run a job of 5 iterations; return its outcome and the messages of its solver."""
    sent = []

    def application(job):
        layout = collops.Layout.split((7,), job.comm.size)
        A = collops.Diagonal(job.distribute(layout, np.arange(1.0, 8.0)), comm=job.comm)
        data = job.distribute(layout, np.ones(7))
        with profile.count_messages() as messages:
            solution = job.solve(collops.cg, A, data, writes=56, rtol=0.0)
        sent.append(messages)
        look()
        return Findings("t", solution, "x", "a", {}, [], {}, draw=lambda folder: [])

    return run_job(application, options, comm, listener or Listener(), "collops test"), sent[0]


def test_a_file_holds_the_numbers_of_the_job(comm, folder):
    target = folder / "job.prom"
    options = CommonOptions(out=str(folder / "out"), iterations=5, dtype="float64", metrics=str(target))
    during = []
    outcome, messages = run(comm, options, lambda: comm.rank or during.append(samples(target.read_text())))
    assert all(early["collops_iterations"] == 5 for early in during)  # written while the solver ran
    comm.barrier()
    found = samples(target.read_text())
    assert found["collops_iterations"] == found["collops_iteration_limit"] == 5
    assert found["collops_residual_norm"] == outcome.numbers["residual_final"]
    assert 0 < found["collops_solver_seconds"] <= found["collops_job_seconds"]
    assert found["collops_job_info"] == 1
    if comm.rank == 0:
        # The solver's messages, and a few of the job itself.
        assert all(found[f"collops_messages_total {name}"] >= n > 0 for name, n in messages.counts().items())
        assert found.get("collops_messages_total allreduce", 0) == messages["allreduce"]
        assert found["collops_message_bytes_total"] >= messages.nbytes


def test_a_file_that_is_lost_does_not_end_the_job(comm, folder):
    if comm.rank == 0:
        (folder / "gone").mkdir()
    comm.barrier()
    options = CommonOptions(out=str(folder / "out"), iterations=5, metrics=str(folder / "gone" / "job.prom"))
    listener = Listener()
    outcome, _ = run(comm, options, lambda: comm.rank or shutil.rmtree(folder / "gone"), listener)
    warnings = [warning for warning in listener.warnings if "can no longer be written: No such file" in warning]
    assert len(warnings) == (comm.rank == 0)
    assert outcome.numbers["iterations"] == 5 and not (folder / "gone").exists()


def test_a_port_of_localhost_answers_until_the_job_ends(comm, folder):
    port = free_port(comm)
    texts = []

    def look() -> None:
        if comm.rank == 0:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                texts.append(answer.read().decode())

    run(comm, CommonOptions(out=str(folder / "out"), iterations=5, metrics=str(port)), look)
    if comm.rank == 0:
        assert samples(texts[0])["collops_iterations"] == 5
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=5)


def test_only_this_host_can_ask(comm, folder, monkeypatch):
    addresses = []
    import prometheus_client

    serve = prometheus_client.start_http_server

    def watched(port, **options):
        server, thread = serve(port, **options)
        addresses.append(server.server_address[0])
        return server, thread

    monkeypatch.setattr(prometheus_client, "start_http_server", watched)
    run(comm, CommonOptions(out=str(folder / "out"), metrics=str(free_port(comm))))
    assert addresses == (["127.0.0.1"] if comm.rank == 0 else [])


def test_what_cannot_be_written_is_an_error_before_the_work(comm, folder):
    for target, words in (("0", "a port from 1 to 65535"), ("65536", "a port"), (str(folder / "no/x.prom"), "No such")):
        with pytest.raises(InputError, match=words):
            run(comm, CommonOptions(out=str(folder / "out"), metrics=target))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = comm.allgather_metadata(taken.getsockname()[1])[0]
        with pytest.raises(InputError, match="Address already in use"):
            run(comm, CommonOptions(out=str(folder / "out"), metrics=str(port)))
        comm.barrier()


def test_a_line_a_minute_without_a_terminal(comm, folder, monkeypatch):
    monkeypatch.setattr(monitoring, "_SECONDS_BETWEEN_LINES", 0.0)
    listener = Listener()
    outcome, _ = run(comm, CommonOptions(out=str(folder / "out"), iterations=5, dtype="float64"), listener=listener)
    lines = [
        re.fullmatch(r"CG: iteration (\d) of 5(?:, residual (\S+))?, after \d+ s", note) for note in listener.notes
    ]
    assert [int(line[1]) for line in lines if line] == ([1, 2, 3, 4, 5] if comm.rank == 0 else [])
    # The last residual that the host has read is the one of the iteration before.
    assert all(float(line[2]) > outcome.numbers["residual_final"] for line in lines if line)


@pytest.mark.serial
def test_no_line_in_the_first_minute(comm, folder):
    listener = Listener()
    run(comm, CommonOptions(out=str(folder / "out")), listener=listener)
    assert not any("iteration" in note for note in listener.notes)


@pytest.mark.serial
@pytest.mark.parametrize("ranks", [1, 2])
def test_structured_logs(tmp_path, ranks):
    from tests.cli.commands import SMALL
    from tests.cli.commands import collops as command

    done = command("lsm", *SMALL, "--ranks", ranks, "--log", "json", "--json", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["ranks"] == ranks
    entries = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert "travel times" in [entry["message"] for entry in entries]
    assert all(
        (entry["level"], entry["rank"], entry["host"], entry["command"])
        == ("info", 0, socket.gethostname(), "collops lsm")
        for entry in entries
    )
    done = command("lsm", *SMALL, "--ranks", ranks, "--log", "json", "--out", "out", "--debug", cwd=tmp_path)
    (entry,) = [json.loads(line) for line in done.stderr.splitlines() if "error" in line]
    assert done.returncode == 2 and entry["level"] == "error" and "--overwrite" in entry["message"]
    assert "Traceback" in entry["traceback"]
