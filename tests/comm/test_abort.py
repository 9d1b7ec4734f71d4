"""A rank that ends all others is heard: it ends only when its launcher has read what it wrote, or reads no more."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest

pytestmark = pytest.mark.serial

PROGRAM = """
import os, sys
from types import SimpleNamespace
from collops.comm.ending import abort
world = SimpleNamespace(Abort=os._exit)
sys.stdout.write("a result")
abort(world, 7, "the reason")
"""


def aborting(program: str = PROGRAM) -> subprocess.Popen[bytes]:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, "-c", program], env=buffered, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_it_waits_for_a_launcher_that_reads_late():
    with aborting(PROGRAM.replace("world =", "abort.__globals__['_LONGEST_SECONDS'] = 60\nworld =")) as rank:
        select.select([rank.stderr], [], [], 60)
        with pytest.raises(subprocess.TimeoutExpired):
            rank.wait(0.5)
        assert rank.stderr.read1(100) == b"the reason\n"
        with pytest.raises(subprocess.TimeoutExpired):
            rank.wait(0.5)
        assert rank.stdout.read1(100) == b"a result"
        assert rank.wait(60) == 7


def test_it_does_not_wait_for_ever():
    with aborting() as rank:
        assert rank.wait(60) == 7
        assert (rank.stderr.read(), rank.stdout.read()) == (b"the reason\n", b"a result")


@pytest.mark.parametrize(
    ("loss", "heard"),
    [
        ("os.close(2)", b""),
        ("sys.stderr = None", b""),
        ("os.close(1)", b"the reason\n"),
        ("sys.stdout = None", b"the reason\n"),
    ],
)
def test_it_ends_where_an_output_is_gone(loss, heard):
    with aborting(PROGRAM.replace("abort(w", f"{loss}\nabort(w")) as rank:
        assert rank.stderr.read() == heard
        assert rank.wait(60) == 7
