"""``collops bench all``: run every benchmark in processes of its own, so that a failure affects no other."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collops._launcher import started
from collops.cli.command import Debug, Engine, check_engine, guarded
from collops.cli.console import console
from collops.errors import InputError
from collops_bench.record import Measurement, Record, read_folder, read_record
from collops_bench.registry import BENCHMARKS, Benchmark
from collops_bench.speed import bytes_in_words, in_words, limits_shares, seconds_in_words, three_digits

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "FIRST",
    "Limit",
    "NoPeers",
    "Outcome",
    "Plan",
    "Quick",
    "RanksOfEach",
    "bench_all",
    "comparison",
    "limits_in_words",
    "planned",
    "run_all",
    "show",
]

FIRST = "limits"
"""The benchmark that runs first: its record contains the free memory."""

_SHARE = 0.8  # of the free memory that a benchmark may need
_LAST_LINES = 3  # of the output, in error messages
_FAILED = 1


@dataclass(frozen=True)
class Plan:
    """The benchmarks to run, and their options."""

    names: Sequence[str]  # keys of `BENCHMARKS`; `FIRST` is run before them in any case
    folder: Path  # where the records go
    ranks: int  # processes of each benchmark
    options: Sequence[str]  # further arguments of each, such as ``--engine cupy``
    quick: bool  # whether all of them run small
    most_seconds: float  # after which a benchmark is ended
    environment: Mapping[str, str] = field(default_factory=dict)  # further variables of its processes


@dataclass(frozen=True)
class Outcome:
    """The result of one benchmark."""

    name: str  # name of the benchmark
    record: Record | None  # its record, complete or not
    problem: str | None = None  # why it failed
    note: str | None = None  # the reason for small sizes, or its last words if it left no record


def run_all(plan: Plan, report: Callable[[str, str], None]) -> Iterator[Outcome]:
    """Run the benchmarks of a plan, and yield their outcomes. Not collective: one process starts all others.

    `report` gets the name of the benchmark and its newest measurement.
    """
    first = _run(plan, FIRST, plan.quick, None, report)
    yield first
    for name in plan.names:
        if name != FIRST:
            note = None if plan.quick else _too_large(BENCHMARKS[name], first.record)
            yield _run(plan, name, plan.quick or note is not None, note, report)


def _too_large(benchmark: Benchmark, limits: Record | None) -> str | None:
    """Return why a benchmark must run with small sizes on this machine, or None."""
    if limits is None:
        return "small sizes: the free memory is unknown"
    free = int(limits.machine["memory"])
    needed = benchmark.device_bytes if limits.engine == "cupy" else benchmark.host_bytes
    if needed <= _SHARE * free:
        return None
    return f"small sizes: {needed / 2**30:.3g} GiB per rank needed, {free / 2**30:.3g} free"


def _run(plan: Plan, name: str, quick: bool, note: str | None, report: Callable[[str, str], None]) -> Outcome:
    path = plan.folder / f"{name}-{plan.ranks}.json"
    command = [sys.executable, "-m", "collops", "bench", name, "--ranks", str(plan.ranks), "--json", str(path)]
    command += [*plan.options, *(["--quick"] if quick else [])]
    path.unlink(missing_ok=True)
    report(name, "starting")
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **plan.environment},
    ) as process:
        ended = threading.Event()

        def end() -> None:
            ended.set()
            process.terminate()

        watch = threading.Timer(plan.most_seconds, end)
        watch.start()
        try:
            for line in process.stdout or ():
                lines.append(line.rstrip())
                # Times are indented below the name of the measurement.
                if line.strip() and not line.startswith((" ", "wrote ")):
                    report(name, line.strip())
            code = process.wait()
        except BaseException:
            # After an interrupt from the keyboard the launcher forwards the signal to its ranks.
            process.terminate()
            raise
        finally:
            watch.cancel()
    record = problem = None
    try:
        record = read_record(path) if path.exists() else None
    except InputError as error:
        problem = str(error)
    last = " | ".join(line for line in lines[-_LAST_LINES:] if line) or "no output"
    if ended.is_set():
        problem = f"ended after {plan.most_seconds:g} s"
    elif code != 0:
        # The launcher writes its own lines after the error message.
        log = path.with_suffix(".log")
        log.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        problem = f"exit code {code}: {last}; its output is in {log.name}"
    elif record is None and problem is None:
        note = last
    return Outcome(name, record, problem, note)


# The summary


def limits_in_words(record: Record) -> list[tuple[str, str]]:
    """Return the names and values of the limits of a machine, from their record."""
    from collops_bench.limits import COPY, MULTIPLY
    from collops_bench.model import ALLREDUCE, EXCHANGE

    rows = []
    copies = [measurement for measurement in record.measurements if measurement.case == COPY]
    if copies:
        largest, best = copies[-1], max(copies, key=_bandwidth)
        rows.append((f"memory of a rank, copy of {_size(largest)}", _rate(_bandwidth(largest), "B/s")))
        rows.append((f"the fastest copy, of {_size(best)}", _rate(_bandwidth(best), "B/s")))
    for measurement in record.measurements:
        if measurement.case == MULTIPLY:
            rate = measurement.figures[measurement.ours]["rate"]
            rows.append((f"arithmetic of a rank, matrices of {measurement.parameters['side']}", _rate(rate, "FLOP/s")))
    for kind, words in ((ALLREDUCE, f"allreduce over {record.ranks} ranks"), (EXCHANGE, "exchange with a neighbour")):
        points = [measurement for measurement in record.measurements if measurement.case == kind]
        if points:
            smallest, best = points[0], max(points, key=_bandwidth)
            latency = smallest.timings[smallest.ours].wall.median
            rows.append((f"{words}, {_size(smallest)}", seconds_in_words(latency)))
            rows.append((f"{words}, {_size(best)}", _rate(_bandwidth(best), "B/s")))
    return rows


def _bandwidth(measurement: Measurement) -> float:
    return measurement.figures[measurement.ours]["bandwidth"]


def _size(measurement: Measurement) -> str:
    return bytes_in_words(measurement.parameters["size"])


def _rate(value: float, unit: str) -> str:
    factor, prefix = next((item for item in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if value >= item[0]), (1.0, ""))
    return f"{three_digits(value / factor)} {prefix}{unit}"


def comparison(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return the speeds of our programs relative to limits: pairs of the work and the ratio, as text.

    The records, including limits, are of one machine and one number of ranks.
    """
    from collops_bench.model import work_of
    from collops_bench.prediction import machine_of

    rows = [
        (f"{share.work}, {share.program}", f"{100 * share.share:.0f} % of {share.limit}")
        for share in limits_shares(records)
    ]
    if not any(record.benchmark == "limits" for record in records):
        return rows
    machine = machine_of(records)
    for record in records:
        for measurement in record.measurements if record.benchmark == "scaling" else ():
            work = work_of(measurement.parameters, record.ranks)
            seconds = measurement.timings[measurement.ours].wall.median
            messages = sum(n * machine.message_seconds(kind, size, work.ranks) for kind, n, size in work.messages)
            copied = f"{100 * machine.copy_seconds(work.nbytes) / seconds:.0f} % of its time would copy its bytes"
            sent = f", {100 * messages / seconds:.0f} % send its messages alone" if messages else ""
            rows.append((in_words(measurement), copied + sent))
    return rows


# The command

RanksOfEach = Annotated[
    int | None,
    typer.Option(help="Processes of each benchmark.", show_default="one for each GPU, else for each core, 4 at most"),
]
Quick = Annotated[bool, typer.Option("--quick", help="Small sizes and few rounds: a trial, not a result.")]
NoPeers = Annotated[bool, typer.Option("--no-peer", help="Do not run the peers.")]
Limit = Annotated[float, typer.Option(metavar="SECONDS", help="Longest time of a benchmark.")]


def bench_all(
    *,
    ranks: RanksOfEach = None,
    engine: Engine = "auto",
    only: Annotated[str | None, typer.Option(metavar="NAME,NAME", help="Run only these benchmarks.")] = None,
    quick: Quick = False,
    no_peer: NoPeers = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the records and the page.")] = Path(
        "collops-bench"
    ),
    limit: Limit = 1800.0,
    debug: Debug = False,
) -> None:
    """Run all benchmarks on this machine, sized to its memory, and write one page of the results.

    It first measures the limits of the machine. Each benchmark has processes of its own, so that a failure affects no
    other. The last table compares the benchmarks with the limits.
    """

    def run() -> int:
        plan = planned(_names(only), out, engine, ranks=ranks, quick=quick, no_peer=no_peer, limit=limit)
        where = console(to_stderr=False)
        outcomes: list[Outcome] = []
        try:
            show(plan, where, outcomes)
        finally:
            # Also after an interrupt from the keyboard, with the measurements made so far.
            _conclude(plan, outcomes, where)
        return _FAILED if any(outcome.problem for outcome in outcomes) else 0

    raise typer.Exit(guarded("collops bench all", run, debug=debug))


def _names(only: str | None) -> list[str]:
    names = list(BENCHMARKS) if only is None else [name.strip() for name in only.split(",") if name.strip()]
    if not names:
        raise InputError("--only names no benchmark: omit it to run all")
    if unknown := [name for name in names if name not in BENCHMARKS]:
        raise InputError(f"unknown benchmark {unknown[0]!r}: choose from {', '.join(BENCHMARKS)}")
    return names


def planned(
    names: Sequence[str], folder: Path, engine: str, *, ranks: int | None, quick: bool, no_peer: bool, limit: float
) -> Plan:
    """Return the plan that the options of a command ask for, and create its folder.

    Raises
    ------
    InputError
        If an option has no such value, the folder has others' files, or ranks have been started.
    """
    if ranks is not None and ranks < 1:
        raise InputError(f"--ranks must be at least 1, not {ranks}")
    if not 0 < limit <= threading.TIMEOUT_MAX:
        raise InputError(f"--limit must be a positive number of seconds, not {limit:g}")
    check_engine(engine)
    _prepare(folder)
    options = ["--engine", engine, *(["--no-peer"] if no_peer else [])]
    return Plan(names, folder, ranks or _default_ranks(engine), options, quick, limit)


def _default_ranks(engine: str) -> int:
    """Return one rank for each GPU, else for each core, four at most."""
    import importlib.util

    from collops.comm.cores import available_cores
    from collops.comm.world import device_count

    if importlib.util.find_spec("mpi4py") is None:
        return 1
    devices = device_count() if engine != "numpy" else 0
    return devices or min(4, len(available_cores()))


def _prepare(folder: Path) -> None:
    """Create a folder for records, or raise `InputError` if it has others' files or ranks have been started."""
    from collops.apps.files import prepare_folder

    if started() is not None:
        raise InputError(
            "the command starts the ranks of each benchmark itself: call it without a launcher, with --ranks"
        )
    prepare_folder(folder)
    for path in sorted(folder.glob("*.json")):
        read_record(path)  # raises now rather than at the end if the page could not show a record


def show(plan: Plan, where: Console, outcomes: list[Outcome]) -> None:
    """Run the plan, with a line for each benchmark, and on a terminal a progress bar."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=where, transient=True, disable=not where.is_terminal) as progress:
        task = progress.add_task(FIRST, total=len({FIRST, *plan.names}))
        for outcome in run_all(plan, lambda name, text: progress.update(task, description=f"{name}: {text}"[:70])):
            outcomes.append(outcome)
            progress.advance(task)
            where.print(_line(outcome), markup=False, soft_wrap=True)


def _line(outcome: Outcome) -> str:
    count = 0 if outcome.record is None else len(outcome.record.measurements)
    words = f"{count} measurement{'' if count == 1 else 's'}"
    words += f", {outcome.note}" if outcome.note else ""
    return f"{outcome.name:12s} {words}" + (f", FAILED ({outcome.problem})" if outcome.problem else "")


def _conclude(plan: Plan, outcomes: list[Outcome], where: Console) -> None:
    """Print the limits of the machine and the comparison with them, and write the page."""
    from rich.table import Table

    from collops_bench.page import report_page

    records = [outcome.record for outcome in outcomes if outcome.record is not None and outcome.record.measurements]
    if not records:
        return
    limits = next((record for record in records if record.benchmark == FIRST), None)
    for title, rows in (
        ("Limits of this machine", [] if limits is None else limits_in_words(limits)),
        ("Speed relative to the limits", comparison(records)),
    ):
        if rows:
            table = Table(
                box=None, pad_edge=False, show_header=False, title=title, title_justify="left", title_style="bold"
            )
            for row in rows:
                table.add_row(*row)
            where.print()
            where.print(table, markup=False)
    page = plan.folder / "report.html"
    page.write_text(report_page(read_folder(plan.folder)), encoding="utf-8")
    where.print()
    where.print(f"wrote {page}", markup=False, soft_wrap=True)
