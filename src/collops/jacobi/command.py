"""``collops jacobi``: NVIDIA's multi-GPU samples as one program, with the same options and output."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from collops.extend.commands import Progress, command_from, console, ended_short, table_of_numbers
from collops.extend.communication import NO_P2P
from collops.jacobi.job import Options

if TYPE_CHECKING:
    from rich.table import Table

    from collops import Communicator
    from collops.jacobi.job import Outcome


def _run(options: Options, comm: Communicator, as_json: bool, quiet: bool) -> int:
    from collops.jacobi.job import run_job

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
    if options.profile and not quiet:
        console(to_stderr=as_json or options.csv).print(_profiles(outcome))
    for path in outcome.files:
        typer.echo(f"wrote {path}", err=as_json or options.csv)
    if as_json:
        typer.echo(json.dumps(outcome.numbers, allow_nan=False))


def _begin(options: Options) -> None:
    if options.nop2p:
        os.environ[NO_P2P] = "1"


jacobi = command_from(
    "jacobi",
    Options,
    _run,
    help="""Solve Laplace's equation by Jacobi's method, on any number of ranks and with many programming models.

    The problem, the options with one dash and the output agree with NVIDIA's multi-GPU programming samples.
    The values of every variant are compared bitwise with the values of one rank.
    """,
    begin=_begin,
)


def _table(outcome: Outcome) -> Table:
    problem, numbers = outcome.problem, outcome.numbers
    title = f"{problem.nx} x {problem.ny}, {problem.dtype}, {outcome.ranks} {outcome.unit}s"
    headings = ("variant", "µs/iteration", "speedup", "efficiency", "of memory limit", "differing")
    table = table_of_numbers(title, *headings)

    def of_limit(microseconds: float, devices: int) -> str:
        limit = numbers["memory_limit_us"]  # of one device for each rank
        return "" if limit is None else f"{100 * limit * outcome.ranks / devices / microseconds:.0f} %"

    def add(name: str, row: Mapping[str, Any], differing: int | None = None) -> None:
        time, devices, shares = row["us_per_iteration"], row["devices"], ("", "")
        if single is not None and row is not single:
            speedup = single["us_per_iteration"] / time
            shares = f"{speedup:.2f}", f"{100 * speedup / devices:.1f} %"
        differing_points = "" if differing is None else str(differing)
        table.add_row(name, f"{time:.4g}", *shares, of_limit(time, devices), differing_points)

    if (single := numbers["single"]) is not None:
        add(f"one {outcome.unit}", single)
        table.add_section()
    for variant in numbers["variants"]:
        add(variant["variant"], variant, variant["differing_points"])
    table.add_section()
    for peer in numbers["peers"]:
        add(f"{peer['name']} (peer)", peer)
    return table


def _profiles(outcome: Outcome) -> Table:
    runs = [(measured, measured.profile) for measured in outcome.variants if measured.profile is not None]
    lengths = [f"in {part.iterations}" for run, profile in runs[:1] for part in (run, profile.longer)]
    title = "µs per iteration, mean over the ranks: sweeps, and the idle time between them"
    headings = ("variant", "first call", *lengths, "sweeps", "idle", "messages", "gaps", "hidden")
    table = table_of_numbers(title, *headings)
    for run, profile in runs:
        times = [run.seconds_per_iteration, profile.longer.seconds_per_iteration]
        times += [profile.mean(share) for share in ("sweeps", "idle", "exposed", "gaps", "hidden")]
        table.add_row(run.name, f"{profile.first:.3g} s", *(f"{round(1e6 * time, 3):.4g}" for time in times))
    return table
