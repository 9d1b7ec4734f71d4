"""``collops jacobi``: NVIDIA's multi-GPU samples as one program, with their options and their output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from collops.apps.jacobi.job import Options
from collops.cli.command import command_from, ended_short
from collops.cli.console import Progress, console

if TYPE_CHECKING:
    from rich.table import Table

    from collops.apps.jacobi.job import Outcome
    from collops.comm import Communicator


def _run(options: Options, comm: Communicator, as_json: bool, quiet: bool) -> int:
    from collops.apps.jacobi.job import run_job

    first = comm.rank == 0

    def echo(line: str) -> None:
        if not quiet or not as_json:
            typer.echo(line, err=as_json)

    with Progress("collops jacobi", shown=first and not quiet and not options.csv, speaking=first) as progress:
        outcome = run_job(options, comm, progress, echo)
    if first:
        _show(options, outcome, as_json, quiet)
    return ended_short("collops jacobi", outcome.shortfall)


def _show(options: Options, outcome: Outcome, as_json: bool, quiet: bool) -> None:
    if options.compare and not quiet:
        console(to_stderr=as_json).print(_table(outcome))
        for name, reason in outcome.missing.items():
            typer.echo(f"not run: {name} ({reason})", err=as_json)
    for path in outcome.files:
        typer.echo(f"wrote {path}", err=as_json or options.csv)
    if as_json:
        typer.echo(json.dumps(outcome.numbers, allow_nan=False))


jacobi = command_from(
    "jacobi",
    Options,
    _run,
    """Solve Laplace's equation by Jacobi's method, on any number of ranks and with many programming models.

    The problem, the options with one dash and the output are those of NVIDIA's multi-GPU programming samples.
    The values of every variant are compared with those of one rank, bit by bit.
    """,
)


def _table(outcome: Outcome) -> Table:
    from rich import box
    from rich.table import Table

    problem, numbers = outcome.problem, outcome.numbers
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"{problem.nx} x {problem.ny}, {problem.dtype}, {outcome.ranks} {outcome.unit}s",
        title_justify="left",
    )
    table.add_column("variant")
    for heading in ("µs/iteration", "speedup", "efficiency", "of memory limit", "differing"):
        table.add_column(heading, justify="right")

    def of_limit(microseconds: float) -> str:
        limit = numbers["memory_limit_us"]
        return "" if limit is None else f"{100 * limit / microseconds:.0f} %"

    if one := numbers["single"]:
        time = one["us_per_iteration"]
        table.add_row(f"one {outcome.unit}", f"{time:.4g}", "", "", of_limit(time / outcome.ranks), "")
        table.add_section()
    for each in numbers["variants"]:
        time, speedup, differing = each["us_per_iteration"], each["speedup"], each["differing_points"]
        shares = ("", "") if speedup is None else (f"{speedup:.2f}", f"{100 * each['efficiency']:.1f} %")
        differing = "" if differing is None else str(differing)
        table.add_row(each["variant"], f"{time:.4g}", *shares, of_limit(time), differing)
    return table
