"""COLLOPS_PROFILE, and what it does at exit."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from collops.errors import InputError
from collops.profile.settings import Settings
from tests.launch import run_ranks

PROGRAM = """
import collops
from collops import profile
comm = collops.world()
with profile.mark("solve"):
    pass
if FAIL:
    raise RuntimeError("on purpose")
"""


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", Settings()),
        ("0", Settings()),
        ("1", Settings(show=True)),
        ("nvtx", Settings(nvtx=True)),
        (" 1, trace=a b.json ,json=c=d", Settings(show=True, trace="a b.json", json="c=d")),
    ],
)
def test_parse(text, settings):
    assert Settings.parse(text) == settings


@pytest.mark.parametrize("text", ["yes", "1;2", "trace", "trace=", "nvtx=1"])
def test_unknown_words(text):
    with pytest.raises(InputError, match="COLLOPS_PROFILE"):
        Settings.parse(text)


def run(program, setting):
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "COLLOPS_PROFILE": setting},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.serial
def test_report_and_files_at_exit(tmp_path):
    done = run(PROGRAM.replace("FAIL", "False"), f"1,json={tmp_path}/p.json,trace={tmp_path}/t.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("solve")
    assert json.loads((tmp_path / "p.json").read_text())["marks"][0]["path"] == ["solve"]
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


@pytest.mark.serial
def test_an_unknown_word_is_reported_by_the_first_world_or_at_exit():
    done = run("import collops\ntry:\n    collops.world()\nexcept collops.errors.InputError as e:\n    print(e)", "yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("COLLOPS_PROFILE=yes: unknown word 'yes'")
    done = run("from collops import profile\nassert not profile.enabled()", "yes")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("collops: nothing was recorded: COLLOPS_PROFILE=yes")


@pytest.mark.serial
def test_off_is_silent():
    done = run(PROGRAM.replace("FAIL", "False") + "assert not profile.enabled()", "0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.serial
def test_a_process_without_marks_or_ranks_leaves_the_files_alone(tmp_path):
    done = run("import collops", f"1,json={tmp_path}/p.json,trace={tmp_path}/t.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.iterdir())


@pytest.mark.serial
def test_a_failing_program_reports_its_recording(tmp_path):
    done = run(PROGRAM.replace("FAIL", "True"), f"1,json={tmp_path}/p.json")
    assert done.returncode == 1
    assert "on purpose" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("solve")
    assert not (tmp_path / "p.json").exists()


@pytest.mark.serial
def test_a_file_that_cannot_be_written_is_said(tmp_path):
    done = run(PROGRAM.replace("FAIL", "False"), f"trace={tmp_path}/missing/t.json")
    assert "the profile is incomplete: cannot write" in done.stderr


@pytest.mark.serial
def test_one_report_for_all_ranks(tmp_path):
    done = run_ranks(2, PROGRAM.replace("FAIL", "False"), {"COLLOPS_PROFILE": f"1,json={tmp_path}/p.json"}, seconds=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("solve") == 1
    assert "ranks: 2" in done.stderr
    assert json.loads((tmp_path / "p.json").read_text())["ranks"] == 2
