"""The record of a benchmark: a JSON file with measurements, machine, versions and commit.

The file is one object:

- ``schema``: 1; another number is an error.
- ``benchmark``: name of the benchmark.
- ``started``: date and time in UTC, ISO 8601.
- ``commit``: of the repository, with ``-dirty`` if files were changed; null if unknown.
- ``machine``: ``processor``, ``cores`` (available to this process), ``system``, ``devices`` (the name of each rank's
  GPU; empty on hosts), ``driver`` (CUDA version of the driver; null on hosts), ``memory`` (free bytes per rank, on the
  device or host), ``p2p`` (whether NCCL may access other GPUs; null on hosts). Older records lack the last two.
- ``versions``: of Python and of relevant packages; null for one that is not installed.
- ``ranks``, ``engine``, ``transport`` (a list: the transports, as the communicator describes them).
- ``options``: the options of the run.
- ``clocks``: the definition of each clock of the timings.
- ``measurements``: a list of objects, see :class:`Measurement`; times in seconds per call, sizes in bytes, bandwidths
  in bytes per second.
"""

from __future__ import annotations

import datetime
import gc
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, NoReturn, get_args, get_origin, get_type_hints

import collops
from collops.apps.files import atomic, check_writable
from collops.comm.nccl import p2p_is_off
from collops.errors import CollopsError, InputError
from collops_bench.timing import CLOCKS, SIGNED, Timing

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
    "free_memory",
    "new_record",
    "prepare_record",
    "read_folder",
    "read_record",
    "write_record",
]

SCHEMA = 1
_GROUP = Path("/sys/fs/cgroup")
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
    "jaxdecomp",
    "petsc4py",
    "mpi4py-fft",
    "torch",
    "nvmath-python",
    "nvidia-cufftmp-cu13",
    "ghex",
    "deepwave",
    "devito",
]


@dataclass(frozen=True)
class Check:
    """A comparison of a result with the right one, made before timing."""

    what: str  # what was compared
    error: float  # the largest on any rank
    tolerance: float


@dataclass(frozen=True)
class Measurement:
    """One piece of work, done by several programs on the same data in the same run."""

    case: str  # name of the work, unique in its record together with `parameters`
    parameters: Mapping[str, Any]  # sizes, dtypes and anything else that describes the work
    timings: Mapping[str, Timing]  # by program
    missing: Mapping[str, str] = field(default_factory=dict)  # programs that could not be measured, and why
    ours: str = "collops"  # programs to compare in tables and plots; `peer` may be missing
    peer: str | None = None
    checks: list[Check] = field(default_factory=list)  # checks of the answers of all programs
    # by program: numbers that follow from its times, named as their benchmark defines them
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # number of messages of one call of `ours`, by operation (:func:`collops.profile.count_messages`)
    messages: Mapping[str, int] | None = None
    headline: str | None = None  # label in the README's table of speed; ``None`` keeps it out

    @property
    def speedup(self) -> float | None:
        """Median wall time of the peer over ours; ``None`` where either was not measured."""
        if self.peer is None or self.peer not in self.timings or self.ours not in self.timings:
            return None
        return self.timings[self.peer].wall.median / self.timings[self.ours].wall.median


@dataclass(frozen=True)
class Record:
    """All measurements of one run of a benchmark; the docstring of the module describes the fields."""

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
        name = _slug(devices[0]) if devices else f"cpu-{self.machine['cores']}-cores"
        return name if self.p2p else f"{name}-without-p2p"

    @property
    def p2p(self) -> bool:
        """False where NCCL was told not to access other GPUs (``NCCL_P2P_DISABLE``)."""
        return self.machine.get("p2p") is not False


def check(comm: Communicator, what: str, error: float, tolerance: float) -> Check:
    """Return the check of a result from the error on this rank, which may be at most `tolerance`. Collective.

    Raises
    ------
    CollopsError
        On every rank, if the error on any rank is too large or not a number.
    """
    # JSON has no infinity, but an error may be infinite.
    errors = [float(text) for text in comm.allgather_metadata(repr(float(error)))]
    worst = math.nan if any(math.isnan(error) for error in errors) else max(errors)
    if not worst <= tolerance:
        comm.check(CollopsError(f"{what}: the error is {worst:.3g}, more than {tolerance:.3g}; nothing was timed"))
    return Check(what, worst, tolerance)


def new_record(benchmark: str, comm: Communicator, engine: Engine, options: Mapping[str, Any]) -> Record:
    """Return the record of this run, without measurements. Collective."""
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
            "p2p": not p2p_is_off() if devices else None,
        },
        versions={"python": platform.python_version(), "collops": collops.__version__}
        | {name: _version(name) for name in _PACKAGES},
        options=dict(options),
        commit=_commit(),
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def free_memory(comm: Communicator, engine: Engine) -> int:
    """Return the free memory per rank in bytes, the smallest of all ranks, on the device or the host. Collective.

    Unreferenced objects are freed first, and on devices unused blocks of the memory pool.
    """
    gc.collect()
    if engine.name == "cupy":
        runtime = engine.xp.cuda.runtime
        engine.xp.get_default_memory_pool().free_all_blocks()
        free, sharing = runtime.memGetInfo()[0], -(-comm.local_size // runtime.getDeviceCount())
    else:
        free, sharing = _free_on_host(), comm.local_size
    return min(comm.allgather_metadata(free // sharing))


def _free_on_host() -> int:
    """Return the memory that the kernel, and the limit of this control group, allow."""
    free = _available()
    try:
        most, used = ((_GROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return free
    return free if most == "max" else min(free, max(0, int(most) - int(used)))


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        # Not Linux: assume that half of the installed memory is free.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return 1024 * int(sizes["MemAvailable"].split()[0])


def default_path(record: Record) -> Path:
    """Return the path of a record in the repository: ``benchmarks/results/NAME-MACHINE-RANKS.json``."""
    return Path("benchmarks", "results", f"{record.benchmark}-{record.machine_name}-{record.ranks}.json")


def write_record(record: Record, path: str | Path) -> None:
    """Write `record` as JSON, and create its folder; raise `InputError` if that is impossible."""
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
    """Create the folder of a record, or raise `InputError` if the record cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror or problem}") from problem
    check_writable(path)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _device(engine: Engine) -> tuple[str | None, str | None]:
    """Return the names of this rank's GPU and of the CUDA (or HIP) version of its driver."""
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
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1) if match else platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return COLLOPS_COMMIT, or else the commit of the repository, if any."""
    commit = os.environ.get("COLLOPS_COMMIT")
    if commit:
        return commit
    folders = [Path(file).resolve().parent for file in (collops.__file__, __file__)]
    try:
        commit = _git(folders[0], "rev-parse", "HEAD")
        # Only files of the packages count: the run may have written results to the repository.
        changed = _git(folders[0], "status", "--porcelain", "--untracked-files=no", "--", *map(str, folders))
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


# Reading

_MACHINE = {"processor": str, "cores": int, "system": str, "devices": list[str], "driver": str | None}


def read_record(path: str | Path) -> Record:
    """Read a record.

    Raises
    ------
    InputError
        If the file cannot be read, or is not a record of this schema; the message names the field.
    """
    try:
        content = json.loads(Path(path).read_bytes(), parse_constant=_no_number)
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from problem
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{path} is not a JSON file ({problem})") from problem
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise InputError(f"{path} must be a benchmark record of schema {SCHEMA}: run the benchmark again")
    try:
        record = _as(Record, {name: value for name, value in content.items() if name not in ("schema", "clocks")}, "it")
        for name, kind in _MACHINE.items():
            _as(kind, record.machine.get(name), f"machine.{name}")
        for number, measurement in enumerate(record.measurements):
            for program, timing in measurement.timings.items():
                where = f"the timing of {program} in measurements[{number}]"
                if "wall" not in timing.clocks:
                    raise ValueError(f"{where} has no clock 'wall'")
                if min(clock.minimum for name, clock in timing.clocks.items() if name not in SIGNED) <= 0:
                    raise ValueError(f"{where} has a time that is not positive")
    except ValueError as problem:
        raise InputError(f"{path} is not a complete benchmark record: {problem}") from problem
    return record


def read_folder(folder: str | Path) -> dict[str, Record]:
    """Read all records of a folder, by file name, in the order of names.

    Raises
    ------
    InputError
        If there are none, or one cannot be read.
    """
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        raise InputError(f"no results in {folder}: run a benchmark first, e.g. collops bench arrays")
    return {path.name: read_record(path) for path in paths}


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _as(kind: Any, value: Any, where: str) -> Any:
    """Convert a value of JSON to the type hint `kind`, or raise an error that names the place."""
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _as_dataclass(kind, value, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        inner = next(argument for argument in arguments if argument is not type(None))
        return None if value is None else _as(inner, value, where)
    if origin is list and isinstance(value, list):
        return [_as(arguments[0], item, f"{where}[{number}]") for number, item in enumerate(value)]
    if origin is Mapping and isinstance(value, dict):
        return {name: _as(arguments[1], item, f"{where}.{name}") for name, item in value.items()}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and number and math.isfinite(value):
        return float(value)
    if kind in (int, str) and isinstance(value, kind) and not isinstance(value, bool):
        return value
    raise ValueError(f"{where} is {json.dumps(value)[:40]}, not {_WORDS.get(origin or kind, 'what it should be')}")


_WORDS = {Mapping: "an object", list: "a list", float: "a number", int: "a whole number", str: "text"}


def _as_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {json.dumps(value)[:40]}, not an object")
    hints, needed = _fields_of(kind)
    if unknown := sorted(value.keys() - hints.keys()):
        raise ValueError(f"{where} has a field {unknown[0]!r} that records do not have")
    if absent := sorted(needed - value.keys()):
        raise ValueError(f"{where} has no field {absent[0]!r}")
    inside = "" if where == "it" else f"{where}."
    return kind(**{name: _as(hints[name], item, f"{inside}{name}") for name, item in value.items()})


@cache
def _fields_of(kind: Any) -> tuple[dict[str, Any], set[str]]:
    """Return the types of a dataclass's fields by their names, and the names of those without a default."""
    needed = {item.name for item in fields(kind) if item.default is item.default_factory is MISSING}
    return get_type_hints(kind), needed
