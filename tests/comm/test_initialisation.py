"""MPI is initialised where mpi4py was told not to, whatever its settings, and its end is told from its absence."""

from __future__ import annotations

import importlib.util

import pytest

from tests.launch import run_ranks

pytestmark = pytest.mark.serial

SUM = """
import numpy as np
import collops
comm = collops.world()
assert float(collops.full((4,), 2.5).sum()) == 10
forest = collops.StarForest(comm, 1, None, [(comm.rank + 1) % comm.size], [0])
assert forest.bcast(np.array([comm.rank])) == (comm.rank + 1) % comm.size
from mpi4py import MPI
assert not MPI.Is_finalized()
print("sum of", comm.size, flush=True)
"""
FINALISED = """
import atexit
atexit.register(lambda: print("finalised", MPI.Is_finalized(), flush=True))
"""


def result(ranks, program):
    done = run_ranks(ranks, program, {"COLLOPS_TIMEOUT": "20"})
    return done.returncode, sorted(done.stdout.splitlines()), done.stderr


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        "initialize = rc.finalize = False",
        "initialize = False",
        "finalize = False",
        "threads = False",
        "initialize = rc.threads = False",
        "thread_level = 'serialized'; rc.initialize = False",
    ],
)
def test_any_setting_of_mpi4py(ranks, settings):
    assert result(ranks, f"from mpi4py import rc\nrc.{settings}\n{SUM}") == (0, [f"sum of {ranks}"] * ranks, "")


@pytest.mark.parametrize(
    ("settings", "level"),
    [("threads = False", "SINGLE"), ("thread_level = 'serialized'", "SERIALIZED"), ("initialize = False", "MULTIPLE")],
)
def test_the_level_of_threads_is_that_of_mpi4py(settings, level):
    program = f"from mpi4py import rc\nrc.initialize = False\nrc.{settings}\n{SUM}"
    program += f"assert MPI.Query_thread() == MPI.THREAD_{level}\n"
    assert result(1, program) == (0, ["sum of 1"], "")


@pytest.mark.parametrize("finalise", ["", "atexit.register(MPI.Finalize)"])
def test_a_program_that_initialises_mpi_itself_finalises_it(finalise):
    begin = "import atexit\nfrom mpi4py import rc\nrc.initialize = rc.finalize = False\n"
    begin += f"from mpi4py import MPI\nMPI.Init()\n{finalise}\n"
    assert result(2, begin + SUM) == (0, ["sum of 2"] * 2, "")


def test_what_was_initialised_here_is_finalised_after_the_exit_functions_of_programs():
    program = f"from mpi4py import rc\nrc.initialize = False\n{SUM}{FINALISED}"
    assert result(2, program) == (0, ["finalised False"] * 2 + ["sum of 2"] * 2, "")
    program = f"import atexit\nfrom mpi4py import rc\nrc.initialize = False\nfrom mpi4py import MPI\n{FINALISED}{SUM}"
    assert result(2, program) == (0, ["finalised True"] * 2 + ["sum of 2"] * 2, "")


@pytest.mark.parametrize(
    "call",
    [
        "collops.from_mpi4py(MPI.COMM_WORLD)",
        "__import__('collops.compat.pylops_mpi', fromlist=['x']).DistributedArray(global_shape=4).base_comm",
        "__import__('collops.compat.mpi4jax', fromlist=['x']) and collops.world()",
        "__import__('collops.comm.own_device', fromlist=['x']).placement_on_node() and collops.world()",
    ],
)
def test_the_first_call_may_be_any(call):
    if "mpi4jax" in call and importlib.util.find_spec("collops_native") is None:
        pytest.skip("messages of JAX arrays need the native library")
    begin = "from mpi4py import rc\nrc.initialize = rc.finalize = False\nfrom mpi4py import MPI\nimport collops\n"
    assert result(2, f"{begin}{call}\n{SUM}") == (0, ["sum of 2"] * 2, "")


def test_jax_needs_threads():
    if importlib.util.find_spec("collops_native") is None:
        pytest.skip("messages of JAX arrays need the native library")
    program = """
from mpi4py import rc
rc.threads = False
import collops, collops.jax, jax.numpy as jnp
try:
    collops.jax.allreduce(jnp.ones(2))
except collops.errors.TransportError as error:
    print("MPI_THREAD_MULTIPLE" in str(error), "rc.threads" in str(error))
"""
    assert result(2, program) == (0, ["True True"] * 2, "")


def test_the_end_of_mpi_is_told():
    """Before the first call, and after the world has been used."""
    program = """
from mpi4py import MPI
import numpy as np, collops
from collops.errors import CollopsError
if {first}:
    comm = collops.world()
    forest = collops.StarForest(comm, 1, None, [(comm.rank + 1) % comm.size], [0])
    forest.bcast(np.ones(1))
MPI.Finalize()
calls = [lambda: comm.allreduce(np.ones(3)), lambda: forest.bcast(np.ones(1)), lambda: collops.full((4,), 1.0).sum()]
for call in calls if {first} else [collops.world, lambda: collops.from_mpi4py(MPI.COMM_WORLD)]:
    try:
        call()
    except CollopsError as error:
        print("MPI has been finalised" in str(error), flush=True)
"""
    for first, count in ((True, 3), (False, 2)):
        assert result(2, program.replace("{first}", str(first))) == (0, ["True"] * 2 * count, "")
