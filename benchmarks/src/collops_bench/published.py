"""Figures that the literature reports, and the same measurements of this machine: tables and pictures.

Every number comes from a record of another benchmark; this module has the published figures, and the tables and
pictures of both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collops_bench.charts import Chart, by_size, new_figure, save, sheet
from collops_bench.jacobi import ALONE
from collops_bench.pairwise import BANDWIDTH, LATENCY
from collops_bench.peers import BY_MPI, PEER
from collops_bench.record import Measurement, Record
from collops_bench.speed import (
    NOT_MEASURED,
    bytes_in_words,
    markdown,
    place,
    programs_of,
    seconds_in_words,
    three_digits,
    time_in_words,
)
from collops_bench.starforest import NEIGHBOURHOOD, POINT_TO_POINT

__all__ = ["CLAIMS", "Claim", "Section", "sections", "text_of"]

_NCCL4JAX_TABLE = "the table of NCCL4JAX"
_LINEAR = 30  # ratio of values up to which bars have a linear axis


@dataclass(frozen=True)
class Claim:
    """A published ratio of two times, minus one if it is a gain in percent."""

    what: str
    source: str  # where it was published, and the machine
    value: float
    percent: bool
    benchmark: str  # whose records have both times
    case: str  # of its measurements
    # by name: the programs whose times are divided, of each list the first that was measured
    pairs: Mapping[str, tuple[Sequence[str], Sequence[str]]]
    p2p: bool = True  # of its records

    def ratios_of(self, record: Record) -> Iterator[tuple[str, float]]:
        """Yield the ratios of this machine by name: the largest over the sizes, of a gain the median."""
        for name, pair in self.pairs.items():
            ratios = []
            for measurement in record.measurements:
                measured = [
                    next((measurement.timings[item] for item in names if item in measurement.timings), None)
                    for names in pair
                ]
                if measurement.case.startswith(self.case) and None not in measured:
                    slow, fast = (timing.wall.median for timing in measured if timing is not None)
                    ratios.append(slow / fast)
            if ratios:
                yield name, 100 * (statistics.median(ratios) - 1) if self.percent else max(ratios)

    def words(self, value: float) -> str:
        """Write a value of this claim."""
        return f"{value:+.3g} %" if self.percent else f"{three_digits(value)}x"


_GSOC = "PyLops-MPI's report of its work on NCCL (2025)"
_FOREST = "PETSc's star forests on 64 GPUs"
_BY_NEIGHBOURS = {NEIGHBOURHOOD: [NEIGHBOURHOOD], "collops, default transport": ["collops"]}
_BY_NCCL = {
    PEER: ([BY_MPI], [PEER]),
    "collops": (["collops staged", "collops mpi"], ["collops nccl"]),
}
CLAIMS = (
    Claim(
        "bandwidth of an allreduce by NCCL over that by MPI, with NVLink",
        f"{_GSOC}, four H200",
        800,
        False,
        "collectives",
        "allreduce",
        _BY_NCCL,
    ),
    Claim(
        "the same without NVLink",
        f"{_GSOC}, four A40",
        10,
        False,
        "collectives",
        "allreduce",
        _BY_NCCL,
        p2p=False,
    ),
    Claim(
        "speed of a compiled allreduce of JAX over CuPy's",
        "NCCL4JAX, three GPUs",
        5.9,
        False,
        "jax",
        _NCCL4JAX_TABLE,
        {"collops": (["CuPy"], ["collops under jit"])},
    ),
    Claim(
        "gain of neighbourhood collectives over staging through the host",
        _FOREST,
        30.9,
        True,
        "starforest",
        "scatter",
        {name: (["collops staged"], fast) for name, fast in _BY_NEIGHBOURS.items()},
    ),
    Claim(
        "gain of neighbourhood collectives over point-to-point messages",
        _FOREST,
        8.25,
        True,
        "starforest",
        "scatter",
        {name: ([POINT_TO_POINT, "collops mpi"], fast) for name, fast in _BY_NEIGHBOURS.items()},
    ),
)
"""The figures that are known to have been published."""


@dataclass(frozen=True)
class Section:
    """One table with its picture."""

    name: str  # of the picture's file
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    charts: Sequence[Chart] = ()  # drawn side by side
    bars: Sequence[tuple[str, float]] = ()  # or else these
    label: str = ""  # of the axis of bars

    def picture(self, folder: Path) -> Path | None:
        """Write the picture into a folder, and return its path; there is none without numbers."""
        path = folder / f"{self.name}.png"
        if self.charts:
            return sheet(self.charts, self.title, path)
        if not self.bars:
            return None
        picture = new_figure(9, 1.2 + 0.15 * sum(2 + name.count("\n") for name, _ in self.bars))
        panel = picture.subplots()
        names, values = zip(*self.bars, strict=True)
        drawn = panel.barh(range(len(values)), values, height=0.7)
        panel.bar_label(drawn, [three_digits(value) for value in values], padding=3)
        panel.set_yticks(range(len(names)), names)
        panel.set_ylim(len(names) - 0.4, -0.6)
        panel.set_xscale("log" if max(values) > _LINEAR * min(values) > 0 else "linear")
        panel.margins(x=0.15)
        panel.set(xlabel=self.label, title=self.title)
        return save(picture, path)


def sections(records: Sequence[Record]) -> list[Section]:
    """Return the tables that can be made from records; tables of one machine belong together."""
    made = [_claims(records)]
    for record in records:
        writers = {
            "collectives": _bandwidths,
            "lsm": _migration,
            "jacobi": _jacobi,
            "jax": _jax,
            "starforest": _scatters,
            "pairwise": _pairwise,
        }
        if record.benchmark in writers:
            made += writers[record.benchmark](record)
    return [section for section in made if section.rows]


def _claims(records: Sequence[Record]) -> Section:
    rows, bars = [], []
    for claim in CLAIMS:
        published = f"{claim.words(claim.value)} ({claim.source})"
        result = [
            (f"{name}, {place(record)}", value)
            for record in records
            if (record.benchmark, record.p2p) == (claim.benchmark, claim.p2p)
            for name, value in claim.ratios_of(record)
        ]
        for name, value in result:
            rows.append([claim.what, published, name, claim.words(value), f"{value / claim.value:.2g}"])
            bars.append((f"{claim.what}:\n{name}", value / claim.value))
        if not result:
            rows.append([claim.what, published, "", NOT_MEASURED, ""])
    head = ["figure", "published", "here", "value", "here / published"]
    return Section("claims", "Published figures", head, rows, bars=bars, label="here / published")


def _name(record: Record, what: str) -> str:
    return f"{what}-{record.machine_name}-{record.ranks}"


def _bandwidths(record: Record) -> Iterator[Section]:
    result = [measurement for measurement in record.measurements if measurement.case == "allreduce"]
    programs = programs_of(result)
    rows = []
    for measurement in result:
        times = {name: timing.wall.median for name, timing in measurement.timings.items()}
        ratio = f"{three_digits(times[PEER] / times[measurement.ours])}x" if PEER in times else ""
        size = measurement.parameters["size"]
        rates = [f"{size / times[name] / 1e9:.3g}" if name in times else "" for name in programs]
        rows.append([bytes_in_words(size), *rates, ratio])
    title = f"Allreduce, GB/s of a rank's message, {place(record)}"
    head = ["size of a message", *programs, f"{PEER} / {result[0].ours if result else 'collops'}"]
    charts = by_size(replace(record, measurements=result))
    yield Section(_name(record, "bandwidth"), title, head, rows, charts)


def _migration(record: Record) -> Iterator[Section]:
    ways = [name for name in (PEER, BY_MPI) if any(name in measurement.timings for measurement in record.measurements)]
    rows, bars = [], []
    for measurement in record.measurements:
        if measurement.headline is None:  # it has no peer
            continue
        programs = [name for name in (measurement.ours, *ways) if name in measurement.timings]
        ratio = "" if measurement.speedup is None else f"{three_digits(measurement.speedup)}x"
        rows.append(
            [
                str(measurement.headline),
                *(time_in_words(measurement, name) for name in (measurement.ours, *ways)),
                ratio,
            ]
        )
        bars += [(f"{measurement.headline}: {name}", 1e3 * measurement.timings[name].wall.median) for name in programs]
    title = f"Least-squares migration, engine {record.engine}, {place(record)}"
    head = ["work", "collops", *ways, f"{PEER} / collops"]
    yield Section(_name(record, f"migration-{record.engine}"), title, head, rows, bars=bars, label="ms")


def _jacobi(record: Record) -> Iterator[Section]:
    for number, measurement in enumerate(record.measurements):
        rows, bars = [], []
        alone = measurement.timings[ALONE].wall.median
        for name, timing in measurement.timings.items():
            speedup = alone / timing.wall.median
            # Programs of the user have no figures, since nothing is known of their devices.
            efficiency = f"{100 * measurement.figures[name]['efficiency']:.0f} %" if name in measurement.figures else ""
            rows.append([name, seconds_in_words(timing.wall.median), f"{speedup:.3g}", efficiency])
            bars += [(name, speedup)] if name != ALONE else []
        grid = f"{measurement.parameters['nx']} x {measurement.parameters['ny']}"
        title = f"Jacobi's method, {grid}, {place(record)}"
        head = ["model", "an iteration", "speed-up over one rank", "efficiency"]
        yield Section(_name(record, f"jacobi-{number}"), title, head, rows, bars=bars, label="speed-up over one rank")


def _jax(record: Record) -> Iterator[Section]:
    result = [measurement for measurement in record.measurements if measurement.case == _NCCL4JAX_TABLE]
    if result:
        programs = programs_of(result)
        bars = [
            (f"{name}, {measurement.parameters['elements']}", 1e6 * measurement.timings[name].wall.median)
            for measurement in result
            for name in programs
            if name in measurement.timings
        ]
        rows = [
            [str(measurement.parameters["elements"]), *(time_in_words(measurement, name) for name in programs)]
            for measurement in result
        ]
        title = f"NCCL4JAX's table: allreduce on {result[0].parameters['parties']} devices of one process"
        kind = next(iter(record.machine["devices"]), "CPU")
        yield Section(
            _name(record, "nccl4jax"), f"{title}, {kind}", ["elements", *programs], rows, bars=bars, label="µs"
        )


def _scatters(record: Record) -> Iterator[Section]:
    result = [measurement for measurement in record.measurements if measurement.case.startswith("scatter ")]
    programs = programs_of(result)
    direct = POINT_TO_POINT if POINT_TO_POINT in programs else "collops mpi"
    gains = {
        "collops over staging": ("collops staged", "collops"),
        "collops over point-to-point": (direct, "collops"),
        "neighbourhood over point-to-point": (direct, NEIGHBOURHOOD),
    }
    gains = {words: pair for words, pair in gains.items() if set(pair) <= set(programs)}
    rows = []
    for measurement in sorted(result, key=lambda measurement: measurement.case):
        times = [time_in_words(measurement, name) for name in programs]
        size = bytes_in_words(measurement.parameters["bytes_per_rank"])
        rows.append(
            [
                measurement.case.removeprefix("scatter "),
                size,
                *times,
                *(_gain(measurement, *pair) for pair in gains.values()),
            ]
        )
    head = ["scatter", "bytes a rank", *programs, *gains]
    charts = by_size(replace(record, measurements=result))
    yield Section(_name(record, "scatters"), f"Scatters of star forests, {place(record)}", head, rows, charts)


def _gain(measurement: Measurement, slow: str, fast: str) -> str:
    times = measurement.timings
    if slow not in times or fast not in times:
        return NOT_MEASURED
    return f"{100 * (times[slow].wall.median / times[fast].wall.median - 1):+.0f} %"


def _pairwise(record: Record) -> Iterator[Section]:
    for case, unit in ((LATENCY, "Latency (us)"), (BANDWIDTH, "Bandwidth (MB/s)")):
        result = [measurement for measurement in record.measurements if measurement.case == case]
        programs = programs_of(result)
        rows = [
            [str(measurement.parameters["size"]), *(f"{_osu(measurement, name, case):.2f}" for name in programs)]
            for measurement in result
        ]
        head = ["# Size", *(f"{name}, {unit}" for name in programs)]
        charts = by_size(replace(record, measurements=result))
        title = f"OSU: {case} between two ranks, {place(record)}"
        yield Section(_name(record, f"osu-{case}"), title, head, rows, charts)


def _osu(measurement: Measurement, program: str, case: str) -> float:
    seconds = measurement.timings[program].wall.median
    return 1e6 * seconds if case == LATENCY else measurement.parameters["size"] / seconds / 1e6


def text_of(section: Section) -> str:
    """Return a table as Markdown."""
    return f"**{section.title}**\n\n{markdown(section.head, section.rows)}\n"
