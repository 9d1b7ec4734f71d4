"""Times that are aimed at, and what the newest records of as many GPUs have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collops_bench.record import Measurement, Record
from collops_bench.speed import NOT_MEASURED, markdown, seconds_in_words

__all__ = ["FLOORS", "Floor", "floors_table", "measured_by"]

_EAGER, _REPLAYED = "collops, eager", "collops, replayed"
_OWN_LAYOUT, _ALLREDUCES = "FFTND, forward", "20 allreduces in a call, run ahead"


@dataclass(frozen=True)
class Floor:
    """A figure that is aimed at, and where records have it."""

    work: str
    aim: float  # seconds at most; or a bandwidth or a share at least
    benchmark: str | None = None  # ``None`` if no benchmark measures it
    case: str = ""
    program: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the measurement
    clock: str = "wall"
    parts: int = 1  # how many of them the time of the program has
    figure: str | None = None  # name of the figure that is compared instead of a time
    devices: int = 4

    def in_words(self, value: float) -> str:
        """Return a value with its unit."""
        if self.figure is None:
            return seconds_in_words(value)
        return f"{1e-9 * value:.0f} GB/s" if "bandwidth" in self.figure else f"{100 * value:.0f} %"

    def reached(self, value: float) -> bool:
        """Return whether a value is as good as the aim."""
        return value <= self.aim if self.figure is None else value >= self.aim


def _jacobi(nx: int, ny: int, program: str, aim: float) -> Floor:
    case = "weak scaling, large" if nx == 16384 else "weak scaling, medium"
    return Floor(f"Jacobi {nx} x {ny}, `{program}`", aim, "jacobi", case, program, {"nx": nx, "ny": ny})


def _lsm(what: str, aim: float, case: str, program: str, clock: str = "wall") -> Floor:
    return Floor(f"migration of 401 x 300{what}", aim, "lsm", case, program, {"image": [401, 300]}, clock)


FLOORS = (
    *(
        Floor(
            f"`FFTND` of {edge}³ complex64, in its own layout",
            aim,
            "products",
            _OWN_LAYOUT,
            _EAGER,
            {"shape": [edge] * 3},
        )
        for edge, aim in ((1024, 7.5e-3), (512, 0.95e-3), (344, 0.40e-3))
    ),
    Floor(
        "CGLS iteration of 500 x 1000 a rank, eager",
        120e-6,
        "cgls",
        "VStack of matrices",
        _EAGER,
        {"rows_per_rank": 500},
    ),
    Floor("`Halo` of 2048 x 2048, eager", 45e-6, "operators", "Halo, forward", _EAGER, {"shape": [2048, 2048]}),
    Floor(
        "`FirstDerivative` of 2048 x 2048, eager",
        18e-6,
        "operators",
        "FirstDerivative, forward",
        _EAGER,
        {"shape": [2048, 2048]},
    ),
    _lsm(", iteration", 280e-6, "iteration", _REPLAYED),
    _lsm(" from a file, iteration", 0.40e-3, "streamed", "resident, Zarr"),
    _lsm(" from a file, iteration with set-up and reading", 0.8e-3, "streamed", "resident, Zarr", "whole"),
    Floor(
        "star-forest bcast of 1 KiB a rank, eager",
        10e-6,
        "starforest",
        "bcast, shift",
        "collops",
        {"bytes_per_rank": 1024},
    ),
    Floor("star-forest bcast of 1 KiB a rank, replayed", 5e-6),
    Floor("allreduce of 8 bytes, eager", 8e-6, "collectives", "allreduce", "collops nccl", {"size": 8}),
    Floor("allreduce of 8 bytes, replayed", 2.5e-6, "collectives", "allreduce", "collops nccl, replayed", {"size": 8}),
    Floor(
        "allreduce of 8 bytes in a compiled JAX program, each of 20",
        4.5e-6,
        "jax",
        _ALLREDUCES,
        "collops",
        {"bytes": 8},
        parts=20,
    ),
    _jacobi(4096, 8192, "persistent", 24e-6),
    _jacobi(16384, 32768, "persistent", 376e-6),
    _jacobi(16384, 32768, "blocked", 65e-6),
    Floor(
        "GPU-aware MPI, allreduce of 64 MiB",
        290e9,
        "collectives",
        "allreduce",
        "collops mpi",
        {"size": 64 << 20},
        figure="bus_bandwidth",
    ),
    *(
        Floor(
            f"sparse product, 27 points, {rows}, against one rank alone",
            aim,
            "starforest",
            "27-point stencil times vector",
            "collops",
            {"rows_per_rank": edge**3},
            figure="efficiency",
        )
        for rows, edge, aim in (("16 million rows a GPU", 252, 0.98), ("2 million rows a GPU", 126, 0.92))
    ),
    *(
        Floor(
            f"`BlockToeplitz` in float32, {where}, of a copy's bandwidth",
            aim,
            "toeplitz",
            "BlockToeplitz, forward",
            _REPLAYED,
            {"stored": "float32"},
            figure="of_copy",
            devices=devices,
        )
        for where, aim, devices in (("one GPU", 0.7, 1), ("four GPUs", 0.9, 4))
    ),
    Floor(
        "travel-time tables of 1560 stations, 512 x 512 x 256 points, one GPU, within 0.2 ms",
        10.0,
        "traveltimes",
        "tables, 512 x 512 x 256",
        "collops",
        devices=1,
    ),
)
"""What is aimed at, on four GPUs unless the name says otherwise."""


def measured_by(floor: Floor, records: Mapping[str, Record], devices: int) -> tuple[float, str] | None:
    """Return the value in the newest record of so many GPUs, and the record's name; or None."""
    found = [
        (record.started, value, name)
        for name, record in records.items()
        if record.benchmark == floor.benchmark
        and record.p2p
        and not record.options.get("quick")
        and len(record.machine["devices"]) == devices
        for measurement in record.measurements
        if (value := _value(floor, measurement)) is not None
    ]
    return max(found)[1:] if found else None


def _value(floor: Floor, measurement: Measurement) -> float | None:
    if measurement.case != floor.case or floor.program not in measurement.timings:
        return None
    if any(measurement.parameters.get(name) != value for name, value in floor.parameters.items()):
        return None
    if floor.figure is not None:
        return measurement.figures[floor.program][floor.figure]
    return measurement.timings[floor.program].clocks[floor.clock].median / floor.parts


def floors_table(records: Mapping[str, Record]) -> str:
    """Return the aims and what was measured in Markdown, on two GPUs too where the aim is for four."""
    rows = []
    for floor in FLOORS:
        bound = "at most" if floor.figure is None else "at least"
        row = [floor.work, f"{bound} {floor.in_words(floor.aim)}"]
        found = measured_by(floor, records, floor.devices)
        if found is None:
            row += [NOT_MEASURED, "", ""]
        else:
            value, name = found
            row += [floor.in_words(value), "yes" if floor.reached(value) else "no", f"`{name.removesuffix('.json')}`"]
        pair = measured_by(floor, records, 2) if floor.devices == 4 else None
        rows.append([*row, "" if pair is None else f"{floor.in_words(pair[0])}, `{pair[1].removesuffix('.json')}`"])
    return markdown(["work", "aim", "measured", "reached", "record", "two GPUs"], rows, words=6)
