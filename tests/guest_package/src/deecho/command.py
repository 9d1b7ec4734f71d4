"""The command ``collops deecho``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from collops.errors import InputError
from collops.extend.applications import (
    DATA,
    METHOD,
    SYNTHETIC,
    AtLeast,
    CommonOptions,
    Field,
    Findings,
    Job,
    Must,
    NotNegative,
    OneOf,
    Out,
    SyntheticOnly,
    atomic,
    local_stage,
    option,
    relative_error,
)
from deecho.descent import steepest_descent
from deecho.echo import Echo
from deecho.neighbours import NeighbourExchange


@dataclass(frozen=True, kw_only=True)
class Options(CommonOptions):
    """The options of ``collops deecho``."""

    recorded = "trace"

    trace: Annotated[str | None, option("Recorded trace; by default a synthetic one.", DATA, metavar="FILE.npy")] = None
    samples: Annotated[int, option("Samples of the trace.", SYNTHETIC), AtLeast(1), SyntheticOnly()] = 200
    delay: Annotated[int, option("Samples from the signal to its echo.", DATA), AtLeast(1)] = 7
    strength: Annotated[
        float,
        option("Amplitude of the echo, relative to the signal.", DATA),
        Must("be between -1 and 1", lambda value: -1 < value < 1),
    ] = 0.5
    tol: Annotated[float, option("Gradient at which to stop, relative to the first.", METHOD), NotNegative] = 1e-6
    exchange: Annotated[str, option("auto or neighbours.", METHOD), OneOf("auto", "neighbours")] = "auto"
    iterations: Annotated[int, option("Iterations of the solver, at most."), AtLeast(1)] = 200
    out: Out = "collops-deecho"

    def results(self):
        return [*super().results(), Path(self.out) / "signal.txt"]

    def check(self):
        super().check()
        if self.trace is not None and not Path(self.trace).is_file():
            raise InputError(f"{self.trace} does not exist: check the name of the trace")


def run(job: Job[Options]) -> Findings:
    """Remove the echo from a trace by steepest descent.

    Writes result.zarr with the signal, the same as signal.txt, and convergence.png.
    """
    options, comm = job.options, job.comm
    with job.stage("reading" if options.trace else "making a trace"), local_stage(comm):
        trace = truth = None
        if options.trace:
            trace = np.load(options.trace)
            if trace.ndim != 1 or not np.isfinite(trace).all():
                raise InputError(f"{options.trace} must hold one axis of finite numbers")
        else:
            rng = np.random.default_rng(options.seed)
            truth = rng.standard_normal(options.samples)
            trace = truth.copy()
            trace[options.delay :] += options.strength * truth[: -options.delay]
            noise = (options.noise or 0.0) * np.sqrt(np.mean(trace**2))
            trace += noise * rng.standard_normal(len(trace))
    job.warn_of_idle_ranks(len(trace), "samples")
    transport = NeighbourExchange if options.exchange == "neighbours" else "auto"
    A = Echo(len(trace), options.delay, options.strength, comm, options.dtype, transport)
    data = job.distribute(A.range, trace)
    solution = job.solve(steepest_descent, A, data, writes=trace.nbytes, rtol=options.tol)
    signal = job.gather(solution.x)

    def write_text(path, comm, history):
        with local_stage(comm):
            if comm.rank == 0:
                with atomic(path) as temporary:
                    np.savetxt(temporary, signal, header="\n".join(history))
        return path

    missed = options.tol > 0 and solution.status == "iteration_limit"
    return Findings(
        title="trace without its echo",
        solution=solution,
        subject="signal",
        adjoint="",
        numbers={"delay": options.delay, "strength": options.strength, "status": solution.status},
        rows=[("trace", f"{len(trace)} samples, echo of {options.strength:g} after {options.delay}")],
        fields={"signal": Field(solution.x, ("sample",), "1")},
        draw=lambda folder: [],
        error=relative_error(signal, truth),
        curve="Steepest descent",
        exports={"signal.txt": write_text},
        shortfall=f"--tol {options.tol:g} was not reached: raise --iterations" if missed else None,
    )
