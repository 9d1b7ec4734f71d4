"""The recipe of all applications: prepare a problem, solve it, report numbers, write results and pictures.

`run_job` is the recipe. It calls the ``run`` of an application with a `Job`; ``run`` prepares the problem, calls
`Job.solve`, and returns `Findings`.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from collops import profile
from collops.apps import interruption
from collops.apps.files import Field, check_absent, check_room, share_folders, write_result
from collops.apps.options import CommonOptions
from collops.apps.pictures import convergence
from collops.apps.stages import engine_of_ranks, local_stage
from collops.comm import Communicator
from collops.comm.agreement import raised_together
from collops.comm.bounded import in_time
from collops.errors import InputError, NotFiniteError

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.solvers import SolverResult

__all__ = [
    "Exporter",
    "Findings",
    "Gradient",
    "Job",
    "Listener",
    "Outcome",
    "Solution",
    "best_relative_error",
    "largest_amplitude",
    "relative_error",
    "run_job",
]

T = TypeVar("T", bound=CommonOptions)
Exporter = Callable[[Path, Communicator, Sequence[str]], Path]
"""Writes a file with a history of the processing, given as lines of text, and returns its path. Collective."""
_PICTURES = 2 << 20  # bytes, at most, of all pictures and a page
# Results depend on the versions of these.
_PACKAGES = ("collops", "numpy", "scipy", "pylops", "mpi4py", "mpich", "openmpi", "numba")
_PACKAGES += ("cupy", "cupy-cuda13x", "nccl4py")


class Listener(Protocol):
    """Shows the progress of a job."""

    live: bool  # whether this rank shows progress as it happens

    def note(self, text: str) -> None:
        """Show a decision that the application took."""

    def warn(self, text: str) -> None:
        """Show a warning, even to a user who asked for no notes."""

    def stage(self, text: str | None) -> None:
        """Show that a stage begins; None ends the current one."""


@dataclass(frozen=True)
class Solution:
    """The result of a solver, and the cost of an iteration."""

    x: Any  # the solution
    residuals: np.ndarray  # float64; norm of the residual before the first iteration and after each
    status: str  # for this and the next two see `collops.SolverResult`
    execution: str
    resumed_from: int | None
    # seconds of an iteration, by rank: whole, or with ``--profile`` by modelling, communication and the rest
    seconds: dict[str, np.ndarray]
    messages: int | None  # messages of an iteration, with ``--profile``
    details: dict[str, Any] = field(default_factory=dict)  # further results of the solver


@dataclass(frozen=True)
class Job(Generic[T]):
    """One run of an application."""

    options: T  # of the application, the same on every rank
    comm: Communicator  # the ranks
    engine: Engine  # the engine that computes, the same on every rank
    listener: Listener  # shows the progress

    @contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """Show a stage while the body runs, and mark it for `collops.profile`."""
        self.listener.stage(text)
        with profile.mark(text):
            yield
        self.listener.stage(None)

    def note(self, notes: Iterable[str]) -> None:
        """Show decisions."""
        for note in notes:
            self.listener.note(note)

    def warn_of_idle_ranks(self, parts: int, what: str) -> None:
        """Warn if there are more ranks than parts of the work; `what` names the parts, in the plural."""
        if (idle := self.comm.size - parts) > 0:
            self.listener.warn(f"{parts} {what} for {self.comm.size} ranks: {idle} of them have nothing to do")

    def share(self, total: int) -> slice:
        """Return the slice of `total` items that belongs to this rank."""
        from collops.array import Layout

        return Layout.split((total,), self.comm.size).slices(self.comm.rank)[0]

    def array(self, layout: Any, own: np.ndarray) -> Any:
        """Return the distributed array whose local part is `own`, in the dtype and on the engine of the job."""
        from collops.array import DistributedArray

        dtype = np.result_type(self.options.dtype, np.complex64) if own.dtype.kind == "c" else self.options.dtype
        return DistributedArray(layout, self.comm, self.engine.from_host(np.ascontiguousarray(own, dtype=dtype)))

    def on_host(self, x: Any) -> np.ndarray:
        """Return the local part of a distributed array on the host."""
        return self.engine.to_host(x.local_array)

    def spread(self, layout: Any, whole: np.ndarray) -> Any:
        """Return the distributed array of an array that every rank has whole, as `array` does. No message."""
        return self.array(layout, whole[layout.slices(self.comm.rank)])

    def whole(self, x: Any) -> np.ndarray:
        """Return a distributed array, replicated or not, whole on the host of every rank. Collective."""
        return self.engine.to_host(x.gather())

    def solve(
        self, method: Callable[..., SolverResult], operator: Any, data: Any, *, writes: int, **options: Any
    ) -> Solution:
        """Run a solver such as `collops.solvers.cgls` with its own options. Collective.

        The options of the job determine progress, checkpoints and, unless `niter` is among `options`, iterations.
        `writes` is the number of bytes of the arrays of ``result.zarr``: raises `InputError` if there is no room for
        them.
        """
        chosen = self.options
        with local_stage(self.comm):
            if self.comm.rank == 0:
                check_room(Path(chosen.out), writes + _PICTURES, "--out")
        run = {"checkpoint": chosen.checkpoint, "every": chosen.every, "resume": chosen.resume}
        run |= {"niter": options.pop("niter", chosen.iterations), "progress": self.listener.live}
        try:
            if chosen.profile:
                from collops.apps.profiling import Modelling, costs

                with profile.record() as recording:
                    result = method(Modelling(operator), data, **options, **run, graph=False)
                seconds, messages = costs(recording, result.seconds_per_iteration)
            else:
                result = method(operator, data, **options, **run)
                seconds, messages = {"iteration": result.seconds_per_iteration}, None
        except NotFiniteError as problem:
            with raised_together():
                raise InputError(
                    f"the solution grew without bounds ({problem.array} in iteration {problem.iteration}): scale the "
                    "data, or use --dtype float64"
                ) from problem
        interruption.complete()
        gathered = self.comm.allgather(np.array(list(seconds.values())))
        seconds = dict(zip(seconds, gathered.T, strict=True))
        residuals = np.asarray(result.residual_norms, dtype=np.float64)
        status = result.status.name.lower()
        description = status, result.execution, result.resumed_from
        return Solution(result.x, residuals, *description, seconds, messages, result.details)


@dataclass(frozen=True)
class Gradient:
    """The adjoint of the data, and how much the operator stretches it."""

    x: Any  # the adjoint of the data
    norm: float  # the norm of the operator applied to it over its own: a lower bound of the operator's norm
    step: float  # times this factor it fits the data best: the first iterate of CGLS

    @classmethod
    def of(cls, operator: Any, data: Any) -> Gradient:
        """Apply the adjoint to data, and the operator to the result. Collective."""
        x = operator.adjoint(data)
        image = operator.forward(x)
        return cls.of_products(x, (image, image), float(data.norm(np.inf)))

    @classmethod
    def of_products(cls, x: Any, pair: tuple[Any, Any], size: float) -> Gradient:
        """Return it from the adjoint of data, and two arrays whose product is the square of its image. Collective.

        `size` is 0 if the data are.
        """
        from collops.array import dots

        square, stretched = (float(each) for each in dots((x, x), pair))
        remedy = "scale the data" + ("" if x.dtype == np.float64 else ", or use --dtype float64")
        with raised_together():
            if not np.isfinite([square, stretched]).all():
                raise InputError(f"the amplitudes are too large for {x.dtype}: {remedy}")
            if size and min(square, stretched) < np.finfo(x.dtype).tiny:
                raise InputError(
                    f"no model explains any part of the data, or their amplitudes are too small for {x.dtype}: "
                    f"check the geometry and the units, or {remedy}"
                )
        return cls(x, float(np.sqrt(stretched / square)) if square else 0.0, square / stretched if stretched else 0.0)


@dataclass(frozen=True)
class Findings:
    """The result of an application, for `run_job` to report and to write."""

    title: str  # of ``result.zarr``
    solution: Solution  # from `Job.solve`
    subject: str  # what the table calls the result
    adjoint: str  # what the table calls the adjoint of the data
    numbers: dict[str, Any]  # further entries of JSON
    rows: list[tuple[str, str]]  # rows of the table (label, value), before those of all applications
    # arrays of ``result.zarr`` other than the norms of the residual; the same names on every rank
    fields: dict[str, Field]
    draw: Callable[[Path], list[Path]]  # draws pictures into a folder and returns them; called on the first rank only
    error: float | None = None  # relative error of the result, if the truth is known
    adjoint_error: float | None = None  # relative error of the adjoint of the data at its best scale
    residual_of: str = ""  # other terms of the residual than the data, for the table
    error_of: str = ""  # reference of the error if it is not the truth, for the table
    attributes: dict[str, Any] = field(default_factory=dict)  # further attributes of ``result.zarr``
    curve: str = "CGLS"  # title of the picture of the convergence
    noise_norm: float | None = None  # norm of the noise of all ranks, where it is known
    more_rows: list[tuple[str, str]] = field(default_factory=list)  # rows after those of all applications
    # writes a page from ``result.zarr`` in a folder and returns it; called on the first rank only
    page: Callable[[Path], Path] | None = None
    exports: dict[str, Exporter] = field(default_factory=dict)  # further files by name, the same names on every rank
    files: list[Path] = field(default_factory=list)  # other files that were written
    shortfall: str | None = None  # says that a tolerance that the user asked for was not reached


@dataclass(frozen=True)
class Outcome:
    """The result of a job as it is shown: numbers for JSON, rows of a table, times with ``--profile``, and files."""

    numbers: dict[str, Any]
    rows: list[tuple[str, str]]
    seconds: dict[str, np.ndarray] | None  # of an iteration, by kind and rank
    files: list[Path]
    shortfall: str | None  # as in `Findings`


def run_job(
    run: Callable[[Job[T]], Findings], options: T, comm: Communicator, listener: Listener, command: str = ""
) -> Outcome:
    """Run an application, from its options to pictures. Collective.

    `run` is the function of that name of an application; exported files name the `command` that it belongs to. The
    outcome is the same on every rank; its files were written by the first one.
    """
    folder = Path(options.out)
    with local_stage(comm):
        options.check()
        if comm.rank == 0 and not options.overwrite and not options.resumes():
            check_absent(options.results())
    share_folders(comm, {"--out": folder} | ({"--checkpoint": Path(options.checkpoint)} if options.checkpoint else {}))
    job = Job(options, comm, engine_of_ranks(options.engine, comm), listener)
    found = run(job)
    with job.stage(f"writing results and pictures to {folder}"):
        numbers = _numbers(job, found)
        files: list[Path] = []
        with local_stage(comm):
            if comm.rank == 0:
                files += in_time(lambda: _draw(folder, found), folder)
        arrays = found.fields | {"residual_norms": Field(found.solution.residuals, ("iteration",), "1")}
        attributes = {"title": found.title, **found.attributes, **numbers}
        files.append(write_result(folder / "result.zarr", comm, arrays, attributes))
        text = _history(options, found, numbers, command)
        files += [export(folder / name, comm, text) for name, export in found.exports.items()]
        with local_stage(comm):
            if comm.rank == 0 and (page := found.page) is not None:
                files.append(in_time(lambda: page(folder), folder))
        with local_stage(comm):
            if comm.rank == 0:
                # Those of an earlier run that this one has not replaced would pass for its own.
                for path in {*options.results()} - {*files, *found.files}:
                    if path.is_file():
                        path.unlink()
    seconds = found.solution.seconds if options.profile else None
    return Outcome(numbers, _rows(numbers, found), seconds, files + found.files, found.shortfall)


def _draw(folder: Path, found: Findings) -> list[Path]:
    curve = convergence(folder / "convergence.png", found.solution.residuals, found.curve, found.noise_norm)
    return [*found.draw(folder), curve]


def _numbers(job: Job[Any], found: Findings) -> dict[str, Any]:
    """Return the entries of JSON."""
    options, comm, solution = job.options, job.comm, found.solution
    first, last = float(solution.residuals[0]), float(solution.residuals[-1])
    costs: dict[str, Any] = {"seconds_per_iteration": float(np.sum(list(solution.seconds.values()), axis=0).max())}
    if options.profile:
        costs["seconds_split"] = {
            kind: {"min": float(each.min()), "mean": float(each.mean()), "max": float(each.max())}
            for kind, each in solution.seconds.items()
        }
        costs["messages_per_iteration"] = solution.messages
    return {
        "residual_initial": first,
        "residual_final": last,
        "residual_reduction": last / first if first else 0.0,
        "relative_error": found.error,
        "adjoint_relative_error": found.adjoint_error,
        **costs,
        "execution": solution.execution,
        "transport": comm.transport if job.engine.memory == "device" else comm.host_transport,
        "engine": job.engine.name,
        "ranks": comm.size,
        "iterations": len(solution.residuals) - 1,
        "checkpoint": options.checkpoint,
        "resumed_from": solution.resumed_from,
        "dtype": options.dtype,
        "versions": _versions(),
        **found.numbers,
    }


def _history(options: CommonOptions, found: Findings, numbers: dict[str, Any], command: str) -> list[str]:
    """Return the processing history for exported files, such as the textual header of SEG-Y."""
    given = {field.name: getattr(options, field.name) for field in fields(options)}
    chosen = {name: value for name, value in (given | found.numbers).items() if isinstance(value, (str, int, float))}
    return [
        f"COLLOPS {numbers['versions'].get('collops', '')}{command and f', command {command}'}: {found.title}",
        "PARAMETERS: " + ", ".join(f"{name}={value}" for name, value in chosen.items()),
        f"RESIDUAL: {numbers['residual_final']:.6g} after {numbers['iterations']} iterations, "
        f"{numbers['residual_initial']:.6g} before the first",
    ]


def _rows(numbers: dict[str, Any], found: Findings) -> list[tuple[str, str]]:
    """Return the rows of the table."""
    rows = [
        *found.rows,
        ("ranks", f"{numbers['ranks']} ({numbers['engine']}, messages by {numbers['transport']})"),
        (
            f"residual{found.residual_of}",
            f"{numbers['residual_initial']:.4g} -> {numbers['residual_final']:.4g} in {numbers['iterations']} "
            f"iterations, {numbers['residual_reduction']:.3g} of the first",
        ),
    ]
    if found.error is not None:
        text = f"{100 * found.error:.1f} %{found.error_of}"
        if found.adjoint_error is not None:
            text += f" ({found.adjoint} at its best scale: {100 * found.adjoint_error:.1f} %)"
        rows.append((f"{found.subject} error", text))
    rows.append(("time", f"{1e3 * numbers['seconds_per_iteration']:.3g} ms an iteration ({numbers['execution']})"))
    if numbers["checkpoint"] is not None:
        begun = "at the beginning" if numbers["resumed_from"] is None else f"after iteration {numbers['resumed_from']}"
        rows.append(("checkpoint", f"{numbers['checkpoint']}; this run began {begun}"))
    if "messages_per_iteration" in numbers:
        rows.append(("messages", f"{numbers['messages_per_iteration']} an iteration"))
    return rows + found.more_rows


@cache
def _versions() -> Mapping[str, str]:
    """Return the versions of Python and of the installed packages that a result depends on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def relative_error(found: np.ndarray, truth: np.ndarray | None, comm: Communicator | None = None) -> float | None:
    """Return ``||found - truth|| / ||truth||``, or None without a truth or if it is zero.

    Collective if `comm` is given: each rank then holds a part of both arrays.
    """
    if truth is None:
        return None
    error_square, truth_square = _dots(comm, (found - truth, found - truth), (truth, truth))
    return float(np.sqrt(error_square / truth_square)) if truth_square else None


def best_relative_error(found: np.ndarray, truth: np.ndarray | None, comm: Communicator | None = None) -> float | None:
    """Return `relative_error` of the multiple of `found` that is closest to the truth, for arrays of unknown scale."""
    if truth is None:
        return None
    product, square = _dots(comm, (found, truth), (found, found))
    return relative_error(found.astype(np.float64) * (product / square), truth, comm) if square else None


def largest_amplitude(own: np.ndarray, comm: Communicator) -> float:
    """Return the largest absolute value of the parts of all ranks, 0 without values. Collective."""
    return float(comm.allreduce(np.array(float(np.abs(own).max(initial=0.0))), "max")[()])


def _dots(comm: Communicator | None, *pairs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    wide = np.result_type(np.float64, *(array.dtype for pair in pairs for array in pair))
    own = np.array([np.vdot(a.astype(wide), b.astype(wide)).real for a, b in pairs])
    return own if comm is None else comm.allreduce(own)
