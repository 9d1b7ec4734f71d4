"""Standard streams that are closed, or whose reader has gone, with and without ranks, and libraries without streams."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.commands import environment
from tests.cli.test_output import COMMAND, closed_pipe

pytestmark = pytest.mark.serial

SOLVE = ["solve", "--points", "60", "--out", "out", "--overwrite"]
# Each stream alone, those with output, and all; on two ranks a launcher has them too.
CLOSED = [(("<",), 2), ((">",), 1), (("2>",), 1), ((">", "2>"), 2), (("<", ">", "2>"), 2)]


def without(closed: tuple[str, ...], arguments: list[str], cwd, **variables: str) -> tuple[int, str]:
    """Run a command from a shell with some of its streams closed; return its exit code and what the others got."""
    shell = ["sh", "-c", " ".join(['exec "$@"', *(f"{each}&-" for each in closed)]), "sh", *arguments]
    done = subprocess.run(
        shell, cwd=cwd, env=environment() | variables, capture_output=True, text=True, timeout=200, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("closed", "ranks"), CLOSED)
def test_a_job_without_some_of_its_streams_writes_its_results(tmp_path, ranks, closed):
    code, said = without(closed, [*COMMAND, *SOLVE, "--ranks", str(ranks)], tmp_path)
    assert code == 0, said
    assert "Traceback" not in said and (("wrote" in said) == (">" not in closed)), said
    results = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(results) > 5
    assert not any(b"wrote " in path.read_bytes() or b"collops solve" in path.read_bytes()[:100] for path in results)


@pytest.mark.parametrize(("closed", "ranks"), [((">",), 2), (("2>",), 2), ((">", "2>"), 1)])
def test_errors_have_their_exit_code_without_streams(tmp_path, closed, ranks):
    code, said = without(closed, [*COMMAND, "solve", "--matrix", "none.mtx", "--ranks", str(ranks)], tmp_path)
    assert code == 2
    assert ("none.mtx" in said) == ("2>" not in closed)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_job_on_ranks_whose_reader_has_gone_ends(tmp_path, stream):
    writer = closed_pipe()
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | {stream: writer}
    done = subprocess.run(
        [*COMMAND, *SOLVE, "--ranks", "2"], cwd=tmp_path, env=environment(), timeout=200, check=False, **streams
    )
    os.close(writer)
    assert done.returncode >= 0
    assert (tmp_path / "out" / "result.zarr").is_dir()


PROGRAM = """
import sys, numpy as np
assert (sys.stdout is None) == ("1" in sys.argv[1]) and (sys.stderr is None) == ("2" in sys.argv[1])
import collops
from collops.compat import pylops_mpi
kept = open("kept", "w")  # gets the number of a closed stream
op, y = collops.FirstDerivative(20), collops.ones(20)
for progress in (None, True, False):
    collops.cgls(op, y, niter=3, tol=0, progress=progress)
data = pylops_mpi.DistributedArray.to_dist(np.ones(20))
slope = pylops_mpi.MPIFirstDerivative(20, dtype=float)
pylops_mpi.cgls(slope, data, data.zeros_like(), niter=3, tol=0, show=True)
pylops_mpi.utils.dottest(slope, data, data, verb=True)
kept.close()
assert open("kept").read() == ""
"""


@pytest.mark.parametrize(
    ("closed", "profile"), [((">",), "1"), (("2>",), "1"), (("2>",), "nonsense"), ((">", "2>"), "")]
)
def test_programs_without_streams_solve(tmp_path, closed, profile):
    numbers = "".join("2" if each == "2>" else "1" for each in closed)
    variables = {"COLLOPS_PROFILE": profile} if profile else {}
    if "2>" in closed and without(closed, [sys.executable, "-c", "import scipy.linalg"], tmp_path)[0]:
        pytest.skip("this SciPy imports numpy.f2py, which needs a standard error")
    code, said = without(closed, [sys.executable, "-c", PROGRAM, numbers], tmp_path, **variables)
    assert code == (1 if profile == "nonsense" else 0), said
    assert "AttributeError" not in said and "BrokenPipe" not in said
