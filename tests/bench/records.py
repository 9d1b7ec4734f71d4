"""A small record with made-up numbers, for tests of what is done with records."""

from __future__ import annotations

from collops_bench.record import Check, Measurement, Record
from collops_bench.timing import Spread, Timing

__all__ = ["record", "timing"]


def timing(median: float, **clocks: float) -> Timing:
    spreads = {name: Spread(value, 0.9 * value, 1.2 * value, 5) for name, value in clocks.items()}
    return Timing(10, {"wall": Spread(median, 0.9 * median, 1.2 * median, 5)} | spreads)


def record(benchmark: str = "arrays", devices: tuple[str, ...] = ()) -> Record:
    dot = Measurement(
        "dot",
        {"elements": 1000},
        {"collops": timing(2e-6), "PyLops-MPI": timing(5e-4)},
        peer="PyLops-MPI",
        checks=[Check("dot against counting", 0.0, 1e-5)],
        headline="dot of 1000",
    )
    axpby = Measurement(
        "axpby",
        {"elements": 1000},
        {"collops": timing(1e-3)},
        {"PyLops-MPI": "not installed"},
        peer="PyLops-MPI",
        messages={},
        headline="x + 2 y of 1000",
    )
    allreduce = [
        Measurement(
            operation,
            {"size": size, "dtype": "float32"},
            {"collops nccl": timing(seconds, device=seconds), "NCCL": timing(0.9 * seconds)},
            {"collops mpi": "no GPU-aware MPI"},
            ours="collops nccl",
            peer="NCCL",
            figures={
                name: {"algorithm_bandwidth": size / seconds, "bus_bandwidth": 1.5 * size / seconds}
                for name in ("collops nccl", "NCCL")
            },
        )
        for operation in ("allreduce", "bcast")
        for size, seconds in ((8, 8e-6), (1 << 20, 17e-6))
    ]
    return Record(
        benchmark=benchmark,
        ranks=max(1, len(devices)),
        engine="cupy" if devices else "numpy",
        transport=["host arrays: serial"],
        machine={"processor": "P", "cores": 2, "system": "S", "devices": list(devices), "driver": None},
        versions={"python": "3.11", "pylops-mpi": None},
        options={"quick": True},
        commit=None,
        started="2026-01-01T00:00:00+00:00",
        measurements=allreduce if benchmark == "collectives" else [dot, axpby],
    )
