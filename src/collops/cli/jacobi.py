"""``collops jacobi``: NVIDIA's multi-GPU samples as one program, with their options and their output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collops.apps.jacobi import MODELS
from collops.apps.jacobi.job import Options
from collops.cli.console import Progress, console
from collops.cli.job import with_world
from collops.cli.options import Debug, Dtype, Engine, Json, Out, Quiet, Ranks, Transport

if TYPE_CHECKING:
    from rich.table import Table

    from collops.apps.jacobi.job import Outcome
    from collops.comm import Communicator

__all__ = ["jacobi"]

_GRID, _METHOD, _OUTPUT = "Grid", "Method", "Output"
_DEFAULT = Options()


def jacobi(
    *,
    ranks: Ranks = None,
    transport: Transport = "auto",
    variant: Annotated[
        str, typer.Option(help=f"How ranks work together: auto, {', '.join(MODELS)}.", rich_help_panel=_METHOD)
    ] = _DEFAULT.variant,
    nx: Annotated[int, typer.Option("--nx", "-nx", help="Columns.", rich_help_panel=_GRID)] = _DEFAULT.nx,
    ny: Annotated[int, typer.Option("--ny", "-ny", help="Rows.", rich_help_panel=_GRID)] = _DEFAULT.ny,
    process_grid: Annotated[
        str | None,
        typer.Option(help="Blocks down and across, as 2x2.", show_default="whole rows", rich_help_panel=_GRID),
    ] = None,
    niter: Annotated[
        int, typer.Option("--niter", "-niter", help="Most iterations.", rich_help_panel=_METHOD)
    ] = _DEFAULT.niter,
    nccheck: Annotated[
        int, typer.Option("--nccheck", "-nccheck", help="Iterations from norm to norm.", rich_help_panel=_METHOD)
    ] = _DEFAULT.nccheck,
    tolerance: Annotated[
        float, typer.Option(help="Norm of the update at which to stop.", rich_help_panel=_METHOD)
    ] = _DEFAULT.tolerance,
    dtype: Dtype = _DEFAULT.dtype,
    engine: Engine = _DEFAULT.engine,
    skip_single_gpu: Annotated[
        bool,
        typer.Option(
            "--skip-single-gpu",
            "-skip_single_gpu",
            help="Leave out the run on one rank, and with it the check of values.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    csv: Annotated[
        bool, typer.Option("--csv", "-csv", help="Print one line for a table.", rich_help_panel=_OUTPUT)
    ] = False,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Run and check all variants; print a table, draw it.", rich_help_panel=_OUTPUT),
    ] = False,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Draw what each stream did.", rich_help_panel=_OUTPUT)
    ] = False,
    out: Out = _DEFAULT.out,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Solve Laplace's equation by Jacobi's method, on any number of ranks and by many programming models.

    The problem, the options with one dash and the output are those of NVIDIA's multi-GPU programming samples.
    Every variant is checked against one rank, to the bit.
    """
    options = Options(
        variant=variant,
        nx=nx,
        ny=ny,
        niter=niter,
        nccheck=nccheck,
        tolerance=tolerance,
        dtype=dtype,
        engine=engine,
        process_grid=process_grid,
        skip_single_gpu=skip_single_gpu,
        csv=csv,
        compare=compare,
        timeline=timeline,
        out=out,
    )

    def body(comm: Communicator) -> None:
        from collops.apps.jacobi.job import run_job

        first = comm.rank == 0

        def echo(line: str) -> None:
            if not quiet or not as_json:
                typer.echo(line, err=as_json)

        with Progress("collops jacobi", shown=first and not quiet and not csv, speaking=first) as progress:
            outcome = run_job(options, comm, progress, echo)
        if not first:
            return
        if compare and not quiet:
            console(to_stderr=as_json).print(_table(outcome))
            for name, reason in outcome.missing.items():
                typer.echo(f"not run: {name} ({reason})", err=as_json)
        for path in outcome.files:
            typer.echo(f"wrote {path}", err=as_json or csv)
        if as_json:
            typer.echo(json.dumps(outcome.numbers, allow_nan=False))

    with_world("collops jacobi", body, ranks=ranks, transport=transport, debug=debug, check=options.check)


def _table(outcome: Outcome) -> Table:
    from rich import box
    from rich.table import Table

    problem = outcome.problem
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"{problem.nx} x {problem.ny}, {problem.dtype}, {outcome.ranks} {outcome.unit}s",
        title_justify="left",
    )
    table.add_column("variant")
    for heading in ("µs/iteration", "speedup", "efficiency", "of memory limit", "differing"):
        table.add_column(heading, justify="right")
    if outcome.single is not None:
        one = outcome.single.seconds / outcome.single.iterations
        table.add_row(f"one {outcome.unit}", f"{1e6 * one:.4g}", "", "", _share(outcome, one / outcome.ranks), "")
        table.add_section()
    for measured in outcome.variants:
        seconds = measured.seconds / measured.iterations
        speedup = outcome.speedup(measured)
        table.add_row(
            measured.name,
            f"{1e6 * seconds:.4g}",
            "" if speedup is None else f"{speedup:.2f}",
            "" if speedup is None else f"{100 * speedup / outcome.ranks:.1f} %",
            _share(outcome, seconds),
            "" if measured.difference is None else str(measured.difference.points),
        )
    return table


def _share(outcome: Outcome, seconds: float) -> Any:
    return "" if outcome.limit is None else f"{100 * outcome.limit / seconds:.0f} %"
