"""The plots of ``collops bench plot``, from the records of a folder alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collops.errors import InputError
from collops_bench.charts import by_size, new_figure, over_ranks, predictions, save, sheet
from collops_bench.prediction import scaling_of
from collops_bench.record import Record
from collops_bench.speed import place, speed_rows, three_digits

__all__ = ["write_plots"]


def write_plots(records: Sequence[Record], folder: str | Path) -> list[Path]:
    """Plot collectives and star forests by size, Jacobi's method and predictions over the ranks, and all speeds.

    Return the PNG files.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"cannot create the folder {folder}: {problem.strerror or problem}") from problem
    written = []
    for record in records:
        machine = f"{record.machine_name}-{record.ranks}.png"
        if record.benchmark == "collectives":
            title = f"Bus bandwidth of one call, {place(record)}, float32"
            written.append(sheet(by_size(record), title, folder / f"bandwidth-{machine}", ranges=True))
        if record.benchmark == "starforest":
            title = f"Star forests, {place(record)}, float64"
            written.append(sheet(by_size(record), title, folder / f"starforest-{machine}", columns=4))
    machines: dict[str, list[Record]] = {}
    for record in records:
        if record.benchmark == "jacobi":
            machines.setdefault(record.machine_name, []).append(record)
    for machine, group in machines.items():
        for charts in over_ranks(group).values():
            title = f"Jacobi's method, {machine}, norm in every iteration"
            written.append(sheet(charts, title, folder / f"jacobi-{machine}.png", columns=4))
    if _scales(records):
        scaling = scaling_of(records)
        machine = place(scaling.records[-1]).split(" x ")[-1]
        title = f"{machine}: measured (markers) and predicted (lines); the grey line is one full node"
        written.append(sheet(predictions(scaling), title, folder / "scaling.png", columns=2, keys=True))
    places: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        shown = any(m.headline is not None and m.speedup is not None for m in record.measurements)
        if shown and record.benchmark != "collectives":
            places.setdefault((record.machine_name, record.ranks), []).append(record)
    for (machine, ranks), group in places.items():
        written.append(_speedups(group, folder / f"speed-{machine}-{ranks}.png"))
    return written


def _scales(records: Sequence[Record]) -> bool:
    """Return whether the limits of a machine and work on several numbers of its ranks were measured."""
    machines = {record.machine_name for record in records if record.benchmark == "limits"}
    runs = {(record.machine_name, record.ranks) for record in records if record.benchmark == "scaling"}
    return any(len([1 for machine, _ in runs if machine == name]) > 1 for name in machines)


def _speedups(records: Sequence[Record], path: Path) -> Path:
    """Plot the ratios of speed to the peer as bars, for all work with a headline."""
    rows = [(row.work, str(row.peer_name), row.ratio) for row in speed_rows(records) if row.ratio is not None]
    picture = new_figure(9, 1.2 + 0.32 * len(rows))
    panel = picture.subplots()
    ratios = [row[2] for row in rows]
    bars = panel.barh(range(len(rows)), [ratio - 1 for ratio in ratios], left=1.0, height=0.7)
    panel.bar_label(bars, [f"{three_digits(ratio)}x" for ratio in ratios], padding=3)
    panel.set_yticks(range(len(rows)), [row[0] for row in rows])
    panel.set_xscale("log")
    panel.axvline(1.0, color="black", linewidth=0.8)
    panel.set_xlim(0.9 * min(1.0, *ratios), 3.0 * max(1.0, *ratios))
    panel.xaxis.set_major_formatter("{x:g}x")
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.set_xlabel(f"speed relative to {', '.join(sorted({row[1] for row in rows}))}")
    panel.set_title(place(records[0]))
    return save(picture, path)
