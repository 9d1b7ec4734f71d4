"""What goes wrong between ranks in compiled programs: every rank gets the error, with each rank's call, and soon."""

from __future__ import annotations

import re
import time
from functools import cache

import jax
import pytest

from tests.launch import QUICK_CODE_FLAGS, run_ranks

pytestmark = pytest.mark.serial

SECONDS = 30.0  # for what must be noticed soon, on a machine that does much else at the same time

HEAD = """
import signal, sys, threading, time
import jax
import jax.numpy as jnp
import numpy as np
import collops
import collops.jax as cj
comm = collops.world()
rank, size = comm.rank, comm.size
first = rank == 0
jit = {jit}
"""
WAYS = {"collops.jax.jit": "cj.jit", "jax.jit": "jax.jit", "eager": "lambda function: function"}
# JAX raises errors of compiled functions as its own class, unless collops dispatches the function.
RAISED = {"collops.jax.jit": "{}", "jax.jit": jax.errors.JaxRuntimeError.__name__, "eager": "{}"}


def run(ranks, way, program, **environment):
    return run_ranks(ranks, HEAD.format(jit=WAYS[way]) + program, {"XLA_FLAGS": QUICK_CODE_FLAGS, **environment})


MISMATCHES = """
CALLS = {
    "sizes": lambda x: cj.allreduce(jnp.ones(3 + first)),
    "dtypes": lambda x: cj.allreduce(x.astype("int32") if first else x),
    "dtypes of one width": lambda x: cj.bcast(x.astype("int32") if first else x),
    "reductions": lambda x: cj.allreduce(x, "max" if first else "sum"),
    "kinds": lambda x: (cj.allreduce if first else cj.bcast)(x),
    "roots": lambda x: cj.bcast(x, 1 if first else 0),
    "order": lambda x: (cj.bcast(cj.allreduce(x)) if first else cj.allreduce(cj.bcast(x))),
    "counts": lambda x: cj.allgatherv(x, [3] * (size - 1) + [3 + first]),
    "counts of pairs": lambda x: cj.alltoallv(jnp.ones(size + first), [1] * (size - 1) + [1 + first], [1] * size),
    "blocks": lambda x: cj.scatter(jnp.ones((size, 4)) if first else x),
    "messages": lambda x: cj.send(x, 1) if first else cj.recv(jnp.ones(4), 0) if rank == 1 else cj.barrier(),
    "tags": lambda x: cj.send(x, 1, 1) if first else cj.recv(x, 0, 2) if rank == 1 else cj.barrier(),
    "lines": lambda x: (
        cj.allreduce(x) if first
        else cj.allreduce(x)
    ),
}
for name, call in CALLS.items():
    begin = time.monotonic()
    try:
        jit(call)(jnp.ones(3))
        print(name, "raised nothing", flush=True)
    except Exception as error:
        lines = str(error).splitlines()
        soon = time.monotonic() - begin < 10
        tables = "do not match" in lines[0] and 3 <= len(lines) <= 1 + size
        print(name, type(error).__name__, tables, soon, all(" at <string>:" in line for line in lines[1:]), flush=True)
    total = cj.allreduce(jnp.ones(2)) + comm.allreduce(np.ones(2)) + jit(lambda x: cj.allreduce(x))(jnp.ones(2))
    assert np.array_equal(total, [3 * size, 3 * size])
"""
CASES = ("sizes", "dtypes", "dtypes of one width", "reductions", "kinds", "roots", "order", "counts")
CASES += ("counts of pairs", "blocks", "messages", "tags", "lines")


MIXED = """
cj.barrier()
try:
    comm.allreduce(np.ones(3, "f4") if first else jnp.ones(3, "f4"))
except collops.errors.CallMismatch as error:
    print(len(str(error).splitlines()))
"""


RIGHT = """
jax.config.update("jax_enable_x64", True)
from tests.jax import programs
from tests.jax.cases import CASES
from tests.jax.checks import check_case
for case in CASES:
    if case.name.partition(" ")[2] in ("", "sum", "and recv"):  # of reductions one operation
        check_case(comm, case)
programs.check_programs(comm, [1, 2], jax.jit, calls=2)
# Programs that JAX runs later, while the ranks make other calls, keep their place among them.
heavy = jax.jit(lambda x: cj.allreduce((x @ x @ x)[0, 0]) + x)
for _ in range(5):
    y = heavy(jnp.ones((400, 400)))
    comm.allreduce(1.0)
    cj.barrier()
y = collops.cgls(collops.VStack([jnp.eye(3)]), collops.ones(3 * size, engine="jax"), niter=3)
print("DONE", flush=True)
"""


WILD = """
other = (rank + 1) % size
exchange = jit(lambda x: cj.sendrecv(x, x, source=other, dest=other, sendtag=5, recvtag=None))
print(float(exchange(jnp.full(3, rank + 1.0))[0]) == other + 1, flush=True)
try:
    jit(lambda x: cj.recv(x, None))(jnp.ones(3))
except collops.errors.InputError as error:
    print("name the source" in str(error), flush=True)
print(float(cj.allreduce(jnp.ones(()))) == size, flush=True)
"""

# The programs of each number of ranks, which one start runs; those of several ways once for each.
CHECKED = {
    2: {
        "mismatches": (MISMATCHES, ["jax.jit", "eager"]),
        "any tag": (WILD, ["collops.jax.jit", "eager"]),
        "right": (RIGHT, ["eager"]),
    },
    3: {"mismatches": (MISMATCHES, ["collops.jax.jit"]), "engines": (MIXED, ["eager"])},
}


@cache
def checked(ranks):
    """Return what checked programs print on all ranks, by name and way, in one start for all of them."""
    sections = {(name, way): program for name, (program, ways) in CHECKED[ranks].items() for way in ways}
    text = "".join(
        f"print({name!r}, {way!r}, sep=' by ', flush=True)\njit = {WAYS[way]}\n{program}"
        for (name, way), program in sections.items()
    )
    result = run(ranks, "eager", text, COLLOPS_CHECK="1", COLLOPS_TIMEOUT="20")
    assert (result.returncode, result.stderr) == (0, "")
    printed = {section: [] for section in sections}
    for line in result.stdout.splitlines():
        if tuple(line.split(" by ")) in printed:
            section = tuple(line.split(" by "))
        else:
            printed[section].append(line)
    return printed


@pytest.mark.parametrize(("ranks", "way"), [(2, "jax.jit"), (2, "eager"), (3, "collops.jax.jit")])
def test_calls_that_do_not_match(ranks, way):
    """No data have moved, and the ranks continue."""
    kind = RAISED[way].format("CallMismatch")
    assert sorted(checked(ranks)["mismatches", way]) == sorted(
        [f"{name} {kind} True True True" for name in CASES] * ranks
    )


def test_a_call_of_numpy_and_one_of_jax():
    """They use different transports."""
    assert checked(3)["engines", "eager"] == ["3"] * 3


def test_right_programs_are_let_through():
    assert checked(2)["right", "eager"] == ["DONE"] * 2


@pytest.mark.parametrize("way", ["collops.jax.jit", "eager"])
def test_a_receive_of_any_tag_is_checked_and_one_from_any_rank_refused(way):
    """A sender cannot know that it is meant by a receive from any rank, so that there is nothing to agree on."""
    assert checked(2)["any tag", way] == ["True"] * 6


LATE = """
@jit
def total(x):
    return cj.allreduce(x)
total(jnp.ones(3))
for _ in range(2):
    begin = time.monotonic()
    try:
        if rank < size - 1:
            jax.block_until_ready(total(jnp.ones(3)))
        else:
            comm.barrier()
    except Exception as error:
        at_once = time.monotonic() - begin < 1
        print(f"{rank} {type(error).__name__} {at_once}\\n{error}", flush=True)
"""


@pytest.mark.parametrize(("ranks", "way"), [(2, "jax.jit"), (2, "eager"), (3, "collops.jax.jit")])
def test_a_deadline(ranks, way):
    """The error has every rank's line, and the next call raises it at once, of whatever kind it is."""
    result = run(ranks, way, LATE, COLLOPS_TIMEOUT="2")
    assert result.returncode == 0, result.stderr
    line = 1 + (HEAD + LATE).splitlines().index("    return cj.allreduce(x)")
    barrier = 1 + (HEAD + LATE).splitlines().index("            comm.barrier()")
    table = [
        f"  rank{'' if ranks == 2 else 's'} {'0' if ranks == 2 else '0-1'}: allreduce at <string>:{line} (allreduce)",
        f"  rank {ranks - 1}: barrier at <string>:{barrier} (Communicator.barrier)",
    ]
    kind = RAISED[way].format("CommunicationTimeout")
    for rank in range(ranks - 1):
        for at_once in (False, True):
            assert f"{rank} {kind} {at_once}\n" in result.stdout
    assert f"{ranks - 1} CommunicationTimeout False\n" in result.stdout
    assert f"{ranks - 1} CommunicationError True\n" in result.stdout
    assert "the deadline is 2 s (COLLOPS_TIMEOUT)" in result.stdout
    assert result.stdout.count("\n".join(table)) == 2 * ranks - 1, result.stdout


LATER = """
lonely = cj.jit(lambda x: x @ x + cj.recv(x[0], size - 1, 9))
if first:
    lonely(jnp.ones((1500, 1500)))
    try:
        y = lonely(jnp.ones((1500, 1500)))
        print("started")
        jax.block_until_ready(y)
    except jax.errors.JaxRuntimeError as error:
        print("receive 1500 float32 from rank 1, tag 9 at <string>:" in str(error), "2 ranks aborted:" in str(error))
    for call in (lambda: cj.allreduce(jnp.ones(1)), lambda: comm.allreduce(1.0)):
        try:
            call()
        except collops.errors.CommunicationError as error:
            print(type(error).__name__, "CommunicationTimeout" in repr(error), flush=True)
else:
    cj.send(jnp.ones(1500), 0, 9)
    try:
        comm.barrier()
    except collops.errors.CommunicationTimeout as error:
        print("barrier", flush=True)
"""


def test_a_deadline_in_a_program_that_runs_later():
    """JAX raises it with the results; the next call of the communicator raises the error of this library."""
    result = run(2, "collops.jax.jit", LATER, COLLOPS_TIMEOUT="3")
    assert result.returncode == 0, result.stderr
    lines = sorted(result.stdout.splitlines())
    assert lines == sorted(["started", "True True", "CommunicationTimeout True", "CommunicationError True", "barrier"])


CLOSED = """
total = cj.jit(lambda x: cj.allreduce(x))
total(jnp.ones(1))
for call in (lambda: comm.allreduce(1.0) if first else comm.recv(np.ones(2), 0)), lambda: total(jnp.ones(1)):
    try:
        call()
    except collops.errors.CommunicationError as error:
        print(type(error).__name__, "the deadline is 2 s" in str(error) or "aborted its wait" in str(error), flush=True)
"""


def test_compiled_calls_after_a_deadline_elsewhere():
    result = run(2, "collops.jax.jit", CLOSED, COLLOPS_TIMEOUT="2")
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["CommunicationError True"] * 2 + ["CommunicationTimeout True"] * 2


ENDS = """
total = jit(lambda x: cj.allreduce(x))
for turn in range(200):
    total(jnp.ones(1))
if rank == size - 1:
    print(time.time(), flush=True)
    {end}
for turn in range(200):
    jax.block_until_ready(total(jnp.ones(1)))
"""


EXIT, RAISE = "sys.exit(0)", "raise KeyError('mine alone')"  # which ends the processes of waiting ranks from outside


@pytest.mark.parametrize(
    ("ranks", "way", "end"),
    [(2, "collops.jax.jit", EXIT), (2, "jax.jit", EXIT), (3, "eager", EXIT), (2, "collops.jax.jit", RAISE)],
)
def test_a_rank_that_ends_is_noticed(ranks, way, end):
    result = run(ranks, way, ENDS.format(end=end), COLLOPS_TIMEOUT="none")
    ended = time.time()
    assert result.returncode != 0
    assert ended - float(result.stdout) < SECONDS
    if end == EXIT:
        # The rank whose report is printed whole may be the one that noticed, or one that heard of it from that rank.
        assert f"; rank {ranks - 1} of {ranks} ended:\n" in result.stderr
        assert f"rank {ranks - 1}: the end of the program" in result.stderr
    else:
        assert f"rank {ranks - 1} of {ranks} ends all ranks, because of its KeyError above" in result.stderr


DONE = """
part = cj.jit(lambda x: cj.bcast(x, 0))
part(jnp.ones(2))
heavy = jax.jit(lambda x: cj.bcast((x @ x)[0], 0))
if rank == 2:
    time.sleep(5)
y = heavy(jnp.eye(300))  # rank 0 needs nobody for this, and ends
if not first:
    assert y[0] == 1
print("DONE", flush=True)
"""


def test_a_rank_that_has_done_its_part_may_end_before_others_begin_theirs():
    result = run(3, "jax.jit", DONE, COLLOPS_TIMEOUT="60")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "DONE\n" * 3


INTERRUPTED = """
total = cj.jit(lambda x: cj.allreduce(x))
total(jnp.ones(1))
if first:
    threading.Timer(1.0, signal.raise_signal, [signal.SIGINT]).start()
    try:
        jax.block_until_ready(total(jnp.ones(1)))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    try:
        total(jnp.ones(1))
    except collops.errors.CommunicationError:
        print("closed", flush=True)
"""


def test_an_interrupt_ends_a_wait():
    result = run(2, "collops.jax.jit", INTERRUPTED, COLLOPS_TIMEOUT="60")
    assert (result.returncode, result.stdout) == (0, "interrupted\nclosed\n"), result.stderr


DEVICES = """
from jax.sharding import Mesh, PartitionSpec as P
device = jax.lax.axis_index

def group(number):
    # One for each failure, since a communicator that gave up stays closed.
    return cj.clique(comm=comm.split(number))

def over(joined, function):
    mesh = Mesh(np.array(joined.devices), "d")
    return cj.jit(jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))

def raised(name, call, of=jax.errors.JaxRuntimeError):
    begin = time.monotonic()
    try:
        jax.block_until_ready(call(jnp.ones((2, 3))))
        print(name, "raised nothing", flush=True)
    except of as error:
        print(f"{name}: {type(error).__name__} {time.monotonic() - begin < 15} {error}", flush=True)
"""

DEVICES_DISAGREE = """
from jax import lax
def total(joined):
    return lambda x: cj.allreduce(x, comm=joined)
late, different, other = map(group, range(3))
raised("late", over(late, lambda x: lax.cond(first & (device("d") == 0), lambda x: x, total(late), x)))
less = lambda x: x + total(different)(x[0, :2])[0]
raised("different", over(different, lambda x: lax.cond(first & (device("d") == 0), less, total(different), x)))
raised("closed", lambda x: different.comm.allreduce(1.0), collops.errors.CommunicationError)
np.testing.assert_array_equal(over(other, total(other))(jnp.ones((2, 3))), np.full((2, 3), 4.0))
"""


def run_devices(program, **environment):
    """Run a program on two ranks with two devices each."""
    flags = f"--xla_force_host_platform_device_count=2 {QUICK_CODE_FLAGS}"
    return run_ranks(2, HEAD.format(jit="cj.jit") + DEVICES + program, {"XLA_FLAGS": flags, **environment})


def test_devices_of_a_rank_that_disagree():
    """Every rank gets the error; a device that never comes ends by the deadline, and the table says how many came."""
    result = run_devices(DEVICES_DISAGREE, COLLOPS_TIMEOUT="2")
    assert result.returncode == 0, result.stderr
    out = result.stdout
    # JAX 0.7 has another name for its error, and puts a phrase before the message.
    for name, error in (("late", "CommunicationTimeout"), ("different", "CommunicationError")):
        raised = rf"{name}: (?:Jax|Xla)RuntimeError True INTERNAL: (?:[\w ]+: )?collops.{error}: allreduce at"
        assert len(re.findall(raised, out)) == 2, out
    assert out.count("closed: CommunicationError True this communicator can no longer be used") == 2, out
    line = 1 + (HEAD + DEVICES + DEVICES_DISAGREE).splitlines().index(
        "    return lambda x: cj.allreduce(x, comm=joined)"
    )
    table = f"  rank 0: allreduce at <string>:{line} (allreduce), 1 of 2 devices of this rank\n"
    table += f"  rank 1: allreduce at <string>:{line} (allreduce)\n"
    assert out.count(table) == 2, out
    assert "rank 0 cannot continue because device " in out
    assert "of 3 elements of 4 bytes" in out and "of 2 elements of 4 bytes" in out


DEVICES_CHECKED = """
from tests.jax.cases import ON_DEVICES
from tests.jax.checks import check_on_devices, on_devices
jax.config.update("jax_enable_x64", True)
joined, own = group(0), cj.clique()
for case in ON_DEVICES:
    check_on_devices(comm, joined, case)
x = jnp.ones((2, 3))
mixed = over(joined, lambda x: cj.allreduce(x, comm=joined) + cj.allreduce(x, comm=own))
for _ in range(3):  # programs of the group, of its ranks and calls of NumPy in turn
    np.testing.assert_array_equal(mixed(x), np.full((2, 3), 6.0))
    np.testing.assert_array_equal(cj.allreduce(jnp.ones(2), comm=joined.comm), [2, 2])
    assert joined.comm.allreduce(1.0) == 2
mismatch = collops.errors.CallMismatch
raised("dtypes", over(joined, lambda x: cj.allreduce(x.astype("int32" if first else x.dtype), comm=joined)), mismatch)
raised("kinds", over(joined, lambda x: (cj.bcast if first else cj.allreduce)(x, comm=joined)), mismatch)
raised("blocks", over(joined, lambda x: cj.alltoall(jnp.ones((4, 2 + first)), comm=joined)[None, 0]), mismatch)
def whole(x):
    return cj.allreduce(x[:1], comm=joined.comm)
def parts(x):
    return over(joined, lambda x: cj.allreduce(x, comm=joined))(x)
raised("groups", whole if first else parts, mismatch)
raised("eager", on_devices(joined, lambda x: cj.allreduce(x[:2] if first else x, comm=joined)), mismatch)
np.testing.assert_array_equal(mixed(x), np.full((2, 3), 6.0))
"""


def test_calls_of_devices_are_checked():
    """Right programs are let through; mismatches move no data, and the ranks continue."""
    result = run_devices(DEVICES_CHECKED, COLLOPS_CHECK="calls", COLLOPS_TIMEOUT="20")
    assert result.returncode == 0, result.stderr
    text = "CallMismatch True the ranks' calls do not match (COLLOPS_CHECK):\n"
    for name in ("dtypes", "kinds", "blocks", "groups", "eager"):
        assert result.stdout.count(f"{name}: {text}") == 2, result.stdout
    assert result.stdout.count("between 4 devices by JAX at <string>:") == 2 * (2 + 2 + 2 + 1 + 2), result.stdout


DEVICES_END = """
joined = cj.clique(comm=comm)
total = over(joined, lambda x: cj.allreduce(x, comm=joined))
for turn in range(20):
    np.testing.assert_array_equal(total(jnp.full((2, 3), turn)), np.full((2, 3), 4 * turn))
if rank == 1:
    print(time.time(), flush=True)
    sys.exit(0)
jax.block_until_ready(total(jnp.ones((2, 3))))
"""


def test_a_rank_of_several_devices_that_ends_is_noticed():
    result = run_devices(DEVICES_END, COLLOPS_TIMEOUT="none")
    ended = time.time()
    assert result.returncode != 0
    assert ended - float(result.stdout) < SECONDS
    assert "rank 1 of 2 ended:\n" in result.stderr
    assert "rank 1: the end of the program" in result.stderr
