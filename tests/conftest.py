"""One suite for any number of ranks: every rank runs the same tests in the same order.

``python -m pytest`` runs it on one rank, ``mpiexec -n N python -m pytest`` on N. Rank 0 shows the progress, and every
rank its own failures.
"""

from __future__ import annotations

import gc
import importlib.util
import io
import os
import signal
import sys
import tempfile
import time
import zlib

# Before anything loads a numerical library: several ranks share this machine's cores, and a wait that never ends should
# end before the test's own limit does.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "2")
# A thread of Numba that has nothing to do spins by default, on a core that another rank or another test needs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("COLLOPS_TIMEOUT", "120")
os.environ.setdefault("MPLBACKEND", "Agg")
# Tests start hundreds of processes: each would compile the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A shell that starts the tests in the background makes them ignore Ctrl-C, and the processes that they start as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import pytest

import collops
from collops.array import kernels
from collops.comm.ending import abort
from collops.comm.mpi import mpi_or_tcp
from collops.errors import CommunicationTimeout

# All ranks must draw the same examples, none may stop early for being slow or read what another rank wrote.
hypothesis.settings.register_profile("ranks", derandomize=True, deadline=None, database=None, max_examples=25)
hypothesis.settings.load_profile("ranks")

if importlib.util.find_spec("jax") and "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    import jax

    # Four CPU devices in all, on one, two or four ranks; it must be set before any test module uses JAX.
    jax.config.update("jax_num_cpu_devices", {1: 4, 2: 2}.get(collops.world().size, 1))

# Compiling takes minutes where more ranks than cores do it; there only the primitives themselves are compiled.
MAX_RANKS_WITH_JAX = int(os.environ.get("COLLOPS_JAX_RANKS", max(2, os.cpu_count() or 1)))
MAX_CASES_ON_ALL_RANKS = 2
JAX_ON_ALL_RANKS = ("tests/jax/test_primitives.py::test_primitive[",)
if collops.world().size == 4:  # a device each
    JAX_ON_ALL_RANKS += ("tests/jax/test_devices.py::",)

# Solvers send sums only, and steps of applications send nothing that depends on the number of ranks. They take longest
# where more ranks than cores do them; what divides its ranks into groups runs on four ranks, and not on three.
IN_FULL = ("tests/bench/", "tests/soak/")  # on up to two ranks; they run what other tests run on any number
ONLY_TO_TWO_RANKS = (*IN_FULL, "tests/solvers/test_proximal_methods.py", "tests/solvers/test_true_residuals.py")
COMPILED_SOLVERS = ("tests/solvers/test_jax",)
# Rooms whose tests with one or two cases two numbers of ranks share.
TAKEN_IN_TURN = {
    (2, 3): ("tests/seismic/", "tests/solvers/"),
    (3, 4): ("tests/array/", "tests/compat/", "tests/exchange/", "tests/operators/", "tests/preconditioners/"),
}
SHARED = (
    *("tests/array/", "tests/compat/", "tests/jax/", "tests/operators/", "tests/preconditioners/"),
    *("tests/seismic/", "tests/solvers/"),
)
# Above the core one rank differs from two in its messages alone, which the rooms of the core test.
ABOVE_THE_CORE = ("tests/bench/", "tests/jax/", "tests/seismic/")
ONLY_TO_THREE_RANKS = (
    "tests/apps/test_outputs.py",
    "tests/comm/test_reclaim.py",
    "tests/compat/test_side_by_side.py",
    "tests/seismic/",
    "tests/solvers/",
    "tests/uncertainty/test_posterior.py",
)
NOT_ON_THREE_RANKS = (
    "tests/seismic/test_kirchhoff_split.py",
    "tests/seismic/test_lsm_job.py",
    "tests/solvers/test_checkpoint.py",
    "tests/solvers/test_counts.py",
)


class Agreement:
    """Keeps the ranks together: where only some of them fail, the session ends on all of them.

    After that the ranks no longer agree on which message comes next, and every later test would fail for this reason
    alone, each after a full deadline.
    """

    def __init__(self, control) -> None:
        self.control = control.Dup()  # its own, so that messages left behind by a failed test cannot be taken for its
        self.outcome = ""

    def tell(self, what: str, text: str) -> None:
        """Write to the terminal from a rank that has no report of its own there."""
        if self.control.rank:
            sys.__stderr__.write(f"\n=== rank {self.control.rank}: {what}\n{text}\n")
            sys.__stderr__.flush()

    def gathered(self, value):
        """Return every rank's value; ranks that wait leave their core to those that work, as MPI's waits would not."""
        everyone = self.control.Ibarrier()
        while not everyone.Test():
            time.sleep(2e-4)
        return self.control.allgather(value)

    @pytest.hookimpl
    def pytest_internalerror(self, excrepr) -> None:
        abort(mpi_or_tcp(), 3, f"=== rank {self.control.rank}: pytest itself failed\n{excrepr}")

    @pytest.hookimpl
    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.tell(f"cannot collect {report.nodeid}", report.longreprtext)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session) -> None:
        found = self.gathered([item.nodeid for item in session.items])
        if any(nodes != found[0] for nodes in found):
            pytest.exit("the ranks found different tests", returncode=1)

    @pytest.hookimpl
    def pytest_exception_interact(self, call) -> None:
        if call.excinfo is not None and call.excinfo.errisinstance(CommunicationTimeout):
            self.outcome = "waited in vain"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.outcome = self.outcome or "failed"
            self.tell(f"{report.nodeid} ({report.when})", report.longreprtext)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        self.outcome = ""
        result = yield
        outcomes = self.gathered(self.outcome)
        if any(outcome != outcomes[0] for outcome in outcomes):
            ranks = ", ".join(f"{rank} {outcome or 'passed'}" for rank, outcome in enumerate(outcomes))
            item.session.shouldfail = f"the ranks lost step in {item.nodeid} (rank {ranks})"
        return result


@pytest.hookimpl(trylast=True)  # after pytest has made its terminal reporter
def pytest_configure(config) -> None:
    world = collops.world()
    if world.size == 1:
        return
    # pytest tidies up behind earlier sessions; ranks that do so in one folder trip over each other.
    own = tempfile.TemporaryDirectory(prefix=f"collops-tests-{world.rank}-")
    os.environ["PYTEST_DEBUG_TEMPROOT"] = own.name
    config.add_cleanup(own.cleanup)
    config.pluginmanager.register(Agreement(world.control), "collops-agreement")
    if world.rank > 0:
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(pytest.TerminalReporter(config, io.StringIO()), "terminalreporter")


def _taken_in_turn(name: str, alike: list, size: int) -> bool:
    """Return whether this number of ranks leaves a test with few cases to another number."""
    fixed = (*NOT_ON_THREE_RANKS, *ONLY_TO_TWO_RANKS, "tests/compat/test_side_by_side.py")
    if size == 1:
        return name.startswith(ABOVE_THE_CORE) and not _taken_in_turn(name, alike, 2)
    rooms = [room for pair, shared in TAKEN_IN_TURN.items() if size in pair for room in shared]
    if not name.startswith(tuple(rooms)) or name.startswith(fixed):
        return False
    return zlib.crc32(name.encode()) % 2 != size % 2 and not any("jax" in item.nodeid for item in alike)


def _thirds(name: str, size: int) -> tuple[int, ...]:
    """Return which third or thirds of the cases of a test, or of a file of compiled solvers, a number of ranks runs."""
    if size > 1:
        return (size % 3,)
    if name.startswith((*COMPILED_SOLVERS, *ONLY_TO_TWO_RANKS, "tests/jax/")):
        return (0, 1)
    return (1,) if name.startswith(ONLY_TO_THREE_RANKS) and not name.startswith(NOT_ON_THREE_RANKS) else (0,)


def pytest_collection_modifyitems(config, items) -> None:
    size = collops.world().size
    if size == 1 and "COLLOPS_SHARED_CASES" not in os.environ:
        return
    files = ONLY_TO_TWO_RANKS if size > 2 else ()
    files += ONLY_TO_THREE_RANKS if size > 3 else NOT_ON_THREE_RANKS if size == 3 else ()
    on_four_ranks = NOT_ON_THREE_RANKS if size > 3 else ()
    serial = {item for item in items if item.get_closest_marker("serial")}
    left_out = {
        item
        for item in items
        if size > 1
        and (item in serial or (item.nodeid.startswith(files) and not item.nodeid.startswith(on_four_ranks)))
    }
    if "COLLOPS_ALL_CASES" not in os.environ:
        # Of a test with more than two cases 2, 3 and 4 ranks run a third each, and so they do of each file of compiled
        # solvers, which each rank compiles for itself. Of tests with one or two cases, 2 ranks run one half and 3 ranks
        # the other, or so do 3 and 4 ranks (`TAKEN_IN_TURN`). One rank runs all, or in some rooms, if
        # COLLOPS_SHARED_CASES says that 2 ranks run as well, a third, or what else no other number runs.
        cases: dict[str, list] = {}
        for item in items:
            if item not in serial and (size > 1 or item.nodeid.startswith((*SHARED, *ABOVE_THE_CORE))):
                by_file = size < 3 and item.nodeid.startswith(COMPILED_SOLVERS)
                cases.setdefault(item.nodeid.partition("::" if by_file else "[")[0], []).append(item)
        for name, alike in cases.items():
            if len(alike) <= MAX_CASES_ON_ALL_RANKS and _taken_in_turn(name, alike, size):
                left_out.update(alike)
            if len(alike) > MAX_CASES_ON_ALL_RANKS and not name.startswith(IN_FULL):
                thirds = _thirds(name, size)
                left_out.update(case for number, case in enumerate(alike) if number % 3 not in thirds)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))
    if size > MAX_RANKS_WITH_JAX:
        reason = f"each of {size} ranks compiles for itself: on fewer cores with COLLOPS_JAX_RANKS set"
        for item in items:
            if "jax" in item.nodeid and not item.nodeid.startswith(JAX_ON_ALL_RANKS):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave modules and collected tests out of every later garbage collection, which else takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def comm():
    """The world: all ranks that run this suite."""
    return collops.world()


@pytest.fixture
def one_host(comm):
    """Skip tests of memory that only ranks of one host share; `tests/robust/two_hosts.py` has those of several."""
    if comm.local_size != comm.size or comm.host_transport == "tcp":
        pytest.skip("needs ranks of one host, with MPI")


@pytest.fixture(params=["without loops", "with loops"])
def loops(request, monkeypatch):
    """Use the loops of Numba for arrays of any length in one of two runs; otherwise only long ones use them."""
    if request.param == "with loops":
        pytest.importorskip("numba")
        monkeypatch.setattr(kernels, "LONG", 1)


@pytest.fixture
def jax_double(comm):
    """JAX with 64-bit numbers, and what its messages need."""
    yield from _jax_of(comm, double=True)


@pytest.fixture
def jax_single(comm):
    """JAX as it comes, without 64-bit numbers, and what its messages need."""
    yield from _jax_of(comm, double=False)


def _jax_of(comm, double):
    import jax

    if comm.size > 1 and importlib.util.find_spec("collops_native") is None and "COLLOPS_NATIVE" not in os.environ:
        pytest.skip("messages of JAX arrays need the native library")
    before = jax.config.jax_enable_x64  # a context only in newer versions of JAX
    jax.config.update("jax_enable_x64", double)
    yield
    jax.config.update("jax_enable_x64", before)
