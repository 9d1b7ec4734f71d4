"""The recipe of all applications: prepare a problem, solve it, report numbers, write results and figures.

`run_job` is the recipe. It calls the function ``run`` of an application with a `Job`; ``run`` prepares the problem,
calls `Job.solve`, and returns `Findings`.
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
from collops.apps.monitoring import Metrics, Monitor, open_metrics
from collops.apps.options import CommonOptions
from collops.apps.pictures import convergence
from collops.apps.stages import engine_of_ranks, local_stage
from collops.comm import Communicator
from collops.comm.agreement import raised_together
from collops.comm.bounded import in_time
from collops.errors import InputError, NotFiniteError
from collops.limits import digits

if TYPE_CHECKING:
    from collops.array import Array, DistributedArray
    from collops.backend import Engine
    from collops.operators import LinearOperator
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
"""Takes a path, the communicator, and lines of the processing history; writes a file, returns its path. Collective."""
_MAX_FIGURE_BYTES = 2 << 20  # of all figures and a page
# Packages whose versions affect results.
_PACKAGES = ("collops", "numpy", "scipy", "pylops", "mpi4py", "mpich", "openmpi", "numba")
_PACKAGES += ("cupy", "cupy-cuda13x", "nccl4py")


class Listener(Protocol):
    """Shows the progress of a job."""

    live: bool  # whether this rank shows progress as it happens

    def note(self, text: str, **numbers: object) -> None:
        """Show a decision of the application, or progress; `numbers` are its values for structured logs."""

    def warn(self, text: str) -> None:
        """Show a warning, also with --quiet."""

    def stage(self, text: str | None) -> None:
        """Show that a stage begins; None ends the current one."""


@dataclass(frozen=True)
class Solution:
    """The result of a solver, and the cost of an iteration; see :meth:`Job.solve`.

    Attributes
    ----------
    x : DistributedArray or StackedArray
        The solution.
    residuals : numpy.ndarray
        float64; norm of the residual before the first iteration and after each.
    status : str
        Name of the :class:`collops.Status` in lower case, such as ``"converged"`` or ``"iteration_limit"``.
    execution, resumed_from
        See :class:`collops.SolverResult`.
    seconds : dict of numpy.ndarray
        Seconds per iteration, by rank: in total, or with ``--profile`` for modelling, communication and the rest.
    messages : int or None
        Messages per iteration, with ``--profile``.
    details : dict
        Further results of the solver.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.extend.applications import Solution
    >>> Solution(None, np.array([2.0, 1.0]), "converged", "eager", None, {"iteration": np.ones(1)}, None).status
    'converged'
    """

    x: Array
    residuals: np.ndarray
    status: str
    execution: str
    resumed_from: int | None
    seconds: dict[str, np.ndarray]
    messages: int | None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job(Generic[T]):
    """One run of an application: the argument of its function ``run``.

    Attributes
    ----------
    options : CommonOptions
        The options of the application, the same on every rank.
    comm : Communicator
        The ranks.
    engine : Engine
        The engine of the job, the same on every rank.
    listener : Listener
        Shows notes and warnings.
    metrics : Metrics, optional
        The metrics of the job, on rank 0 with ``--metrics``.

    Examples
    --------
    >>> import collops
    >>> from collops.extend.applications import CommonOptions, Job
    >>> from collops.extend.commands import Progress
    >>> from collops.extend.engines import engine
    >>> job = Job(CommonOptions(), collops.world(), engine("numpy"), Progress("", shown=False, speaking=False))
    >>> job.share(8) == slice(0, 8) or job.comm.size > 1
    True
    """

    options: T
    comm: Communicator
    engine: Engine
    listener: Listener
    metrics: Metrics | None = None

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
            self.listener.warn(f"{parts} {what} for {self.comm.size} ranks: {idle} of the ranks are idle")

    def share(self, total: int) -> slice:
        """Return the slice of `total` items that belongs to this rank."""
        from collops.array import Layout

        return Layout.split((total,), self.comm.size).slices(self.comm.rank)[0]

    def array(self, layout: Any, local: np.ndarray) -> DistributedArray:
        """Return the distributed array with the local part `local`, in the dtype and on the engine of the job."""
        from collops.array import DistributedArray

        dtype = np.result_type(self.options.dtype, np.complex64) if local.dtype.kind == "c" else self.options.dtype
        return DistributedArray(layout, self.comm, self.engine.from_host(np.ascontiguousarray(local, dtype=dtype)))

    def on_host(self, x: Array) -> np.ndarray:
        """Return the local part of a distributed array on the host."""
        return self.engine.to_host(x.local_array)

    def distribute(self, layout: Any, values: np.ndarray) -> DistributedArray:
        """Return the distributed array of an array that is replicated on every rank; see `array`. No communication."""
        return self.array(layout, values[layout.slices(self.comm.rank)])

    def gather(self, x: Array) -> np.ndarray:
        """Return all values of a distributed array, replicated or not, in host memory on every rank. Collective."""
        return self.engine.to_host(x.gather())

    def _monitor(self, name: str, total: int) -> Monitor:
        from collops.solvers.driver import ProgressBar

        bar = ProgressBar(name, total) if self.listener.live else None
        return Monitor(name, total, self.listener.note, self.metrics, bar)

    def solve(
        self,
        method: Callable[..., SolverResult],
        operator: Any,
        data: Array,
        *,
        writes: int,
        final: bool = True,
        **options: Any,
    ) -> Solution:
        """Run a solver such as `collops.solvers.cgls` with its own options. Collective.

        The options of the job determine progress, checkpoints and, unless `niter` is among `options`, iterations.
        `operator` is a linear operator, or the problem of a nonlinear solver, whose `data` are the starting point.
        `writes` is the size in bytes of the arrays of ``result.zarr``: raises `InputError` if they do not fit on the
        file system. After a solver that is not `final`, signals still end the job.
        """
        chosen = self.options
        with local_stage(self.comm):
            if self.comm.rank == 0:
                check_room(Path(chosen.out), writes + _MAX_FIGURE_BYTES, "--out")
        run = {"checkpoint": chosen.checkpoint, "every": chosen.every, "resume": chosen.resume}
        run |= {"niter": options.pop("niter", chosen.iterations), "progress": self._monitor}
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
                    f"the solution overflowed ({problem.array} in iteration {problem.iteration}): scale the data, or "
                    "use --dtype float64"
                ) from problem
        if final:
            interruption.complete()
        if self.metrics is not None:
            self.metrics.values |= {
                "iterations": result.iterations,
                "residual_norm": float(result.residual_norms[-1]),
                "solver_seconds": result.seconds,
            }
        gathered = self.comm.allgather(np.array(list(seconds.values())))
        seconds = dict(zip(seconds, gathered.T, strict=True))
        residuals = np.asarray(result.residual_norms, dtype=np.float64)
        status = result.status.name.lower()
        description = status, result.execution, result.resumed_from
        return Solution(result.x, residuals, *description, seconds, messages, result.details)


@dataclass(frozen=True)
class Gradient:
    """The adjoint of the data, an estimate of the operator's norm, and the optimal step."""

    x: Any  # the adjoint of the data
    norm: float  # norm of the operator applied to x over the norm of x: a lower bound of the operator's norm
    step: float  # the factor with which x fits the data best: step * x is the first iterate of CGLS

    @classmethod
    def from_data(cls, operator: LinearOperator, data: Array) -> Gradient:
        """Apply the adjoint to data, and the operator to the result. Collective."""
        x = operator.adjoint(data)
        image = operator.forward(x)
        return cls.from_products(x, (image, image), float(data.norm(np.inf)))

    @classmethod
    def from_products(cls, x: Array, pair: tuple[Array, Array], size: float) -> Gradient:
        """Compute it from the adjoint `x` of the data, and two arrays whose product is ``||A x||**2``. Collective.

        `size` is 0 if all data are 0.
        """
        from collops.array import dots

        square, stretched = (float(product) for product in dots((x, x), pair))
        remedy = "scale the data" + ("" if x.dtype == np.float64 else ", or use --dtype float64")
        with raised_together():
            if not np.isfinite([square, stretched]).all():
                raise InputError(f"the amplitudes are too large for {x.dtype}: {remedy}")
            if size and min(square, stretched) < np.finfo(x.dtype).tiny:
                raise InputError(
                    f"the data are orthogonal to the range of the operator, or their amplitudes are too small for "
                    f"{x.dtype}: check the geometry and the units, or {remedy}"
                )
        return cls(x, float(np.sqrt(stretched / square)) if square else 0.0, square / stretched if stretched else 0.0)


@dataclass(frozen=True)
class Findings:
    """The result of an application, for :func:`run_job` to report and to write.

    Attributes
    ----------
    title : str
        Title of ``result.zarr``.
    solution : Solution
        From :meth:`Job.solve`.
    subject, adjoint : str
        Names of the result, and of the adjoint of the data, in the table.
    numbers : dict
        Further entries of the JSON output, and attributes of ``result.zarr``.
    rows : list of (str, str)
        Rows of the table, label and value, before the rows of all applications.
    fields : dict of Field
        Arrays of ``result.zarr`` other than the norms of the residual; the same names on every rank.
    draw : callable
        Draws figures into a folder and returns their paths; called on the first rank only.
    error, adjoint_error : float, optional
        Relative errors of the result, and of the adjoint of the data at its best scale, if the truth is known.
    residual_of, error_of : str
        For the table: further terms of the residual, and the reference of the error if it is not the truth.
    attributes : dict
        Further attributes of ``result.zarr``.
    curve : str
        Title of the convergence plot.
    noise_norm : float, optional
        Norm of the noise of all ranks, if it is known.
    more_rows : list of (str, str)
        Rows after the rows of all applications.
    page : callable, optional
        Writes a page from ``result.zarr`` in a folder and returns its path; called on the first rank only.
    exports : dict of Exporter
        Further files by name: functions ``export(path, comm, history)`` that return the path; `history` has lines of
        text about the processing. Collective; the same names on every rank.
    files : list of pathlib.Path
        Other files that were written.
    shortfall : str, optional
        Message that a requested tolerance was not reached. The command then exits with code 3.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.extend.applications import Field, Findings, Solution
    >>> solution = Solution(None, np.array([2.0, 1.0]), "converged", "eager", None, {"iteration": np.ones(1)}, None)
    >>> shown = {"numbers": {"size": 3}, "rows": [("size", "3")], "draw": lambda folder: []}
    >>> fields = {"model": Field(np.ones(3), ("depth",), "1")}
    >>> Findings("example", solution, "model", "adjoint", fields=fields, **shown).shortfall is None
    True
    """

    title: str
    solution: Solution
    subject: str
    adjoint: str
    numbers: dict[str, Any]
    rows: list[tuple[str, str]]
    fields: dict[str, Field]
    draw: Callable[[Path], list[Path]]
    error: float | None = None
    adjoint_error: float | None = None
    residual_of: str = ""
    error_of: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    curve: str = "CGLS"
    noise_norm: float | None = None
    more_rows: list[tuple[str, str]] = field(default_factory=list)
    page: Callable[[Path], Path] | None = None
    exports: dict[str, Exporter] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    shortfall: str | None = None


@dataclass(frozen=True)
class Outcome:
    """The reported result of a job: numbers for JSON, rows of a table, times with ``--profile``, and files."""

    numbers: dict[str, Any]
    rows: list[tuple[str, str]]
    seconds: dict[str, np.ndarray] | None  # of an iteration, by kind and rank
    files: list[Path]
    shortfall: str | None  # as in `Findings`


def run_job(
    run: Callable[[Job[T]], Findings], options: T, comm: Communicator, listener: Listener, command: str = ""
) -> Outcome:
    """Run an application, from its options to figures. Collective.

    Parameters
    ----------
    run : callable
        The function ``run`` of an application, which takes a :class:`Job` and returns :class:`Findings`.
    options : CommonOptions
        The options of the application.
    comm : Communicator
        The ranks.
    listener : Listener
        Shows notes and warnings, such as ``collops.extend.commands.Progress``.
    command : str
        The command, for the processing history of exported files.

    Returns
    -------
    Outcome
        With `numbers`, the entries of JSON, and `files`, the paths written by the first rank. The same on every rank.

    Raises
    ------
    InputError
        On every rank, if an option or a file cannot be used.

    Examples
    --------
    >>> import tempfile
    >>> import collops
    >>> from collops.extend.applications import CommonOptions, Findings, run_job
    >>> from collops.extend.commands import Progress
    >>> def run(job):
    ...     "Solve the equation 2 x = 1."
    ...     A = 2.0 * collops.Identity(1, comm=job.comm)
    ...     solution = job.solve(collops.cgls, A, collops.ones(1, comm=job.comm), writes=8)
    ...     x = job.gather(solution.x)
    ...     return Findings("half", solution, "x", "adjoint", {"x": x.tolist()}, [], {}, draw=lambda folder: [])
    >>> options = CommonOptions(out=tempfile.mkdtemp())
    >>> run_job(run, options, collops.world(), Progress("half", shown=False, speaking=False)).numbers["x"]
    [0.5]
    """
    folder = Path(options.out)
    with local_stage(comm):
        options.check()
        if comm.rank == 0 and not options.overwrite and not options.resumes():
            check_absent(options.results())
    share_folders(comm, {"--out": folder} | ({"--checkpoint": Path(options.checkpoint)} if options.checkpoint else {}))
    engine = engine_of_ranks(options.engine, comm)
    labels = {"command": command, "ranks": str(comm.size), "engine": engine.name, "host": platform.node()}
    with open_metrics(options.metrics, labels, comm, listener.warn) as metrics:
        job = Job(options, comm, engine, listener, metrics)
        findings = run(job)
    with job.stage(f"writing results and figures to {folder}"):
        numbers = _numbers(job, findings)
        files: list[Path] = []
        with local_stage(comm):
            if comm.rank == 0:
                files += in_time(lambda: _draw(folder, findings), folder)
        arrays = findings.fields | {"residual_norms": Field(findings.solution.residuals, ("iteration",), "1")}
        attributes = {"title": findings.title, **findings.attributes, **numbers}
        files.append(write_result(folder / "result.zarr", comm, arrays, attributes))
        text = _history(options, findings, numbers, command)
        files += [export(folder / name, comm, text) for name, export in findings.exports.items()]
        with local_stage(comm):
            if comm.rank == 0 and (page := findings.page) is not None:
                files.append(in_time(lambda: page(folder), folder))
        with local_stage(comm):
            if comm.rank == 0:
                # Remove stale results of an earlier run.
                for path in {*options.results()} - {*files, *findings.files}:
                    if path.is_file():
                        path.unlink()
    seconds = findings.solution.seconds if options.profile else None
    return Outcome(numbers, _rows(numbers, findings), seconds, files + findings.files, findings.shortfall)


def _draw(folder: Path, findings: Findings) -> list[Path]:
    curve = convergence(folder / "convergence.png", findings.solution.residuals, findings.curve, findings.noise_norm)
    return [*findings.draw(folder), curve]


def _numbers(job: Job[Any], findings: Findings) -> dict[str, Any]:
    """Return the entries of JSON."""
    options, comm, solution = job.options, job.comm, findings.solution
    first, last = float(solution.residuals[0]), float(solution.residuals[-1])
    costs: dict[str, Any] = {"seconds_per_iteration": float(np.sum(list(solution.seconds.values()), axis=0).max())}
    if options.profile:
        costs["seconds_split"] = {
            kind: {"min": float(values.min()), "mean": float(values.mean()), "max": float(values.max())}
            for kind, values in solution.seconds.items()
        }
        costs["messages_per_iteration"] = solution.messages
    return {
        "residual_initial": first,
        "residual_final": last,
        "residual_reduction": last / first if first else 0.0,
        "relative_error": findings.error,
        "adjoint_relative_error": findings.adjoint_error,
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
        **findings.numbers,
    }


def _history(options: CommonOptions, findings: Findings, numbers: dict[str, Any], command: str) -> list[str]:
    """Return the processing history for exported files, in lines of text."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    values |= findings.numbers
    chosen = {name: value for name, value in values.items() if isinstance(value, (str, int, float))}
    return [
        f"COLLOPS {numbers['versions'].get('collops', '')}{command and f', command {command}'}: {findings.title}",
        "PARAMETERS: " + ", ".join(f"{name}={value}" for name, value in chosen.items()),
        f"RESIDUAL: {numbers['residual_final']:.6g} after {numbers['iterations']} iterations, "
        f"{numbers['residual_initial']:.6g} before the first",
    ]


def _rows(numbers: dict[str, Any], findings: Findings) -> list[tuple[str, str]]:
    """Return the rows of the table."""
    count = numbers["iterations"]
    rows = [
        *findings.rows,
        ("ranks", f"{numbers['ranks']} ({numbers['engine']}, messages by {numbers['transport']})"),
        (
            f"residual{findings.residual_of}",
            f"{numbers['residual_initial']:.4g} -> {numbers['residual_final']:.4g} in {count} "
            f"iteration{'s' * (count != 1)}, {numbers['residual_reduction']:.3g} of the first",
        ),
    ]
    if findings.error is not None:
        text = f"{100 * findings.error:.1f} %{findings.error_of}"
        if findings.adjoint_error is not None:
            text += f" ({findings.adjoint} at its best scale: {100 * findings.adjoint_error:.1f} %)"
        rows.append((f"{findings.subject} error", text))
    rows.append(("time", f"{digits(1e3 * numbers['seconds_per_iteration'])} ms per iteration ({numbers['execution']})"))
    if numbers["checkpoint"] is not None:
        start = (
            "not resumed" if numbers["resumed_from"] is None else f"resumed after iteration {numbers['resumed_from']}"
        )
        rows.append(("checkpoint", f"{numbers['checkpoint']}; {start}"))
    if "messages_per_iteration" in numbers:
        rows.append(("messages", f"{numbers['messages_per_iteration']} per iteration"))
    return rows + findings.more_rows


@cache
def _versions() -> Mapping[str, str]:
    """Return the versions of Python and of the installed packages that a result depends on."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def relative_error(estimate: np.ndarray, truth: np.ndarray | None, comm: Communicator | None = None) -> float | None:
    """Return ``||estimate - truth|| / ||truth||``, or None without a truth or if it is zero.

    Collective with `comm`: each rank then holds a part of both arrays.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.extend.applications import relative_error
    >>> relative_error(np.array([3.0, 5.0]), np.array([3.0, 4.0]))
    0.2
    """
    if truth is None:
        return None
    error_square, truth_square = _dots(comm, (estimate - truth, estimate - truth), (truth, truth))
    return float(np.sqrt(error_square / truth_square)) if truth_square else None


def best_relative_error(
    estimate: np.ndarray, truth: np.ndarray | None, comm: Communicator | None = None
) -> float | None:
    """Return `relative_error` of the multiple of `estimate` closest to the truth, for arrays of unknown scale."""
    if truth is None:
        return None
    product, square = _dots(comm, (estimate, truth), (estimate, estimate))
    return relative_error(estimate.astype(np.float64) * (product / square), truth, comm) if square else None


def largest_amplitude(local: np.ndarray, comm: Communicator) -> float:
    """Return the largest absolute value of the parts of all ranks, 0 without values. Collective."""
    return float(comm.allreduce(np.array(float(np.abs(local).max(initial=0.0))), "max")[()])


def _dots(comm: Communicator | None, *pairs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    dtype = np.result_type(np.float64, *(array.dtype for pair in pairs for array in pair))
    products = np.array([np.vdot(a.astype(dtype), b.astype(dtype)).real for a, b in pairs])
    return products if comm is None else comm.allreduce(products)
