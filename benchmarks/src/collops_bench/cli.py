"""``collops bench`` and ``collops report``: run a benchmark, or generate plots, tables and a page from records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from collops.cli.command import Debug, Engine, Ranks, Transport, check_engine, guarded, with_world
from collops.cli.console import console
from collops.errors import InputError
from collops_bench.everything import Quick, bench_all
from collops_bench.record import Measurement, Record, default_path, prepare_record, read_folder, write_record
from collops_bench.registry import BENCHMARKS, Benchmark, Options, run
from collops_bench.repetition import bench_published
from collops_bench.speed import replace_between, seconds_in_words, update_readme

if TYPE_CHECKING:
    from collops.comm import Communicator
    from collops_bench.timing import Spread

__all__ = ["application", "main", "report"]

application = typer.Typer(
    name="bench", help="Measure collops and its peers, and report the results.", no_args_is_help=True
)

_File = Annotated[
    Path | None,
    typer.Option("--json", help="File of the record.", show_default="benchmarks/results/NAME-MACHINE-RANKS.json"),
]
_NoPeer = Annotated[bool, typer.Option("--no-peer", help="Do not run the peer.")]
_Programs = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="NAME=PATH", help="jacobi alone: also run a program, as in collops jacobi."),
]


def _add(benchmark: Benchmark) -> None:
    """Add the command of one benchmark."""
    name = benchmark.name

    @application.command(name, help=benchmark.summary)
    def command(
        *,
        ranks: Ranks = None,
        engine: Engine = "auto",
        transport: Transport = "auto",
        quick: Quick = False,
        json: _File = None,
        no_peer: _NoPeer = False,
        peer: _Programs = None,
        debug: Debug = False,
    ) -> None:
        options = Options(quick=quick, peer=not no_peer, transport=transport, programs=tuple(peer or ()))

        def body(comm: Communicator) -> None:
            _measure(comm, name, engine, options, json)

        def check() -> None:
            from collops.jacobi.samples import check_commands

            check_engine(engine)
            if peer and name != "jacobi":
                raise InputError("--peer NAME=PATH is for collops bench jacobi")
            check_commands(peer)

        with_world(
            f"collops bench {name}",
            body,
            ranks=ranks,
            transport=transport,
            debug=debug,
            check=check,
            own_device=benchmark.own_device,
        )


def _measure(comm: Communicator, name: str, engine: str, options: Options, path: Path | None) -> None:
    from collops.apps.stages import engine_of_ranks, local_stage

    chosen = engine_of_ranks(engine, comm)
    where = console(to_stderr=False) if comm.rank == 0 else None
    with local_stage(comm):
        if where is not None and path is not None:
            prepare_record(path)

    def report(record: Record, measurement: Measurement) -> None:
        with local_stage(comm):
            if where is not None:
                where.print(_lines(measurement), markup=False, soft_wrap=True)
                # After every measurement, so that none is lost if the run stops later.
                write_record(record, path or default_path(record))

    record = run(name, comm, chosen, options, report=report)
    if where is not None:
        said = f"wrote {path or default_path(record)}" if record.measurements else "nothing to measure on one rank"
        where.print(said, markup=False, soft_wrap=True)


def _lines(measurement: Measurement) -> str:
    """Return one measurement as text."""

    def shown(clock: Spread) -> str:
        return seconds_in_words(clock.median)

    details = ", ".join(f"{key} {value}" for key, value in measurement.parameters.items())
    lines = [f"{measurement.case} ({details})"]
    for program, timing in measurement.timings.items():
        spread = timing.wall
        clocks = ", ".join(f"{name} {shown(clock)}" for name, clock in timing.clocks.items() if name != "wall")
        bounds = f"{seconds_in_words(spread.minimum)} to {seconds_in_words(spread.maximum)}"
        lines.append(f"  {program:26s} {shown(spread):>9s}  ({bounds}; {clocks})")
    lines += [
        f"  {program:26s} {', '.join(f'{name} {value:.3g}' for name, value in figures.items())}"
        for program, figures in measurement.figures.items()
    ]
    lines += [f"  {program:26s} not measured: {reason}" for program, reason in measurement.missing.items()]
    if measurement.speedup is not None:
        lines.append(f"  {measurement.ours} is {measurement.speedup:.3g} times as fast as {measurement.peer}")
    return "\n".join(lines)


@application.command()
def plot(
    *,
    results: Annotated[Path, typer.Option(help="Folder of the recorded results.")] = Path("benchmarks/results"),
    out: Annotated[Path, typer.Option(help="Folder for the plots.")] = Path("benchmarks/plots"),
    readme: Annotated[
        Path | None, typer.Option(help="File in which to update the table of speed.", show_default="none")
    ] = None,
    scaling: Annotated[
        Path | None, typer.Option(help="File in which to update the tables of scaling.", show_default="none")
    ] = None,
    debug: Debug = False,
) -> None:
    """Plot bandwidths, speeds relative to peers, and scaling; update the tables of the README and of scaling."""

    def run() -> int:
        from collops_bench.plots import write_plots
        from collops_bench.prediction import BEGIN, END, scaling_of, scaling_tables

        records = list(read_folder(results).values())
        for path in write_plots(records, out):
            typer.echo(f"wrote {path}")
        if readme is not None:
            update_readme(readme, records)
            typer.echo(f"rewrote the table of speed in {readme}")
        if scaling is not None:
            replace_between(scaling, BEGIN, END, scaling_tables(scaling_of(records)))
            typer.echo(f"rewrote the tables of scaling in {scaling}")
        return 0

    raise typer.Exit(guarded("collops bench plot", run, debug=debug))


@application.command()
def predict(
    *,
    hosts: Annotated[
        list[int], typer.Option(help="Number of hosts; give it several times for several columns.", min=1)
    ],
    ranks_per_host: Annotated[int, typer.Option(help="Ranks, and GPUs, of each host.", min=1)],
    adapters: Annotated[int, typer.Option(help="Network adapters of each host.", min=1)],
    adapter_bandwidth: Annotated[
        float, typer.Option(help="Measured bandwidth of one adapter, each way, GB/s (1e9 B/s).")
    ],
    adapter_latency: Annotated[
        float, typer.Option(help="Measured microseconds that a message to another host takes longer than one within.")
    ],
    results: Annotated[Path, typer.Option(help="Folder of the recorded results.")] = Path("benchmarks/results"),
    debug: Debug = False,
) -> None:
    """Predict the time of an iteration on several hosts, each like the machine of the records.

    The model is fitted to the records of limits and of scaling of one host.
    """

    def run() -> int:
        from collops_bench.model import Network
        from collops_bench.prediction import predictions, scaling_of

        network = Network(ranks_per_host, adapters, 1e-6 * adapter_latency, 1e9 * adapter_bandwidth)
        scaling = scaling_of(read_folder(results).values(), network)
        typer.echo(predictions(scaling, [count * ranks_per_host for count in hosts]))
        return 0

    raise typer.Exit(guarded("collops bench predict", run, debug=debug))


application.command("all")(bench_all)
application.command("published")(bench_published)
for _benchmark in BENCHMARKS.values():
    _add(_benchmark)


def report(
    results: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder of the recorded results.")] = Path(
        "benchmarks/results"
    ),
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="The page.")] = Path("report.html"),
    debug: Debug = False,
) -> None:
    """Write one self-contained page with tables and plots of all recorded runs, their peers and limits."""

    def run() -> int:
        from collops.apps.files import atomic, check_writable
        from collops_bench.page import report_page

        check_writable(out)
        page = report_page(read_folder(results))
        with atomic(out) as temporary:
            temporary.write_text(page, encoding="utf-8")
        typer.echo(f"wrote {out}")
        return 0

    raise typer.Exit(guarded("collops report", run, debug=debug))


def main() -> NoReturn:
    """Run ``collops-bench ...`` as ``collops bench ...``."""
    from collops.cli import main as collops

    # Launched ranks get the same arguments.
    sys.argv.insert(1, "bench")
    collops()
