"""Tables of measurements for the pages, written from the records in `benchmarks/results` and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from collops_bench.floors import floors_table
from collops_bench.published import sections, text_of
from collops_bench.record import Record, read_folder
from collops_bench.speed import markdown, programs_of, speed_table, time_in_words
from collops_bench.strongest import strongest_table

if TYPE_CHECKING:
    from sphinx.application import Sphinx

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_WIRES = ("nccl", "mpi", "staged")
_SIZES = {8: "8 B", 1 << 16: "64 KiB", 1 << 20: "1 MiB", 1 << 22: "4 MiB", 1 << 26: "64 MiB"}
_FOREST_SIZES = {1 << 10: "1 KiB", 1 << 16: "64 KiB", 1 << 19: "512 KiB"}


def _largest(records: Sequence[Record], benchmark: str, devices: bool) -> Record:
    """Return the record of a benchmark on the most ranks."""
    found = [r for r in records if r.benchmark == benchmark and bool(r.machine["devices"]) == devices]
    return max(found, key=lambda record: record.ranks)


def _machine(record: Record) -> str:
    devices = record.machine["devices"]
    where = f"{len(devices)} x {devices[0]}" if devices else f"{record.machine['cores']} CPU cores"
    return f"{where}, {record.ranks} ranks, commit {str(record.commit)[:9]}, {record.started[:10]}"


def transports(records: Sequence[Record]) -> str:
    """Return what messages of device arrays take on each transport."""
    record = _largest(records, "collectives", devices=True)
    rows = [
        [f"`{m.case}` of {_SIZES[size]}", *(time_in_words(m, f"collops {wire}") for wire in _WIRES)]
        for m in record.measurements
        if (size := m.parameters.get("size")) in _SIZES and m.case in ("allreduce", "sendrecv")
    ]
    return f"{markdown(['message', *(f'`{wire}`' for wire in _WIRES)], rows)}\n\n{_machine(record)}.\n"


def models(records: Sequence[Record]) -> str:
    """Return what an iteration of Jacobi's method takes in each programming model."""
    record = _largest(records, "jacobi", devices=True)
    cases = [m for m in record.measurements if m.parameters["nx"] in (2048, 16384)]
    names = programs_of(cases)
    header = ["model", *(f"{m.parameters['nx']} x {m.parameters['ny']}" for m in cases)]
    rows = [[f"`{name}`" if name != "one rank" else name, *(time_in_words(m, name) for m in cases)] for name in names]
    return f"{markdown(header, rows)}\n\nTime of one iteration in {cases[0].parameters['dtype']}; {_machine(record)}.\n"


def forests(records: Sequence[Record]) -> str:
    """Return what star forests take on each wire of hosts."""
    record = _largest(records, "starforest", devices=False)
    known = ("collops shared", "collops mpi", "collops p2p", "collops neighbor", "PETSc basic", "PETSc neighbor")
    programs = [name for name in known if any(name in m.timings for m in record.measurements)]
    rows = [
        [f"{m.case}, {_FOREST_SIZES[size]} a rank", *(time_in_words(m, program) for program in programs)]
        for m in record.measurements
        if (size := m.parameters.get("bytes_per_rank")) in _FOREST_SIZES and m.case.startswith(("bcast", "reduce"))
    ]
    header = ["mover", *(name.replace("collops ", "") for name in programs)]
    return f"{markdown(header, rows)}\n\n{_machine(record)}.\n"


def published(records: Sequence[Record]) -> str:
    """Return the published figures beside those of the records, and the scatters on the most GPUs."""
    claims, *_ = sections(records)
    forests = [r for r in records if r.benchmark == "starforest" and r.machine["devices"]]
    scatters = sections([max(forests, key=lambda record: record.ranks)])[-1]
    return f"{text_of(claims)}\n{text_of(scatters)}"


def _tables() -> Iterator[tuple[str, str]]:
    by_file = read_folder(RESULTS)
    records = list(by_file.values())
    for write in (transports, models, forests, published):
        yield write.__name__, write(records)
    yield "speed", speed_table(records) + "\n"
    yield "strongest", strongest_table(by_file) + "\n"
    yield "floors", floors_table(by_file) + "\n"


def write_tables(app: Sphinx) -> None:
    """Write `_measured/*.md`, which pages include."""
    folder = Path(app.srcdir) / "_measured"
    folder.mkdir(exist_ok=True)
    for name, text in _tables():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the tables before the pages are read."""
    app.connect("config-inited", lambda app, _: write_tables(app))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
