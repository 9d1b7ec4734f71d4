"""One exchange by memory within hosts and by messages between them, on hosts that MPICH is told to see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch import run_ranks

ROOT = Path(__file__).parents[2]

_TRANSPORTS = f"""
import os, sys
os.chdir({str(ROOT)!r})
sys.path.insert(0, {str(ROOT)!r})
import pytest
chosen = "mixed-neighbours or same_bits and mixed or use_after_free and mixed or order or cannot_have_the_first"
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "tests/exchange/test_transports.py", "-k", chosen]))
"""

_USES = """
import numpy as np
import collops
from collops.array import IndexScatter
from collops.profile import count_messages
from scipy import sparse

comm = collops.world()
assert comm.nodes == {nodes}, comm.nodes
size, layout = 41, collops.Layout.split(41, comm.size)
matrix = sparse.random_array((size, size), density=0.2, random_state=np.random.default_rng(3), format="csr")
mine = layout.slices(comm.rank)[0]
operator = collops.CSRMatrix(matrix[mine], comm=comm)
x = np.random.default_rng(4).standard_normal(size)
given = collops.DistributedArray(layout, comm, x[mine].copy())
for _ in range(3):
    np.testing.assert_allclose(operator.forward(given).gather(), matrix @ x, rtol=1e-13)
    np.testing.assert_allclose(operator.adjoint(given).gather(), matrix.T @ x, rtol=1e-13)
order = np.random.default_rng(5).permutation(size)
moved = IndexScatter(layout, np.arange(size)[mine], layout, order[mine], comm=comm)
want = np.empty(size)
want[order] = x
taken = collops.zeros(layout, comm=comm)
np.testing.assert_array_equal(moved.forward(given, taken).gather(), want)
with count_messages() as counts:
    moved.forward(given, taken)
assert counts["exchange"] == 1, counts
print("used")
"""

_LATE = """
import time
import numpy as np
import collops

comm = collops.world()
count = 2000
ranks = np.full(count, (comm.rank + 1) % comm.size)
forest = collops.StarForest(comm, count, None, ranks, np.arange(count), transport="{transport}")
forest.bcast(np.zeros(count))
try:
    if comm.rank == 0:
        time.sleep(6)
    else:
        forest.bcast(np.zeros(count))
    comm.barrier()
except collops.errors.CommunicationTimeout:
    print("in time")
"""


@pytest.mark.serial
@pytest.mark.parametrize("transport", ["mixed", "mpi"])
def test_a_rank_that_does_not_take_part(transport):
    environment = {"MPIR_CVAR_ODD_EVEN_CLIQUES": "1", "COLLOPS_TIMEOUT": "3"}
    done = run_ranks(3, _LATE.replace("{transport}", transport), environment)
    if "cannot send numpy arrays" in done.stderr:
        pytest.skip("only MPICH pretends to have several hosts")
    assert done.stdout.count("in time") == 3, done.stdout + done.stderr


@pytest.mark.serial
@pytest.mark.parametrize("nodes", [(0, 1, 0, 1), (0, 1, 0)])
def test_on_pretended_hosts(nodes):
    """What uses exchanges, and tests of the transports, in one start of the ranks, which takes longest."""
    program = _USES.replace("{nodes}", str(nodes)) + _TRANSPORTS
    done = run_ranks(len(nodes), program, {"MPIR_CVAR_ODD_EVEN_CLIQUES": "1", "COLLOPS_ALL_CASES": "1"})
    if "AssertionError: (0, 0, 0" in done.stderr:
        pytest.skip("only MPICH pretends to have several hosts")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("used\n") == len(nodes)
    assert "passed" in done.stdout and "skipped" not in done.stdout, done.stdout
