"""Benchmarks: each checks its answer, then times this package beside its peers in the same run."""

from collops_bench.reading import read_record
from collops_bench.record import Check, Measurement, Record, default_path, write_record
from collops_bench.registry import BENCHMARKS, Benchmark, Options, run
from collops_bench.timing import Spread, Timing

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "Check",
    "Measurement",
    "Options",
    "Record",
    "Spread",
    "Timing",
    "default_path",
    "read_record",
    "run",
    "write_record",
]
