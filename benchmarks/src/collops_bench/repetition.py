"""``collops bench published``: repeat what the literature reports, and write tables and pictures of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collops.cli.command import Debug, Engine, guarded
from collops.cli.console import console
from collops.comm.nccl import NO_P2P
from collops_bench.everything import Limit, NoPeers, Outcome, Quick, RanksOfEach, planned, show
from collops_bench.published import Section, sections, text_of
from collops_bench.record import read_folder

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["bench_published"]

_NAMES = ("collectives", "lsm", "jacobi", "jax", "starforest", "pairwise")
_CPU_DEVICES = {"JAX_NUM_CPU_DEVICES": "3"}  # as many as NCCL4JAX had GPUs


def bench_published(
    *,
    ranks: RanksOfEach = None,
    engine: Engine = "auto",
    quick: Quick = False,
    no_peer: NoPeers = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the records, the tables and the pictures.")] = (
        Path("collops-published")
    ),
    results: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run nothing: take the records of this folder.")
    ] = None,
    limit: Limit = 1800.0,
    debug: Debug = False,
) -> None:
    """Repeat what the literature reports on this machine, and compare.

    Runs the benchmarks of collectives, migration, Jacobi's method, JAX, star forests and pairs of ranks, on GPUs also
    collectives without access between GPUs, and collectives and migration on hosts. Writes tables of published and
    measured figures with a picture each.
    """

    def run() -> int:
        plan = planned(_NAMES, out, engine, ranks=ranks, quick=quick, no_peer=no_peer, limit=limit)
        where = console(to_stderr=False)
        outcomes: list[Outcome] = []
        if results is None:
            show(plan, where, outcomes)
            records = [outcome.record for outcome in outcomes if outcome.record is not None]
            alone = replace(plan, names=["jax"], folder=out / "one-process", ranks=1, environment=_CPU_DEVICES)
            options = ["--engine", "numpy", *(["--no-peer"] if no_peer else [])]
            hosts = replace(plan, names=["collectives", "lsm"], folder=out / "hosts", options=options)
            slow = replace(plan, names=["collectives"], folder=out / "without-p2p", environment={NO_P2P: "1"})
            for extra in [alone, *([slow, hosts] if any(record.engine == "cupy" for record in records) else [])]:
                show(extra, where, outcomes)
        else:
            records = list(read_folder(results).values())
        records = [outcome.record for outcome in outcomes if outcome.record is not None] or records
        _write(sections(records), out, where)
        return 1 if any(outcome.problem for outcome in outcomes) else 0

    raise typer.Exit(guarded("collops bench published", run, debug=debug))


def _write(made: Sequence[Section], out: Path, where: Console) -> None:
    """Print all tables, and write them with their pictures."""
    from rich.table import Table

    text = []
    for section in made:
        table = Table(box=None, pad_edge=False)
        for number, column in enumerate(section.head):
            table.add_column(column, justify="right" if number else "left", overflow="fold")
        for row in section.rows:
            table.add_row(*row)
        where.print()
        where.print(section.title, style="bold", markup=False, soft_wrap=True)
        where.print(table, markup=False)
        picture = section.picture(out)
        text.append(text_of(section) + (f"\n![{section.title}]({picture.name})\n" if picture else ""))
    (out / "published.md").write_text("\n".join(text), encoding="utf-8")
    where.print()
    where.print(f"wrote {out / 'published.md'}", markup=False, soft_wrap=True)
