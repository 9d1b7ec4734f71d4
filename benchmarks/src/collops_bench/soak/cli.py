"""``collops soak``: compare random problems with serial results for some time, and monitor memory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collops.cli.command import Debug, Engine, Json, Quiet, Ranks, Transport, check_engine, with_world
from collops.cli.console import console, table_of_numbers
from collops.errors import CollopsError, InputError
from collops_bench.record import Measurement, new_record, prepare_record, write_record

if TYPE_CHECKING:
    from collops.comm import Communicator
    from collops_bench.soak.run import Tally

__all__ = ["soak"]


def soak(
    *,
    minutes: Annotated[float, typer.Option(help="Duration in minutes.")] = 1.0,
    ranks: Ranks = None,
    engine: Engine = "auto",
    transport: Transport = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the cases.")] = 0,
    only: Annotated[int | None, typer.Option(metavar="CASE", help="Run only the case with this number.")] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the results as a benchmark record.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare random cases with serial results, kill and resume solvers, and monitor memory; fail on any error."""

    def check() -> None:
        if not 0 < minutes < float("inf"):
            raise InputError(f"--minutes must be a positive number, not {minutes:g}")
        if seed < 0 or (only is not None and only < 0):
            raise InputError("--seed and --only must not be negative")
        check_engine(engine)

    def body(comm: Communicator) -> None:
        _run(comm, engine, minutes, seed, only, record, as_json, quiet)

    with_world("collops soak", body, ranks=ranks, transport=transport, debug=debug, check=check)


def _run(
    comm: Communicator,
    engine: str,
    minutes: float,
    seed: int,
    only: int | None,
    record: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from collops.apps.stages import engine_of_ranks, local_stage
    from collops_bench.soak.run import soak as run

    chosen = engine_of_ranks(engine, comm)
    first = comm.rank == 0
    with local_stage(comm):
        if first and record is not None:
            prepare_record(record)
    where = console(to_stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=where, disable=quiet or not first or not where.is_terminal) as bar:
        task = bar.add_task("soak", total=60 * minutes)

        def report(tally: Tally) -> None:
            text = f"{tally.count} cases, {len(tally.failures)} failures"
            bar.update(task, completed=tally.seconds, description=text)

        tally = run(comm, chosen, minutes=minutes, seed=seed, only=only, report=report)
    if record is not None:
        _record(tally, comm, chosen, minutes, record)
    if first and not quiet:
        _show(tally, console(to_stderr=as_json))
    if first and as_json:
        typer.echo(json.dumps(dataclasses.asdict(tally) | {"passed": tally.passed}, allow_nan=False))
    if not tally.passed:
        details = [f"case {failure.number} ({failure.case})" for failure in tally.failures] + tally.leaks
        text = f"{len(tally.failures)} cases failed, {len(tally.leaks)} quantities grew"
        comm.check(CollopsError(f"{text} with --seed {tally.seed}: {', '.join(details)}"))


def _show(tally: Tally, where: Any) -> None:
    """Print the tally, and the command that repeats each failure."""
    table = table_of_numbers(None, "case", "times", "seconds", "failures")
    for name in sorted(tally.cases):
        failed = sum(failure.case == name for failure in tally.failures)
        table.add_row(name, str(tally.cases[name]), f"{tally.times[name]:.1f}", str(failed or ""))
    table.add_section()
    table.add_row("all", str(tally.count), f"{tally.seconds:.1f}", str(len(tally.failures)))
    where.print(table)
    where.print(", ".join(f"{count} on {wire}" for wire, count in sorted(tally.wires.items())), markup=False)
    for rank, (memory, growth) in enumerate(zip(tally.memory, tally.growth, strict=True)):
        grown = f", {100 * growth.get('host', 0.0):+.2f} % after the warm-up" if growth else ""
        device = f", device {memory['device'] / 2**20:.0f} MiB" if memory["device"] else ""
        where.print(f"rank {rank}: host {memory['host'] / 2**20:.0f} MiB{grown}{device}", markup=False)
    for leak in tally.leaks:
        where.print(f"grew: {leak}", markup=False)
    for failure in tally.failures:
        again = f"collops soak --ranks {len(tally.memory)} --seed {tally.seed} --only {failure.number}"
        where.print(f"failed: {failure.case} on {failure.wire}: {failure.message}\n  again: {again}", markup=False)


def _record(tally: Tally, comm: Communicator, engine: Any, minutes: float, path: Path) -> None:
    """Write the tally as a benchmark record. Collective."""
    from collops.apps.stages import local_stage

    record = new_record("soak", comm, engine, {"minutes": minutes, "seed": tally.seed})
    for name in sorted(tally.cases):
        failed = sum(failure.case == name for failure in tally.failures)
        figures = {"collops": {"cases": tally.cases[name], "seconds": tally.times[name], "failures": failed}}
        record.measurements.append(Measurement(name, {}, {}, figures=figures))
    memory = {
        f"rank {rank}": {"host bytes": now["host"], "device bytes": now["device"]}
        | {f"growth of {what}": share for what, share in growth.items()}
        for rank, (now, growth) in enumerate(zip(tally.memory, tally.growth, strict=True))
    }
    record.measurements.append(Measurement("memory", {}, {}, figures=memory))
    with local_stage(comm):
        if comm.rank == 0:
            write_record(record, path)
