"""The benchmarks by name, and how one is run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from collops_bench.memory import free_memory
from collops_bench.record import Measurement, Record, new_record

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["BENCHMARKS", "Benchmark", "Context", "Options", "run"]


@dataclass(frozen=True)
class Options:
    """What a user may choose.

    Parameters
    ----------
    quick : bool
        Small sizes and few rounds: to see that everything works, not to publish.
    peer : bool
        Whether to measure the peer as well, where it is installed.
    transport : str
        Wire for device arrays, as for :func:`collops.world`.

    Examples
    --------
    >>> from collops_bench import Options
    >>> Options(quick=True).peer
    True
    """

    quick: bool = False
    peer: bool = True
    transport: str = "auto"


@dataclass(frozen=True)
class Context:
    """What a benchmark works with: its ranks, its engine and its options."""

    comm: Communicator
    engine: Engine
    options: Options

    def room(self) -> int:
        """Return the bytes that each rank can still have where the arrays live. Collective."""
        return free_memory(self.comm, self.engine)


@dataclass(frozen=True)
class Benchmark:
    """One benchmark.

    Parameters
    ----------
    name : str
        As on the command line.
    summary : str
        One line for the help text.
    module : str
        Imported when the benchmark runs; its function ``measure(context)`` yields measurements.
    device_bytes, host_bytes : int
        What a rank needs of a device's or a host's memory: with less, ``collops bench all`` runs it small.
    own_device : bool
        Whether each rank is to see its own GPU alone.

    Examples
    --------
    >>> from collops_bench import BENCHMARKS
    >>> BENCHMARKS["cgls"].summary
    'A CGLS iteration over VStack and BlockDiag.'
    """

    name: str
    summary: str
    module: str
    device_bytes: int = 0
    host_bytes: int = 0
    own_device: bool = False

    def measure(self, context: Context) -> Iterator[Measurement]:
        """Yield one measurement after the other. Collective."""
        function: Callable[[Context], Iterator[Measurement]] = importlib.import_module(self.module).measure
        return function(context)


_GIB = 1 << 30

BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("limits", "Copies, a matrix product and messages: what this machine can do.", "collops_bench.limits"),
        Benchmark("arrays", "Dot products and x + 2y of distributed arrays.", "collops_bench.arrays"),
        Benchmark("cgls", "A CGLS iteration over VStack and BlockDiag.", "collops_bench.cgls", 1 * _GIB, _GIB // 4),
        Benchmark("lsm", "Least-squares Kirchhoff migration.", "collops_bench.lsm", 2 * _GIB, _GIB),
        Benchmark(
            "operators",
            "Every operator, forward and adjoint, small and large.",
            "collops_bench.operators",
            24 * _GIB,
            3 * _GIB,
        ),
        Benchmark("collectives", "Messages of all sizes against the raw library.", "collops_bench.collectives"),
        Benchmark(
            "starforest", "Star forests and sparse products on every wire.", "collops_bench.starforest", 12 * _GIB, _GIB
        ),
        Benchmark(
            "jax",
            "Collectives inside compiled JAX programs.",
            "collops_bench.jax",
            12 * _GIB,
            _GIB // 4,
            own_device=True,
        ),
        Benchmark("jacobi", "Jacobi's method by every programming model.", "collops_bench.jacobi", 24 * _GIB, _GIB),
        Benchmark("halos", "A halo exchange by messages and by every wire.", "collops_bench.halos"),
        Benchmark(
            "scaling", "Migration, CGLS and a sparse product on more ranks.", "collops_bench.scaling", 6 * _GIB, _GIB
        ),
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
    """Run one benchmark. Collective.

    Parameters
    ----------
    name : str
        A key of `BENCHMARKS`.
    comm : Communicator
        Ranks that take part.
    engine : Engine
        Where the arrays live.
    options : Options
        What the user chose.
    report : callable, optional
        Gets the record so far and its newest measurement as soon as it is there, on every rank.

    Returns
    -------
    Record
        Equal on all ranks but for what a rank says of its own wires.

    Examples
    --------
    >>> import collops
    >>> from collops.backend import engine
    >>> from collops_bench import Options, run
    >>> record = run("arrays", collops.world(), engine("numpy"), Options(quick=True, peer=False))
    >>> record.benchmark, record.ranks
    ('arrays', 1)
    """
    record = new_record(name, comm, engine, asdict(options))
    for measurement in BENCHMARKS[name].measure(Context(comm, engine, options)):
        record.measurements.append(measurement)
        if report is not None:
            report(record, measurement)
    return record
