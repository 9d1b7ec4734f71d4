"""What a benchmark leaves behind: a JSON file with measurements, machine, versions and commit.

The file is one object:

- ``schema``: 1; a reader refuses another number.
- ``benchmark``: name of the benchmark.
- ``started``: date and time in UTC, ISO 8601.
- ``commit``: of this package's repository, ``-dirty`` appended where files were changed; null where it is
  not known.
- ``machine``: ``processor``, ``cores`` (that this process may use), ``system``, ``devices`` (one name for
  each rank's GPU; empty on hosts), ``driver`` (version that the GPU driver supports; null on hosts), ``memory``
  (bytes that each rank could still have where its arrays live; absent in older records).
- ``versions``: of Python and of every package that can matter; null where one is not installed.
- ``ranks``, ``engine``, ``transport`` (a list: what the communicator said of its wires and why).
- ``options``: how the benchmark was run.
- ``clocks``: what each clock of the timings measures, in words.
- ``measurements``: a list of objects, see :class:`Measurement`; times in seconds a call, sizes in bytes,
  bandwidths in bytes a second.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collops import __version__
from collops.apps.outputs import atomic, check_writable
from collops_bench.memory import free_memory
from collops_bench.timing import CLOCKS, Timing
from collops.errors import CollopsError, InputError

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = [
    "SCHEMA",
    "Check",
    "Measurement",
    "Record",
    "check",
    "default_path",
    "new_record",
    "prepare_record",
    "write_record",
]

SCHEMA = 1
_PACKAGES = [
    "numpy",
    "scipy",
    "pylops",
    "pylops-mpi",
    "mpi4py",
    "mpich",
    "openmpi",
    "numba",
    "cupy-cuda13x",
    "nccl4py",
    "jax",
    "jaxlib",
    "mpi4jax",
]


@dataclass(frozen=True)
class Check:
    """One comparison of an answer with what it must be, made before anything was timed.

    Parameters
    ----------
    what : str
        What was compared with what.
    error, tolerance : float
        The largest on any rank, and what it had to stay within.

    Examples
    --------
    >>> from collops_bench import Check
    >>> check = Check("dot against NumPy", 1e-16, 1e-12)
    >>> check.error <= check.tolerance
    True
    """

    what: str
    error: float
    tolerance: float


@dataclass(frozen=True)
class Measurement:
    """One piece of work, done by several programs on the same data in the same run.

    Parameters
    ----------
    case : str
        What was measured, unique in its record together with `parameters`.
    parameters : mapping
        Sizes, dtypes and whatever else describes the work.
    timings : mapping of str to Timing
        By program.
    missing : mapping of str to str
        Programs that could not be measured, and why.
    ours, peer : str or None
        Programs to compare in tables and plots; `peer` may be missing.
    checks : list of Check
        How it was made sure that the programs computed the right thing.
    figures : mapping of str to mapping of str to float
        By program: numbers that follow from its times, named as their benchmark defines them.
    messages : mapping of str to int or None
        What one call of `ours` sent, by operation (:func:`collops.profile.count_messages`).
    headline : str or None
        Label in the README's table of speed; ``None`` keeps it out.

    Examples
    --------
    >>> from collops_bench import Measurement, Spread, Timing
    >>> times = {"collops": Timing(10, {"wall": Spread.of([1e-3])}), "NumPy": Timing(10, {"wall": Spread.of([2e-3])})}
    >>> Measurement("dot", {"elements": 1000}, times, peer="NumPy").speedup
    2.0
    """

    case: str
    parameters: Mapping[str, Any]
    timings: Mapping[str, Timing]
    missing: Mapping[str, str] = field(default_factory=dict)
    ours: str = "collops"
    peer: str | None = None
    checks: list[Check] = field(default_factory=list)
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    messages: Mapping[str, int] | None = None
    headline: str | None = None

    @property
    def speedup(self) -> float | None:
        """Median wall time of the peer over ours; ``None`` where either was not measured."""
        if self.peer is None or self.peer not in self.timings or self.ours not in self.timings:
            return None
        return self.timings[self.peer].wall.median / self.timings[self.ours].wall.median


@dataclass(frozen=True)
class Record:
    """All measurements of one run of a benchmark; the module's docstring says what the fields hold.

    Examples
    --------
    >>> from collops_bench import Record
    >>> machine = {"processor": "a CPU", "cores": 2, "system": "Linux", "devices": [], "driver": None}
    >>> Record("arrays", 1, "numpy", [], machine, {}, {}, None, "2026-01-01T00:00:00Z").machine_name
    'cpu-2-cores'
    """

    benchmark: str
    ranks: int
    engine: str
    transport: list[str]
    machine: Mapping[str, Any]
    versions: Mapping[str, str | None]
    options: Mapping[str, Any]
    commit: str | None
    started: str
    measurements: list[Measurement] = field(default_factory=list)

    @property
    def machine_name(self) -> str:
        """Short name for files and tables: the GPUs, or else the number of cores."""
        devices = self.machine["devices"]
        return _slug(devices[0]) if devices else f"cpu-{self.machine['cores']}-cores"


def check(comm: Communicator, what: str, error: float, tolerance: float) -> Check:
    """Make sure that an answer is right. Collective.

    Parameters
    ----------
    comm : Communicator
        Ranks that have a part of the answer.
    what : str
        What is compared with what.
    error : float
        This rank's.
    tolerance : float
        What no rank's error may exceed.

    Raises
    ------
    CollopsError
        If a rank's error is too large or not a number: times of wrong answers are not worth recording.
    """
    # JSON has no infinity; a wrong answer may well be one.
    errors = [float(text) for text in comm.allgather_metadata(repr(float(error)))]
    worst = math.nan if any(math.isnan(one) for one in errors) else max(errors)
    if not worst <= tolerance:
        comm.check(CollopsError(f"{what}: the error is {worst:.3g}, more than {tolerance:.3g}; nothing was timed"))
    return Check(what, worst, tolerance)


def new_record(benchmark: str, comm: Communicator, engine: Engine, options: Mapping[str, Any]) -> Record:
    """Describe this run. Collective."""
    device, driver = _device(engine)
    devices = [name for name in comm.allgather_metadata(device) if name is not None]
    return Record(
        benchmark=benchmark,
        ranks=comm.size,
        engine=engine.name,
        transport=comm.describe().splitlines(),
        machine={
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "devices": devices,
            "driver": driver,
            "memory": free_memory(comm, engine),
        },
        versions={"python": platform.python_version(), "collops": __version__}
        | {name: _version(name) for name in _PACKAGES},
        options=dict(options),
        commit=_commit(),
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def default_path(record: Record) -> Path:
    """Return where the repository keeps a record: ``benchmarks/results/NAME-MACHINE-RANKS.json``.

    Examples
    --------
    >>> from collops_bench import Record, default_path
    >>> machine = {"processor": "a CPU", "cores": 2, "system": "Linux", "devices": [], "driver": None}
    >>> default_path(Record("arrays", 1, "numpy", [], machine, {}, {}, None, "2026-01-01T00:00:00Z")).name
    'arrays-cpu-2-cores-1.json'
    """
    return Path("benchmarks", "results", f"{record.benchmark}-{record.machine_name}-{record.ranks}.json")


def write_record(record: Record, path: str | Path) -> None:
    """Write `record` as JSON, making the folders on the way.

    Raises
    ------
    InputError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from collops_bench import Record, read_record, write_record
    >>> machine = {"processor": "a CPU", "cores": 2, "system": "Linux", "devices": [], "driver": None}
    >>> record = Record("arrays", 1, "numpy", [], machine, {}, {}, None, "2026-01-01T00:00:00Z")
    >>> path = tempfile.mkdtemp() + "/arrays.json"
    >>> write_record(record, path)
    >>> read_record(path).benchmark
    'arrays'
    """
    path = Path(path)
    content = {"schema": SCHEMA} | asdict(record)
    measurements = content.pop("measurements")
    content |= {"clocks": CLOCKS, "measurements": measurements}
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    prepare_record(path)
    try:
        with atomic(path) as temporary:
            temporary.write_text(text)
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror or problem}") from problem


def prepare_record(path: Path) -> None:
    """Make the folders on the way to a record, and find out whether it can be written.

    Raises
    ------
    InputError
        If it cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror or problem}") from problem
    check_writable(path)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _device(engine: Engine) -> tuple[str | None, str | None]:
    """Names of this rank's GPU and of the CUDA (or HIP) version that its driver supports."""
    if engine.name != "cupy":
        return None, None
    runtime = engine.xp.cuda.runtime
    name = runtime.getDeviceProperties(engine.xp.cuda.Device().id)["name"].decode()
    version = runtime.driverGetVersion()
    return name, f"{version // 1000}.{version % 1000 // 10}"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Commit of this package's repository; COLLOPS_COMMIT where only a copy of the files is at hand."""
    given = os.environ.get("COLLOPS_COMMIT")
    if given:
        return given
    folder = Path(__file__).resolve().parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        # Only files of the package count: the run may have written results beside it.
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", str(folder.parent))
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
