"""``collops jacobi``: run one programming model or all, and compare each with one rank.

The options with one dash and the lines of output equal those of NVIDIA's samples, so that scripts can read either.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from collops import profile
from collops.apps.files import check_absent, prepare_folder
from collops.apps.jacobi import MODELS, Grid, Problem, make, obstacle, run
from collops.apps.jacobi.measure import Difference, Reference, Run, first_rank, memory_limit
from collops.apps.jacobi.timeline import Span, draw_timeline, spans_of
from collops.apps.options import (
    METHOD,
    AtLeast,
    Dtype,
    EngineName,
    Folder,
    NotNegative,
    OneOf,
    Overwrite,
    check_must,
    option,
)
from collops.apps.pictures import figure
from collops.apps.recipe import Listener
from collops.apps.stages import check_memory, engine_of_ranks, local_stage, raised_together
from collops.errors import CollopsError, InputError, LayoutError

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["Measured", "Options", "Outcome", "csv_line", "heading", "norm_line", "run_job", "summary"]

_GRID, _OUTPUT = "Grid", "Output"
_FASTEST = {"numpy": "mpi_overlap", "cupy": "blocked"}  # by engine
_TOLERANCE = 1e-8
_PRINTED = 100  # iterations from one printed norm to the next
_SHOWN = 6  # iterations of a timeline


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of ``collops jacobi``."""

    variant: Annotated[
        str, option(f"How ranks work together: auto, {', '.join(MODELS)}.", METHOD), OneOf("auto", *MODELS)
    ] = "auto"
    nx: Annotated[int, option("Columns.", _GRID, "--nx", "-nx"), AtLeast(3)] = 16384
    ny: Annotated[int, option("Rows.", _GRID, "--ny", "-ny"), AtLeast(3)] = 16384
    process_grid: Annotated[str | None, option("Blocks down and across, as 2x2.", _GRID, show_default="whole rows")] = (
        None
    )
    niter: Annotated[int, option("Iterations, at most.", METHOD, "--niter", "-niter"), AtLeast(1)] = 1000
    nccheck: Annotated[int, option("Iterations from norm to norm.", METHOD, "--nccheck", "-nccheck"), AtLeast(1)] = 1
    tolerance: Annotated[
        float | None, option("Norm of the update at which to stop.", METHOD, show_default="1e-8"), NotNegative
    ] = None
    dtype: Dtype = "float32"
    engine: EngineName = "auto"
    skip_single_gpu: Annotated[
        bool,
        option(
            "Leave out the run on one rank, and with it the check of values.",
            _OUTPUT,
            "--skip-single-gpu",
            "-skip_single_gpu",
        ),
    ] = False
    csv: Annotated[bool, option("Print one line for a table.", _OUTPUT, "--csv", "-csv")] = False
    compare: Annotated[bool, option("Run and check all variants; print a table, draw it.", _OUTPUT, "--compare")] = (
        False
    )
    timeline: Annotated[bool, option("Draw the work of each stream.", _OUTPUT, "--timeline")] = False
    out: Annotated[str, option("Folder for the pictures.", metavar="DIR"), Folder] = "collops-result"
    overwrite: Overwrite = False

    def results(self) -> list[Path]:
        """Return the pictures that will be drawn; of timelines those of all variants that may run."""
        names = ["jacobi.png"] if self.compare else []
        if self.timeline:
            names += [f"timeline-{name}.png" for name in MODELS if self.compare or self.variant in ("auto", name)]
        return [Path(self.out) / name for name in names]

    def check(self) -> None:
        """Raise `InputError` if a value is not allowed or options contradict each other."""
        check_must(self)
        if self.compare and self.variant != "auto":
            raise InputError("--compare runs every variant: leave out --variant")
        if self.compare and (self.csv or self.skip_single_gpu):
            raise InputError("--compare checks all variants against one rank: leave out -csv and -skip_single_gpu")
        self.blocks()

    def blocks(self) -> tuple[int, int] | None:
        """Return the process grid."""
        if self.process_grid is None:
            return None
        found = re.fullmatch(r"([1-9]\d*)[xX]([1-9]\d*)", self.process_grid.strip())
        if found is None:
            raise InputError(f"--process-grid must be like 2x2 (blocks down and across), not {self.process_grid!r}")
        return int(found[1]), int(found[2])

    def problem(self) -> Problem:
        """Return what is to be solved."""
        tolerance = _TOLERANCE if self.tolerance is None else self.tolerance
        return Problem(self.nx, self.ny, self.niter, self.nccheck, tolerance, self.dtype)


@dataclass(frozen=True, kw_only=True)
class Measured(Run):
    """The run of one variant."""

    name: str
    difference: Difference | None = None  # from the run on one rank


@dataclass
class Outcome:
    """The results of the command; the first rank alone lists runs and files."""

    problem: Problem
    ranks: int
    unit: str  # "GPU" or "CPU": what a rank computes on
    single: Measured | None = None  # the run on one rank
    variants: list[Measured] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # variants that these ranks cannot run, and why
    limit: float | None = None  # seconds in which the memory of all ranks can read and write the grid once
    files: list[Path] = field(default_factory=list)
    shortfall: str | None = None  # says on every rank that a tolerance that the user asked for was not reached

    @property
    def numbers(self) -> dict[str, Any]:
        """All results, as JSON holds them."""
        return {
            "problem": asdict(self.problem),
            "ranks": self.ranks,
            "unit": self.unit,
            "memory_limit_us": None if self.limit is None else 1e6 * self.limit,
            "single": None if self.single is None else self._numbers(self.single),
            "variants": [self._numbers(measured) for measured in self.variants],
            "missing": self.missing,
            "files": [str(path) for path in self.files],
        }

    def _numbers(self, measured: Measured) -> dict[str, Any]:
        single, seconds, difference = self.single, measured.seconds_per_iteration, measured.difference
        speedup = None if single is None else single.seconds_per_iteration / seconds
        return {
            "variant": measured.name,
            "iterations": measured.iterations,
            "seconds": measured.seconds,
            "us_per_iteration": 1e6 * seconds,
            "norm": list(measured.norms.values())[-1],
            "speedup": speedup,
            "efficiency": None if speedup is None else speedup / (1 if measured is single else self.ranks),
            "differing_points": None if difference is None else difference.points,
            "largest_difference": None if difference is None else difference.largest,
        }


def heading(problem: Problem, who: str = "") -> str:
    """Return the line before a run; `who` is ``"Single GPU "`` or nothing."""
    name = f"{who}jacobi" if who else "Jacobi"
    return (
        f"{name} relaxation: {problem.iterations} iterations on {problem.ny} x {problem.nx} mesh "
        f"with norm check every {problem.check} iterations"
    )


def norm_line(iteration: int, norm: float) -> str:
    """Return the line of every hundredth iteration."""
    return f"{iteration:5d}, {norm:0.6f}"


def summary(problem: Problem, ranks: int, seconds: float, single: float | None, unit: str = "GPU") -> list[str]:
    """Return the lines at the end; `single` is the time of one rank, if it was measured."""
    size = f"{problem.nx}x{problem.ny}"
    first = f"Num {unit}s: {ranks}."
    if single is None:
        return [first, f"{size}: {ranks} {unit}s: {seconds:8.4f} s "]
    speedup = single / seconds
    return [
        first,
        f"{size}: 1 {unit}: {single:8.4f} s, {ranks} {unit}s: {seconds:8.4f} s, "
        f"speedup: {speedup:8.2f}, efficiency: {100 * speedup / ranks:8.2f} ",
    ]


def csv_line(variant: str, problem: Problem, ranks: int, seconds: float, single: float | None) -> str:
    """Return the line for a table; without a run on one rank its time is 0."""
    return (
        f"{variant}, {problem.nx}, {problem.ny}, {problem.iterations}, {problem.check}, {ranks}, 1, "
        f"{seconds:f}, {single or 0.0:f}"
    )


def run_job(options: Options, comm: Communicator, listener: Listener, echo: Callable[[str], None]) -> Outcome:
    """Run one variant, or all of them. Collective.

    The first rank calls `echo` with each line that NVIDIA's samples would print.

    Raises
    ------
    InputError
        On every rank, if these ranks cannot do what the options ask for.
    CollopsError
        On every rank, if a variant's values are not those of one rank.
    """
    engine = engine_of_ranks(options.engine, comm)
    if options.compare or options.timeline:
        with local_stage(comm):
            if comm.rank == 0:
                if not options.overwrite:
                    check_absent(options.results())
                prepare_folder(Path(options.out))
    with local_stage(comm):
        _check_memory(options, comm, engine)
    with raised_together():
        reason = obstacle(options.variant, comm, engine) if options.variant not in ("auto", "single") else None
        if reason is not None:
            raise InputError(f"--variant {options.variant}: {reason}")
    job = _Job(options, comm, engine, listener, echo)
    if options.compare:
        job.compare()
    else:
        job.one()
    if options.tolerance:
        job.outcome.shortfall = comm.allgather_metadata(_shortfall(job.outcome))[0]
    return job.outcome


def _shortfall(outcome: Outcome) -> str | None:
    """Say on the first rank, which alone has the runs, that one did not reach the tolerance, if so."""
    for each in (*filter(None, [outcome.single]), *outcome.variants):
        if each.reached is None:
            norm = list(each.norms.values())[-1]
            return (
                f"the tolerance {outcome.problem.tolerance:g} was not reached in {each.iterations} iterations (the "
                f"norm of the update is {norm:.3g}): raise -niter, or --tolerance"
            )
    return None


def _check_memory(options: Options, comm: Communicator, engine: Engine) -> None:
    """Raise if the grids exceed the memory, or if blocks do not fit the ranks."""
    problem = options.problem()

    def two(rows: int, pitch: int) -> int:
        return 2 * rows * pitch * problem.itemsize

    what, remedy = f"two grids of {problem.nx} x {problem.ny} points", "choose a smaller -nx or -ny"
    own = two(*Grid(problem, comm.size, comm.rank, options.blocks()).shape)
    check_memory(own, what if comm.size == 1 else f"the parts of a rank of {what}", remedy, engine, comm.local_size)
    if not options.skip_single_gpu or options.variant == "single":
        check_memory(two(*Grid(problem, 1, 0).shape), what, f"{remedy}, or leave out the run on one rank", engine)


@dataclass
class _Job:
    """One call of the program."""

    options: Options
    comm: Communicator
    engine: Engine
    listener: Listener
    echo: Callable[[str], None]

    def __post_init__(self) -> None:
        self.problem = self.options.problem()
        self.blocks = self.options.blocks()
        self.prints = self.comm.rank == 0 and not self.options.csv and not self.options.compare
        self.outcome = Outcome(self.problem, self.comm.size, "GPU" if self.engine.memory == "device" else "CPU")

    def one(self) -> None:
        """Run one variant, after one rank alone."""
        options, outcome, problem, comm = self.options, self.outcome, self.problem, self.comm
        name = options.variant
        if name == "auto":
            name = _FASTEST[self.engine.name]
            self.listener.note(f"variant {name}: {MODELS[name].summary}")
        if name == "single":
            self._reference()
        else:
            self._run(name, None if options.skip_single_gpu else self._reference())
        if comm.rank != 0:
            return
        single = None if outcome.single is None else outcome.single.seconds
        seconds = outcome.variants[0].seconds if outcome.variants else single
        assert seconds is not None
        if options.csv:
            self.echo(csv_line(name, problem, comm.size, seconds, single))
        else:
            for line in summary(problem, comm.size, seconds, single, outcome.unit):
                self.echo(line)

    def compare(self) -> None:
        """Run every variant that these ranks can run."""
        outcome = self.outcome
        self.listener.stage("measuring the memory")
        outcome.limit = memory_limit(self.problem, self.comm, self.engine)
        reference = self._reference()
        for name, model in MODELS.items():
            if name == "single" or self.engine.name not in model.engines:
                continue
            reason = obstacle(name, self.comm, self.engine)
            if reason is None:
                try:
                    self._run(name, reference)
                except LayoutError as error:  # on all ranks alike: the grid has too few points for the variant
                    reason = str(error)
            if reason is not None:
                outcome.missing[name] = reason
        if self.comm.rank == 0:
            outcome.files.append(bar_chart(outcome, Path(self.options.out) / "jacobi.png"))

    def _reference(self) -> Reference:
        """Run on the first rank alone."""
        self.listener.stage("one rank alone")
        report = self._announced(f"Single {self.outcome.unit} ")
        alone = first_rank(self.comm)
        if alone is not None:
            self._warm_up("single", alone, None)
        reference = Reference(self.problem, self.comm, self.engine, report)
        if reference.run is not None:
            self.outcome.single = Measured(**vars(reference.run), name="single")
        return reference

    def _run(self, name: str, reference: Reference | None) -> None:
        """Run a variant, and compare it with the reference."""
        self.listener.stage(name)
        report = self._announced()
        self._warm_up(name, self.comm, self.blocks)
        with raised_together():
            variant = make(name, self.problem, self.comm, self.engine, self.blocks)
        result = run(variant, report)
        difference = None if reference is None else reference.difference(variant)
        variant.free()
        del variant
        if difference is not None and difference.points:
            self.comm.check(
                CollopsError(
                    f"variant {name}: {difference.points} points differ from those of one rank, by up to "
                    f"{difference.largest:.3g}"
                )
            )
        if self.comm.rank == 0:
            self.outcome.variants.append(Measured(**vars(result), name=name, difference=difference))
        if self.options.timeline:
            self._draw_timeline(name)

    def _announced(self, who: str = "") -> Callable[[int, float], None] | None:
        """Print the heading of a run, and return what prints its norms; nothing where no sentences are printed."""
        if not self.prints:
            return None
        self.echo(heading(self.problem, who))

        def report(iteration: int, norm: float) -> None:
            if iteration % _PRINTED == 0:
                self.echo(norm_line(iteration, norm))

        return report

    def _warm_up(self, name: str, comm: Communicator, blocks: tuple[int, int] | None) -> None:
        """Run on a tiny grid, so that the first iterations need not compile, load and connect."""
        down, across = blocks or (comm.size, 1)
        small = Problem(nx=64 * across, ny=16 * down + 2, iterations=4, dtype=self.problem.dtype)
        with raised_together():
            variant = make(name, small, comm, self.engine, blocks)
        run(variant)
        variant.free()

    def _draw_timeline(self, name: str) -> None:
        """Run a few more iterations, and draw when each stream of all ranks did its work."""
        variant = make(name, self.problem, self.comm, self.engine, self.blocks)
        norms = self.engine.xp.zeros(_SHOWN)
        variant.record(_SHOWN)
        variant.advance(_SHOWN, norms)
        variant.record(_SHOWN)
        self.engine.synchronize()
        self.comm.barrier()
        with profile.record() as recording:
            variant.advance(_SHOWN, norms)
        spans = self.comm.allgather_metadata([list(span) for span in spans_of(recording, self.engine)])
        variant.free()
        if self.comm.rank == 0:
            path = Path(self.options.out) / f"timeline-{name}.png"
            self.outcome.files.append(draw_timeline(name, [[Span(*row) for row in rank] for rank in spans], path))


def bar_chart(outcome: Outcome, path: Path) -> Path:
    """Draw the time of an iteration by variant, and the time of a single sweep at the speed of the memory."""
    problem, unit, ranks, limit = outcome.problem, outcome.unit, outcome.ranks, outcome.limit
    times = {measured.name: 1e6 * measured.seconds_per_iteration for measured in outcome.variants}
    if outcome.single is not None:
        times = {f"one {unit} / {ranks}": 1e6 * outcome.single.seconds_per_iteration / ranks} | times
    with figure(path, 1, (8.0, 1.6 + 0.34 * len(times))) as (_, (axes,)):
        places = range(len(times))
        bars = axes.barh(places, list(times.values()), height=0.7, color="#3f7cac")
        axes.bar_label(bars, [f"{time:.4g}" for time in times.values()], padding=3)
        axes.set_yticks(places, list(times))
        axes.invert_yaxis()
        axes.margins(x=0.12)
        if limit is not None:
            axes.axvline(1e6 * limit, color="#b5442e", linewidth=1.2)
            axes.set_xlabel(f"µs an iteration; the line is the memory's limit of one sweep, {1e6 * limit:.4g} µs")
        axes.set_title(f"{problem.nx} x {problem.ny}, {problem.dtype}, {ranks} {unit}s")
    return path
