"""Run Jacobi's method by one programming model or by all, and check each against one rank point by point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collops.apps.jacobi.lines import csv_line, heading, norm_printer, summary
from collops.apps.jacobi.memory_limit import memory_limit
from collops.apps.jacobi.options import Options
from collops.apps.jacobi.reference import Difference, Reference
from collops.apps.outputs import prepare_folder
from collops.apps.recipe import Listener
from collops.apps.stages import check_memory, engine_of_ranks, local_stage, raised_together
from collops.errors import CollopsError, InputError, LayoutError
from collops.stencil import MODELS, Grid, Problem, Span, make, obstacle, run, timeline_of

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.stencil import Run

__all__ = ["Measured", "Outcome", "run_job"]

_FASTEST = {"numpy": "mpi_overlap", "cupy": "blocked"}  # by engine
_SHOWN = 6  # iterations of a timeline


@dataclass(frozen=True)
class Measured:
    """How one variant did.

    Parameters
    ----------
    name : str
        Of the variant.
    iterations : int
        How many it made.
    seconds : float
        For all of them.
    norm : float
        The last one that was computed.
    difference : Difference or None
        From the run on one rank.
    """

    name: str
    iterations: int
    seconds: float
    norm: float
    difference: Difference | None


@dataclass
class Outcome:
    """What the job gave.

    Parameters
    ----------
    problem : Problem
        What was solved.
    ranks : int
        By how many.
    unit : str
        What a rank is: ``"GPU"`` or ``"CPU"``.
    single : Measured, optional
        The run on one rank.
    variants : list of Measured
        In the order of the course.
    missing : dict of str to str
        Variants that these ranks cannot run, and why.
    limit : float, optional
        Seconds in which the memory of all ranks lets the grid be read once and written once.
    files : list of Path
        What was written.
    """

    problem: Problem
    ranks: int
    unit: str
    single: Measured | None = None
    variants: list[Measured] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    limit: float | None = None
    files: list[Path] = field(default_factory=list)

    def speedup(self, measured: Measured) -> float | None:
        """How many times faster than one rank."""
        if self.single is None:
            return None
        return self.single.seconds / self.single.iterations / (measured.seconds / measured.iterations)

    @property
    def numbers(self) -> dict[str, Any]:
        """All of it, as JSON holds it."""
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
        speedup = self.speedup(measured)
        return {
            "variant": measured.name,
            "iterations": measured.iterations,
            "seconds": measured.seconds,
            "us_per_iteration": 1e6 * measured.seconds / measured.iterations,
            "norm": measured.norm,
            "speedup": speedup,
            "efficiency": None if speedup is None else speedup / (1 if measured is self.single else self.ranks),
            "differing_points": None if measured.difference is None else measured.difference.points,
            "largest_difference": None if measured.difference is None else measured.difference.largest,
        }


def run_job(options: Options, comm: Communicator, listener: Listener, echo: Callable[[str], None]) -> Outcome:
    """Do what the options ask for. Collective.

    Parameters
    ----------
    options : Options
        What the user chose.
    comm : Communicator
        The ranks.
    listener : Listener
        Hears what is being done.
    echo : callable
        Prints a line of what NVIDIA's samples print; called on the first rank only.

    Raises
    ------
    CollopsError
        On every rank, if a variant's values are not those of one rank.
    """
    problem = options.problem()
    engine = engine_of_ranks(options.engine, comm)
    if options.compare or options.timeline:
        with local_stage(comm):
            if comm.rank == 0:
                prepare_folder(Path(options.out))
    with raised_together():
        _check_memory(options, problem, comm, engine)
        reason = obstacle(options.variant, comm, engine) if options.variant not in ("auto", "single") else None
        if reason is not None:
            raise InputError(f"--variant {options.variant}: {reason}")
    outcome = Outcome(problem, comm.size, "GPU" if engine.memory == "device" else "CPU")
    job = _Job(options, problem, comm, engine, listener, echo, outcome)
    if options.compare:
        job.compare()
    else:
        job.one()
    return outcome


def _check_memory(options: Options, problem: Problem, comm: Communicator, engine: Engine) -> None:
    """Raise if the grids exceed the memory, or if blocks do not fit the ranks."""

    def two(rows: int, pitch: int) -> int:
        return 2 * rows * pitch * problem.itemsize

    sharing = comm.local_size if engine.memory == "host" else 1
    needed, remedy = sharing * two(*Grid(problem, comm.size, comm.rank, options.blocks()).shape), ""
    if not options.skip_single_gpu or options.variant == "single":
        needed, remedy = max(needed, two(*Grid(problem, 1, 0).shape)), ", or leave out the run on one rank"
    what = f"two grids of {problem.nx} x {problem.ny} points"
    check_memory(needed, what, f"choose a smaller -nx or -ny{remedy}", engine)


class _Job:
    """One call of the program."""

    def __init__(
        self,
        options: Options,
        problem: Problem,
        comm: Communicator,
        engine: Engine,
        listener: Listener,
        echo: Callable[[str], None],
        outcome: Outcome,
    ) -> None:
        self._options = options
        self._problem = problem
        self._comm = comm
        self._engine = engine
        self._listener = listener
        self._spoken = comm.rank == 0 and not options.csv and not options.compare
        self._echo = echo
        self._outcome = outcome
        self._blocks = options.blocks()

    def one(self) -> None:
        """Run one variant beside the run on one rank."""
        options, outcome, problem = self._options, self._outcome, self._problem
        name = self._chosen()
        if name == "single":
            self._reference()
        else:
            reference = None if options.skip_single_gpu else self._reference()
            self._run(name, reference)
        if self._comm.rank != 0:
            return
        measured = outcome.variants[0] if outcome.variants else outcome.single
        assert measured is not None
        single = None if outcome.single is None else outcome.single.seconds
        if options.csv:
            self._echo(csv_line(name, problem, self._comm.size, measured.seconds, single))
        else:
            for line in summary(problem, self._comm.size, measured.seconds, single, outcome.unit):
                self._echo(line)

    def compare(self) -> None:
        """Run every variant that these ranks can run."""
        outcome = self._outcome
        self._listener.stage("measuring the memory")
        outcome.limit = memory_limit(self._problem, self._comm, self._engine)
        reference = self._reference()
        for name in MODELS:
            if name == "single":
                continue
            reason = obstacle(name, self._comm, self._engine)
            if reason is not None:
                if self._engine.name in MODELS[name].engines:
                    outcome.missing[name] = reason
                continue
            try:
                self._run(name, reference)
            except LayoutError as problem:  # on all ranks alike: the grid has too few points for it
                outcome.missing[name] = str(problem)
        if self._comm.rank == 0:
            from collops.apps.jacobi.pictures import bar_chart

            outcome.files.append(bar_chart(outcome, Path(self._options.out) / "jacobi.png"))

    def _chosen(self) -> str:
        name = self._options.variant
        if name == "auto":
            name = _FASTEST[self._engine.name]
            self._listener.note(f"variant {name}: {MODELS[name].summary}")
        return name

    def _reference(self) -> Reference:
        """Let the first rank run alone."""
        self._listener.stage("one rank alone")
        if self._spoken:
            self._echo(heading(self._problem, f"Single {self._outcome.unit} "))
        report = norm_printer(self._echo) if self._spoken else None
        self._warm_up("single")
        reference = Reference(self._problem, self._comm, self._engine, report)
        if reference.run is not None:
            self._outcome.single = _measured("single", reference.run, None)
        return reference

    def _run(self, name: str, reference: Reference | None) -> None:
        self._listener.stage(name)
        if self._spoken:
            self._echo(heading(self._problem))
        self._warm_up(name)
        with raised_together():
            variant = make(name, self._problem, self._comm, self._engine, self._blocks)
        result = run(variant, norm_printer(self._echo) if self._spoken else None)
        difference = None if reference is None else reference.difference(variant)
        variant.free()
        del variant
        if difference is not None and difference.points:
            self._comm.check(
                CollopsError(
                    f"variant {name}: {difference.points} points differ from those of one rank, by up to "
                    f"{difference.largest:.3g}"
                )
            )
        if self._comm.rank == 0:
            self._outcome.variants.append(_measured(name, result, difference))
        if self._options.timeline:
            self._draw_timeline(name)

    def _warm_up(self, name: str) -> None:
        """Compile, load and connect what the first iterations would, on a grid of hardly any points."""
        if name == "single":
            first = self._comm.rank == 0
            alone = self._comm.split(0 if first else 1) if self._comm.size > 1 else self._comm
            if first:
                assert alone is not None
                self._iterate(name, alone, 1, 1, None)
            return
        down, across = self._blocks or (self._comm.size, 1)
        self._iterate(name, self._comm, down, across, self._blocks)

    def _iterate(self, name: str, comm: Communicator, down: int, across: int, blocks: tuple[int, int] | None) -> None:
        small = Problem(nx=64 * across, ny=16 * down + 2, iterations=4, dtype=self._problem.dtype)
        with raised_together():
            variant = make(name, small, comm, self._engine, blocks)
        run(variant)
        variant.free()

    def _draw_timeline(self, name: str) -> None:
        """Run a few more iterations with events around them, and draw what each rank's streams did."""
        timeline = timeline_of(self._engine)
        variant = make(name, self._problem, self._comm, self._engine, self._blocks, timeline)
        norms = self._engine.xp.zeros(_SHOWN)
        variant.record(_SHOWN)
        variant.advance(_SHOWN, norms)
        self._engine.synchronize()
        self._comm.barrier()
        timeline.start()
        variant.record(_SHOWN)
        variant.advance(_SHOWN, norms)
        rows = [[span.label, span.lane, span.begin, span.end] for span in timeline.spans()]
        variant.free()
        everyone = [[Span(*row) for row in one] for one in self._comm.allgather_metadata(rows)]
        if self._comm.rank == 0:
            from collops.apps.jacobi.pictures import draw_timeline

            path = Path(self._options.out) / f"timeline-{name}.png"
            self._outcome.files.append(draw_timeline(name, everyone, path))


def _measured(name: str, result: Run, difference: Difference | None) -> Measured:
    return Measured(name, result.iterations, result.seconds, list(result.norms.values())[-1], difference)
