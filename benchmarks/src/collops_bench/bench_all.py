"""``collops bench all``: every benchmark on this machine, and how near they come to what it can do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collops.cli.console import console
from collops.cli.errors import guarded
from collops.cli.launch import started
from collops.cli.options import Debug, Engine, check_engine
from collops.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from collops_bench.everything import Outcome, Plan

__all__ = ["bench_all"]

_FAILED = 1


def bench_all(
    *,
    ranks: Annotated[
        int | None,
        typer.Option(
            help="Processes of each benchmark.", show_default="one for each GPU, else for each core, 4 at most"
        ),
    ] = None,
    engine: Engine = "auto",
    only: Annotated[str | None, typer.Option(metavar="NAME,NAME", help="These benchmarks alone.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and few rounds: a trial, not a result.")] = False,
    no_peer: Annotated[bool, typer.Option("--no-peer", help="Leave the peers out.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the records and the page.")] = Path(
        "collops-bench"
    ),
    limit: Annotated[float, typer.Option(metavar="SECONDS", help="After which a benchmark is ended.")] = 1800.0,
    debug: Debug = False,
) -> None:
    """Run all benchmarks on this machine, sized to its memory, and write one page of the results.

    The machine's own limits are measured first. Each benchmark has processes of its own, so that one that fails loses
    no other. At the end stands what the machine can do, and how near to that the benchmarks come.
    """

    def here() -> int:
        plan = _plan(ranks, engine, only, quick, no_peer, out, limit)
        where = console(to_stderr=False)
        outcomes: list[Outcome] = []
        try:
            _run(plan, where, outcomes.append)
        finally:
            # Also after an interrupt from the keyboard: what has been measured until then is not lost.
            _conclude(plan, outcomes, where)
        return _FAILED if any(outcome.problem for outcome in outcomes) else 0

    raise typer.Exit(guarded("collops bench all", here, debug=debug))


def _plan(
    ranks: int | None, engine: str, only: str | None, quick: bool, no_peer: bool, out: Path, limit: float
) -> Plan:
    from collops.apps.outputs import prepare_folder
    from collops_bench.everything import Plan
    from collops_bench.reading import read_record
    from collops_bench.registry import BENCHMARKS

    if started() is not None:
        raise InputError(
            "bench all starts the ranks of each benchmark itself: call it without a launcher, with --ranks"
        )
    if ranks is not None and ranks < 1:
        raise InputError(f"--ranks must be at least 1, not {ranks}")
    if not 0 < limit <= threading.TIMEOUT_MAX:
        raise InputError(f"--limit must be a positive number of seconds, not {limit:g}")
    check_engine(engine)
    names = list(BENCHMARKS) if only is None else [name.strip() for name in only.split(",") if name.strip()]
    if not names:
        raise InputError("--only names no benchmark: leave it out to run all")
    if unknown := [name for name in names if name not in BENCHMARKS]:
        raise InputError(f"there is no benchmark {unknown[0]!r}: choose of {', '.join(BENCHMARKS)}")
    prepare_folder(out)
    for path in sorted(out.glob("*.json")):
        read_record(path)  # what the page could not show in the end is refused before an hour has been spent
    options = ["--engine", engine, *(["--no-peer"] if no_peer else [])]
    return Plan(names, out, ranks or _ranks(engine), options, quick, limit)


def _ranks(engine: str) -> int:
    import importlib.util

    from collops.comm.cores import available_cores
    from collops.comm.world import device_count

    if importlib.util.find_spec("mpi4py") is None:
        return 1
    devices = device_count() if engine != "numpy" else 0
    return devices or min(4, len(available_cores()))


def _run(plan: Plan, where: Console, keep: Callable[[Outcome], None]) -> None:
    """Run the plan with a progress bar on a terminal, and a line for each benchmark everywhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from collops_bench.everything import FIRST, run_all

    total = len({FIRST, *plan.names})
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=where, transient=True, disable=not where.is_terminal) as progress:
        task = progress.add_task(FIRST, total=total)

        def hear(name: str, measured: str) -> None:
            progress.update(task, description=f"{name}: {measured}"[:70])

        for outcome in run_all(plan, hear):
            keep(outcome)
            progress.advance(task)
            where.print(_line(outcome), markup=False, soft_wrap=True)


def _line(outcome: Outcome) -> str:
    count = 0 if outcome.record is None else len(outcome.record.measurements)
    words = f"{count} measurement{'' if count == 1 else 's'}"
    words += f", {outcome.note}" if outcome.note else ""
    return f"{outcome.name:12s} {words}" + (f", FAILED ({outcome.problem})" if outcome.problem else "")


def _conclude(plan: Plan, outcomes: list[Outcome], where: Console) -> None:
    """Say what the machine can do and how near the benchmarks came, and write the page."""
    from rich.table import Table

    from collops_bench.everything import FIRST
    from collops_bench.machine import comparison, limits_in_words
    from collops_bench.page import report_page
    from collops_bench.report import read_folder

    records = [outcome.record for outcome in outcomes if outcome.record is not None and outcome.record.measurements]
    if not records:
        return
    limits = next((record for record in records if record.benchmark == FIRST), None)
    for title, rows in (
        ("What this machine can do", [] if limits is None else limits_in_words(limits)),
        ("How near the benchmarks come", comparison(records)),
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
