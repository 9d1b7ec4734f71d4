"""The table of benchmarks, and how to run one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from collops_bench.record import Measurement, Record, free_memory, new_record

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["BENCHMARKS", "Benchmark", "Context", "Options", "run"]

_GIB = 1 << 30


@dataclass(frozen=True)
class Options:
    """Options of a run."""

    quick: bool = False  # small sizes and few rounds, as a trial
    peer: bool = True  # whether to measure the peer as well, where it is installed
    transport: str = "auto"  # for device arrays, as in :func:`collops.world`
    programs: tuple[str, ...] = ()  # NAME=PATH of programs that the user has built, for ``jacobi``


@dataclass(frozen=True)
class Context:
    """The ranks, the engine and the options of a run."""

    comm: Communicator
    engine: Engine
    options: Options

    def free_memory(self) -> int:
        """Return the free memory per rank in bytes, on the device or the host. Collective."""
        return free_memory(self.comm, self.engine)


@dataclass(frozen=True)
class Benchmark:
    """One benchmark: the module of this package that has its name, with a function ``measure(context)``."""

    name: str  # as on the command line
    summary: str  # one line for the help text
    # memory that a rank needs on a device or on a host: with less, ``collops bench all`` runs it small
    device_bytes: int = 0
    host_bytes: int = 0
    own_device: bool = False  # whether each rank must see its own GPU alone

    def measure(self, context: Context) -> Iterator[Measurement]:
        """Yield one measurement after the other. Collective."""
        return importlib.import_module(f"collops_bench.{self.name}").measure(context)


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("limits", "Copies, a matrix product and messages: the limits of this machine."),
        Benchmark("startup", "CPU time of collops --help and of imports, against the peers'."),
        Benchmark("arrays", "Dot products and x + 2y of distributed arrays."),
        Benchmark("cgls", "A CGLS iteration over VStack and BlockDiag.", _GIB, _GIB // 4),
        Benchmark("robustness", "What deadlines and agreements add to a CGLS iteration."),
        Benchmark("lsm", "Least-squares Kirchhoff migration.", 4 * _GIB, _GIB),
        Benchmark("traveltimes", "Travel times in a velocity model, against fast marching.", 24 * _GIB, _GIB),
        Benchmark("waves", "Acoustic modelling and gradients, against deepwave and Devito.", 130 * _GIB, 2 * _GIB),
        Benchmark("media", "Waves in elastic and other media, against deepwave.", 60 * _GIB, 2 * _GIB),
        Benchmark("operators", "Every operator, forward and adjoint, small and large.", 24 * _GIB, 3 * _GIB),
        Benchmark("products", "Fourier transforms and sparse products beside other libraries.", 16 * _GIB, 2 * _GIB),
        Benchmark("toeplitz", "Block-Toeplitz products in every precision, against a copy.", 24 * _GIB, 3 * _GIB),
        Benchmark("solvers", "Krylov methods on sparse matrices, against PETSc's.", _GIB, _GIB),
        Benchmark("multigrid", "Multigrid's set-up and solution, against PyAMG and PETSc.", 24 * _GIB, 4 * _GIB),
        Benchmark("multigrid_scaling", "Multigrid on more ranks, with as many rows for each.", 40 * _GIB, 4 * _GIB),
        Benchmark("posterior", "Samples of the posterior of a migration, in solutions for its mean.", _GIB, _GIB),
        Benchmark("collectives", "Messages of all sizes against the raw library."),
        Benchmark("pairwise", "Latency and bandwidth between two ranks, as OSU defines them."),
        Benchmark("starforest", "Star forests and sparse products on every transport.", 12 * _GIB, _GIB),
        Benchmark("jax", "Collectives inside compiled JAX programs.", 12 * _GIB, _GIB // 4, own_device=True),
        Benchmark("fft", "Fourier transforms of sharded JAX arrays.", 48 * _GIB, _GIB // 4),
        Benchmark("jacobi", "Jacobi's method by every programming model.", 24 * _GIB, _GIB),
        Benchmark("halos", "A halo exchange by messages and by every transport."),
        Benchmark("scaling", "Migration, CGLS and a sparse product on more ranks.", 6 * _GIB, _GIB),
    )
}
"""All benchmarks that can be run."""


def run(
    name: str,
    comm: Communicator,
    engine: Engine,
    options: Options,
    *,
    report: Callable[[Record, Measurement], None] | None = None,
) -> Record:
    """Run the benchmark `name` of `BENCHMARKS`. Collective.

    `report` gets the record so far and each new measurement, on every rank. The record is the same on all ranks except
    for the description of the transports.
    """
    described = asdict(options)
    del described["programs"]  # paths of one machine; the measurements have the names
    record = new_record(name, comm, engine, described)
    for measurement in BENCHMARKS[name].measure(Context(comm, engine, options)):
        record.measurements.append(measurement)
        if report is not None:
            report(record, measurement)
    return record
