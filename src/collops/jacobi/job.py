"""``collops jacobi``: run one programming model or all, and compare each with one rank.

The options with one dash and the output are the same as in NVIDIA's samples, so that scripts can read either.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from collops.errors import CollopsError, InputError, LayoutError
from collops.extend.applications import (
    METHOD,
    AtLeast,
    Dtype,
    EngineName,
    Folder,
    Listener,
    NotNegative,
    OneOf,
    Overwrite,
    check_absent,
    check_memory,
    check_must,
    engine_of_ranks,
    figure,
    local_stage,
    option,
    prepare_folder,
)
from collops.extend.communication import NO_P2P, raised_together
from collops.jacobi import MODELS, Grid, Problem, make, obstacle, run
from collops.jacobi.measure import Difference, Reference, Run, first_rank, memory_limit, trial
from collops.jacobi.one_process import OneProcess
from collops.jacobi.samples import Sample, check_commands, command_of, run_sample
from collops.jacobi.timeline import Shares, Span, draw_timeline, record_spans, shares_of

if TYPE_CHECKING:
    from collops import Communicator
    from collops.extend.engines import Engine
    from collops.jacobi import Variant

_GRID, _OUTPUT = "Grid", "Output"
_TOLERANCE = 1e-8
_PRINTED = 100  # iterations from one printed norm to the next
_SHOWN = 6  # iterations of a timeline
_PROFILED = 20  # iterations whose time is divided
_LONGER = 5  # times as many iterations as in the first run


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of ``collops jacobi``."""

    variant: Annotated[
        str,
        option(f"Programming model: auto (the fastest in a trial), {', '.join(MODELS)}.", METHOD),
        OneOf("auto", *MODELS),
    ] = "auto"
    nx: Annotated[int, option("Number of columns.", _GRID, "--nx", "-nx"), AtLeast(3)] = 16384
    ny: Annotated[int, option("Number of rows.", _GRID, "--ny", "-ny"), AtLeast(3)] = 16384
    process_grid: Annotated[
        str | None, option("Process grid: blocks down and across, such as 2x2.", _GRID, show_default="whole rows")
    ] = None
    niter: Annotated[int, option("Maximum number of iterations.", METHOD, "--niter", "-niter"), AtLeast(1)] = 1000
    nccheck: Annotated[
        int, option("Number of iterations between norm checks.", METHOD, "--nccheck", "-nccheck"), AtLeast(1)
    ] = 1
    tolerance: Annotated[
        float | None,
        option("Tolerance: norm of the update at which to stop.", METHOD, show_default="1e-8"),
        NotNegative,
    ] = None
    dtype: Dtype = "float32"
    engine: EngineName = "auto"
    nop2p: Annotated[
        bool,
        option("Disable peer access between GPUs: NCCL sends through the host.", METHOD, "--nop2p", "-nop2p"),
    ] = False
    peer: Annotated[
        list[str] | None,
        option(
            "Also run a program with the options and the output of NVIDIA's samples, such as nccl=./nccl/jacobi or "
            "mpi='mpirun -np 4 ./mpi/jacobi'. May be repeated.",
            METHOD,
            metavar="NAME=PATH",
        ),
    ] = None
    skip_single_gpu: Annotated[
        bool,
        option(
            "Omit the reference run on one rank, and the check of values against it.",
            _OUTPUT,
            "--skip-single-gpu",
            "-skip_single_gpu",
        ),
    ] = False
    csv: Annotated[
        bool, option("Print the result as one line of comma-separated values.", _OUTPUT, "--csv", "-csv")
    ] = False
    compare: Annotated[
        bool, option("Run and check all variants; print a table and draw a chart.", _OUTPUT, "--compare")
    ] = False
    timeline: Annotated[bool, option("Draw a timeline of the work of each stream.", _OUTPUT, "--timeline")] = False
    profile: Annotated[
        bool,
        option(
            "Measure the time of sweeps, messages and gaps per iteration, the time of the first call, and a run of "
            f"{_LONGER} times as many iterations; draw timelines.",
            _OUTPUT,
            "--profile",
        ),
    ] = False
    out: Annotated[str, option("Folder for the figures.", metavar="DIR"), Folder] = "collops-result"
    overwrite: Overwrite = False

    def results(self) -> list[Path]:
        """Return the figures that may be drawn, with timelines of all variants that may run."""
        names = ["jacobi.png"] if self.compare else []
        if self.draws_streams:
            names += [f"timeline-{name}.png" for name in MODELS if self.compare or self.variant in ("auto", name)]
        return [Path(self.out) / name for name in names]

    @property
    def draws_streams(self) -> bool:
        """Whether timelines are drawn."""
        return self.timeline or self.profile

    def check(self) -> None:
        """Raise `InputError` for invalid or contradictory values."""
        check_must(self)
        if self.compare and self.variant != "auto":
            raise InputError("--compare runs every variant: omit --variant")
        if self.compare and (self.csv or self.skip_single_gpu):
            raise InputError("--compare checks all variants against one rank: omit -csv and -skip_single_gpu")
        if self.draws_streams and self.variant == "single":
            raise InputError("--profile and --timeline need several ranks: omit --variant single")
        self.blocks()
        check_commands(self.peer)

    def blocks(self) -> tuple[int, int] | None:
        """Return the process grid."""
        if self.process_grid is None:
            return None
        match = re.fullmatch(r"([1-9]\d*)[xX]([1-9]\d*)", self.process_grid.strip())
        if match is None:
            raise InputError(f"--process-grid must be blocks down and across, such as 2x2, not {self.process_grid!r}")
        return int(match[1]), int(match[2])

    def problem(self) -> Problem:
        """Return the problem to solve."""
        tolerance = _TOLERANCE if self.tolerance is None else self.tolerance
        return Problem(self.nx, self.ny, self.niter, self.nccheck, tolerance, self.dtype)


@dataclass(frozen=True)
class Profile:
    """The time profile of one variant."""

    first: float  # seconds of the first sweeps, on a tiny grid: compiling, loading, connecting
    longer: Run  # a run of `_LONGER` times as many iterations
    ranks: list[Shares]

    def mean(self, share: str) -> float:
        """Return a share of an iteration in seconds, averaged over the ranks."""
        return sum(getattr(rank, share) for rank in self.ranks) / len(self.ranks)

    @property
    def numbers(self) -> dict[str, Any]:
        """All results in the form of JSON."""
        shares = {f"{name}_us": [1e6 * getattr(rank, name) for rank in self.ranks] for name in Shares._fields}
        return {
            "first_call_seconds": self.first,
            "longer_iterations": self.longer.iterations,
            "longer_us_per_iteration": 1e6 * self.longer.seconds_per_iteration,
            **shares,
        }


@dataclass(frozen=True, kw_only=True)
class Measured(Run):
    """The run of one variant."""

    name: str
    devices: int = 1  # that swept
    difference: Difference | None = None  # from the run on one rank
    profile: Profile | None = None


@dataclass
class Outcome:
    """The results of the command; the first rank alone lists runs and files."""

    problem: Problem
    ranks: int
    unit: str  # "GPU" or "CPU": the device of a rank
    single: Measured | None = None  # the run on one rank
    variants: list[Measured] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # variants that these ranks cannot run, and the reasons
    trial: dict[str, float] = field(default_factory=dict)  # seconds per iteration of the variants in the trial
    peers: list[Sample] = field(default_factory=list)  # programs of the user
    limit: float | None = None  # seconds to read and write the grid once, at the memory bandwidth of all ranks
    files: list[Path] = field(default_factory=list)
    shortfall: str | None = None  # message that a requested tolerance was not reached; the same on every rank

    @property
    def numbers(self) -> dict[str, Any]:
        """All results in the form of JSON."""
        return {
            "problem": asdict(self.problem),
            "ranks": self.ranks,
            "unit": self.unit,
            "memory_limit_us": None if self.limit is None else 1e6 * self.limit,
            "single": None if self.single is None else self._numbers(self.single),
            "variants": [self._numbers(measured) for measured in self.variants],
            "missing": self.missing,
            "trial_us": {name: 1e6 * seconds for name, seconds in self.trial.items()},
            "peers": [
                asdict(peer) | {"us_per_iteration": 1e6 * peer.seconds / self.problem.iterations} for peer in self.peers
            ],
            "files": [str(path) for path in self.files],
        }

    def _numbers(self, measured: Measured) -> dict[str, Any]:
        single, seconds, difference = self.single, measured.seconds_per_iteration, measured.difference
        speedup = None if single is None else single.seconds_per_iteration / seconds
        return {
            "variant": measured.name,
            "devices": measured.devices,
            "iterations": measured.iterations,
            "seconds": measured.seconds,
            "us_per_iteration": 1e6 * seconds,
            "norm": list(measured.norms.values())[-1],
            "speedup": speedup,
            "efficiency": None if speedup is None else speedup / measured.devices,
            "differing_points": None if difference is None else difference.points,
            "largest_difference": None if difference is None else difference.largest,
            "profile": None if measured.profile is None else measured.profile.numbers,
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


def csv_line(
    variant: str, problem: Problem, ranks: int, seconds: float, single: float | None, *, p2p: bool = True
) -> str:
    """Return the line for a table; without a run on one rank its time is 0."""
    return (
        f"{variant}, {problem.nx}, {problem.ny}, {problem.iterations}, {problem.check}, {ranks}, {p2p:d}, "
        f"{seconds:f}, {single or 0.0:f}"
    )


def run_job(options: Options, comm: Communicator, listener: Listener, echo: Callable[[str], None]) -> Outcome:
    """Run one variant, or all of them. Collective.

    The first rank calls `echo` with each line that NVIDIA's samples would print.

    Raises
    ------
    InputError
        On every rank, if these ranks do not support the options.
    CollopsError
        On every rank, if the values of a variant differ from the values of one rank.
    """
    engine = engine_of_ranks(options.engine, comm)
    if options.nop2p:
        with raised_together():
            _check_without_peer_access(comm, engine)
    if options.compare or options.draws_streams:
        with local_stage(comm):
            if comm.rank == 0:
                if not options.overwrite:
                    check_absent(options.results())
                prepare_folder(Path(options.out))
    with local_stage(comm):
        _check_memory(options, comm, engine)
    job = _Job(options, comm, engine, listener, echo)
    with raised_together():
        reason = job.obstacle(options.variant) if options.variant not in ("auto", "single") else None
        if reason is not None:
            raise InputError(f"--variant {options.variant}: {reason}")
    job.peers()
    if options.compare:
        job.compare()
    else:
        job.one()
    if options.tolerance:
        job.outcome.shortfall = comm.allgather_metadata(_shortfall(job.outcome))[0]
    return job.outcome


def _shortfall(outcome: Outcome) -> str | None:
    """Return a message if a run did not reach the tolerance, else None; only the first rank has the runs."""
    for measured in (*filter(None, [outcome.single]), *outcome.variants):
        if measured.reached is None:
            norm = list(measured.norms.values())[-1]
            return (
                f"the tolerance {outcome.problem.tolerance:g} was not reached in {measured.iterations} iterations (the "
                f"norm of the update is {norm:.3g}): raise -niter, or --tolerance"
            )
    return None


def _check_without_peer_access(comm: Communicator, engine: Engine) -> None:
    """Raise unless the ranks' GPUs are connected without peer access."""
    if engine.memory == "host":
        raise InputError("--nop2p is for GPUs: leave it out, or choose --engine cupy")
    if comm.device_transport == "mpi":
        raise InputError("--nop2p does not change MPI's access to other GPUs: choose --transport nccl or staged")
    if os.environ.get(NO_P2P) != "1":
        raise InputError(f"--nop2p needs {NO_P2P}=1 in the environment before the ranks connect")


def _check_memory(options: Options, comm: Communicator, engine: Engine) -> None:
    """Raise if the grids exceed the memory, or if blocks do not fit the ranks."""
    problem = options.problem()

    def two(rows: int, pitch: int) -> int:
        return 2 * rows * pitch * problem.itemsize

    what, remedy = f"two grids of {problem.nx} x {problem.ny} points", "choose a smaller -nx or -ny"
    nbytes = two(*Grid(problem, comm.size, comm.rank, options.blocks()).shape)
    check_memory(nbytes, what if comm.size == 1 else f"the parts of a rank of {what}", remedy, engine, comm.local_size)
    if not options.skip_single_gpu or options.variant == "single":
        check_memory(two(*Grid(problem, 1, 0).shape), what, f"{remedy}, or leave out the run on one rank", engine)


class _UnfitError(InputError):
    """A variant cannot run this grid on these ranks: too few points, or too little memory that all can address."""


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
        self._first: dict[str, float] = {}  # seconds of the first sweeps of each variant
        self.outcome = Outcome(self.problem, self.comm.size, "GPU" if self.engine.memory == "device" else "CPU")

    def obstacle(self, name: str) -> str | None:
        """Return why a variant cannot run on these ranks, or None. Collective."""
        model = MODELS[name]
        if self.options.nop2p and (
            model.symmetric or model.transport == "mpi" or issubclass(model.variant, OneProcess)
        ):
            return f"{name} needs access to the memory of other GPUs, which --nop2p turns off"
        return obstacle(name, self.comm, self.engine)

    def peers(self) -> None:
        """Run the programs of the user on the first rank, before anything else: they may fail."""
        switches = ["-nop2p"] * self.options.nop2p
        for argument in self.options.peer or ():
            self.listener.stage(argument.partition("=")[0])
            with local_stage(self.comm):
                if self.comm.rank == 0:
                    self.outcome.peers.append(run_sample(*command_of(argument), self.problem, switches))

    def one(self) -> None:
        """Run one variant, after one rank alone."""
        options, outcome, problem, comm = self.options, self.outcome, self.problem, self.comm
        name = options.variant if options.variant != "auto" else self._fastest()
        if name == "single":
            self._reference()
        else:
            self._run(name, None if options.skip_single_gpu else self._reference())
        if comm.rank != 0:
            return
        single = None if outcome.single is None else outcome.single.seconds
        seconds = outcome.variants[0].seconds if outcome.variants else single
        assert seconds is not None
        devices = outcome.variants[0].devices if outcome.variants else comm.size
        p2p = not options.nop2p
        if options.csv:
            self.echo(csv_line(name, problem, devices, seconds, single, p2p=p2p))
            for peer in outcome.peers:
                self.echo(csv_line(peer.name, problem, peer.devices, peer.seconds, None, p2p=p2p))
        else:
            for line in summary(problem, devices, seconds, single, outcome.unit):
                self.echo(line)
            for peer in outcome.peers:
                self.echo(f"{peer.name}: {peer.devices} {outcome.unit}s: {peer.seconds:8.4f} s")

    def _candidates(self) -> Iterator[str]:
        """Yield the variants that these ranks can run, and note the obstacles of the others. Collective."""
        for name, model in MODELS.items():
            if name != "single" and self.engine.memory in model.memory:
                reason = self.obstacle(name)
                if reason is None:
                    yield name
                else:
                    self.outcome.missing[name] = reason

    def _fastest(self) -> str:
        """Choose the variant by a short trial of each on this grid, whose times are equal on all ranks."""
        times = self.outcome.trial
        for name in self._candidates():
            if MODELS[name].missing is not None:
                continue  # compiling its kernels takes longer than most runs
            self.listener.stage(f"trial of {name}")
            try:
                self._warm_up(name, self.comm, self.blocks)
                variant = self._make(name)
            except _UnfitError:
                continue
            # One process may drive more devices than there are ranks: only the user can select them.
            if variant.device_count == self.comm.size:
                times[name] = trial(variant)
            variant.free()
            del variant
        best = min(times, key=lambda name: times[name])
        tried = ", ".join(f"{name} {1e6 * times[name]:.4g}" for name in sorted(times, key=lambda name: times[name]))
        self.listener.note(f"variant {best}: the fastest in a trial on this grid (µs an iteration: {tried})")
        return best

    def compare(self) -> None:
        """Run every variant that these ranks can run."""
        outcome = self.outcome
        self.listener.stage("measuring the memory")
        outcome.limit = memory_limit(self.problem, self.comm, self.engine)
        reference = self._reference()
        for name in self._candidates():
            try:
                self._run(name, reference)
            except _UnfitError as error:
                outcome.missing[name] = str(error)
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
        variant = self._make(name)
        result = run(variant, report)
        difference = None if reference is None else reference.difference(variant)
        devices = variant.device_count
        variant.free()
        del variant
        if difference is not None and difference.points:
            self.comm.check(
                CollopsError(
                    f"variant {name}: {difference.points} points differ from the result of one rank, by up to "
                    f"{difference.largest:.3g}"
                )
            )
        profile = self._profile(name, result) if self.options.draws_streams else None
        if self.comm.rank == 0:
            measured = Measured(**vars(result), name=name, devices=devices, difference=difference, profile=profile)
            self.outcome.variants.append(measured)

    def _make(self, name: str, problem: Problem | None = None) -> Variant:
        """Make a variant on this job's grid; raise `_UnfitError` on all ranks if it does not fit them. Collective."""
        try:
            with raised_together():
                return make(name, problem or self.problem, self.comm, self.engine, self.blocks)
        except (LayoutError, MemoryError) as error:
            if not getattr(error, "on_all_ranks", False):
                raise
            with raised_together():
                raise _UnfitError(f"variant {name}: {error}") from error

    def _announced(self, who: str = "") -> Callable[[int, float], None] | None:
        """Print the heading of a run, and return the function that prints its norms; None if no text is printed."""
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
        begin = time.perf_counter()
        with raised_together():
            variant = make(name, small, comm, self.engine, blocks)
        run(variant)
        self._first.setdefault(name, time.perf_counter() - begin)
        variant.free()

    def _profile(self, name: str, result: Run) -> Profile | None:
        """Run more iterations, divide the time of some, and draw when each stream of all ranks did its work."""
        comm, profile = self.comm, None
        variant = self._make(name, replace(self.problem, iterations=_LONGER * self.problem.iterations))
        if self.options.profile:
            longer = run(variant)
            # On a device, the time of an iteration beyond its work is the wait for its launch.
            seconds = result.seconds_per_iteration if self.engine.memory == "device" else 0.0
            shares = shares_of(record_spans(variant, _PROFILED, ahead=True), _PROFILED, seconds)
            profile = Profile(self._first[name], longer, [Shares(*row) for row in comm.allgather_metadata([*shares])])
        spans = comm.allgather_metadata([list(span) for span in record_spans(variant, _SHOWN)])
        variant.free()
        if comm.rank == 0:
            path = Path(self.options.out) / f"timeline-{name}.png"
            self.outcome.files.append(draw_timeline(name, [[Span(*row) for row in rank] for rank in spans], path))
        return profile


def bar_chart(outcome: Outcome, path: Path) -> Path:
    """Draw the time of an iteration by variant, and the time of a single sweep at the speed of the memory."""
    problem, unit, ranks, limit = outcome.problem, outcome.unit, outcome.ranks, outcome.limit
    times = {measured.name: 1e6 * measured.seconds_per_iteration for measured in outcome.variants}
    times |= {f"{peer.name} (peer)": 1e6 * peer.seconds / problem.iterations for peer in outcome.peers}
    if outcome.single is not None:
        times = {f"one {unit} / {ranks}": 1e6 * outcome.single.seconds_per_iteration / ranks} | times
    with figure(path, 1, (8.0, 1.6 + 0.34 * len(times))) as (_, (axes,)):
        positions = range(len(times))
        bars = axes.barh(positions, list(times.values()), height=0.7, color="#3f7cac")
        axes.bar_label(bars, [f"{time:.4g}" for time in times.values()], padding=3)
        axes.set_yticks(positions, list(times))
        axes.invert_yaxis()
        axes.margins(x=0.12)
        if limit is not None:
            axes.axvline(1e6 * limit, color="#b5442e", linewidth=1.2)
            axes.set_xlabel(f"µs an iteration; the line is the memory's limit of one sweep, {1e6 * limit:.4g} µs")
        axes.set_title(f"{problem.nx} x {problem.ny}, {problem.dtype}, {ranks} {unit}s")
    return path
