"""One suite for any number of ranks: every rank runs the same tests in the same order.

``python -m pytest`` runs it on one rank, ``mpiexec -n N python -m pytest`` on N. Rank 0 shows the progress, and every
rank its own failures.
"""

from __future__ import annotations

import gc
import importlib.util
import io
import os
import re
import signal
import sys
import tempfile
import time

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
from tests.launch import QUICK_CODE_FLAGS
from tests.sharing import numbers_by_name, numbers_of_ranks, numbers_that_can

# All ranks must draw the same examples, none may stop early for being slow or read what another rank wrote.
hypothesis.settings.register_profile("ranks", derandomize=True, deadline=None, database=None, max_examples=25)
hypothesis.settings.load_profile("ranks")

if importlib.util.find_spec("jax") and "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    import jax

    # Four CPU devices in all, on one, two or four ranks; it must be set before any test module uses JAX.
    jax.config.update("jax_num_cpu_devices", {1: 4, 2: 2}.get(collops.world().size, 1))


# Programs on one and on two ranks are compiled with the options that users have.
if collops.world().size > 2 and importlib.util.find_spec("jax_plugins") is None:  # which JAX on GPUs has
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_CODE_FLAGS}"

SERIAL = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.serial\b", re.MULTILINE)


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


def number_to_share_by() -> int:
    """Return the number of ranks, up to 4, whose tests these ranks run."""
    size = collops.world().size
    return size if size <= 4 else 2 + size % 3


def pytest_ignore_collect(collection_path, config) -> bool | None:
    """Do not import modules on several ranks whose tests are all serial, or run on other numbers of ranks only."""
    if collops.world().size > 1 and collection_path.suffix == ".py":
        name = collection_path.relative_to(config.rootpath).as_posix()
        if number_to_share_by() not in numbers_by_name(name):
            return True
        return SERIAL.search(collection_path.read_text("utf-8")) is not None or None
    return None


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


def pytest_collection_modifyitems(config, items) -> None:
    size, key = collops.world().size, number_to_share_by()
    able = {item: numbers_that_can(item) for item in items}
    left_out = {item for item in items if key not in able[item]}
    if "COLLOPS_ALL_CASES" not in os.environ and (size > 1 or "COLLOPS_SHARED_CASES" in os.environ):
        cases: dict[str, list] = {}
        for item in items:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
        for name, alike in cases.items():
            for position, item in enumerate(alike):
                if key not in numbers_of_ranks(name, position, len(alike), able[item]):
                    left_out.add(item)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


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
