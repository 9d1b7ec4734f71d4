"""Recorded results as they lie in a folder, and the plots that are made from them alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collops_bench.jacobi_plot import draw_scaling
from collops_bench.prediction import scaling_of
from collops_bench.reading import read_record
from collops_bench.record import Measurement, Record
from collops_bench.scaling_plot import draw_predictions
from collops_bench.speed import bytes_in_words, place, speed_rows, three_digits
from collops_bench.starforest_plot import draw_wires, panels_of
from collops.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "plot_bandwidth",
    "plot_jacobi",
    "plot_scaling",
    "plot_speedups",
    "plot_wires",
    "read_folder",
    "read_records",
    "write_plots",
]


def read_folder(folder: str | Path) -> dict[str, Record]:
    """Read all records of a folder.

    Returns
    -------
    dict of str to Record
        By the names of their files, in the order of these.

    Raises
    ------
    InputError
        If there are none, or one cannot be read.
    """
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        raise InputError(f"there are no results in {folder}: run a benchmark first, e.g. collops bench arrays")
    return {path.name: read_record(path) for path in paths}


def read_records(folder: str | Path) -> list[Record]:
    """Read all records of a folder, in the order of their file names. Raises what `read_folder` does."""
    return list(read_folder(folder).values())


def write_plots(records: Sequence[Record], folder: str | Path) -> list[Path]:
    """Plot the bandwidth of collectives, the wires of star forests, the scaling of Jacobi's method, and all speeds.

    Returns
    -------
    list of Path
        The PNG files.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"cannot make the folder {folder}: {problem.strerror or problem}") from problem
    written: list[Path] = []
    for record in records:
        if record.benchmark == "collectives":
            name = f"bandwidth-{record.machine_name}-{record.ranks}.png"
            written.append(plot_bandwidth(record, folder / name))
        if record.benchmark == "starforest":
            written.append(plot_wires(record, folder / f"starforest-{record.machine_name}-{record.ranks}.png"))
    machines: dict[str, list[Record]] = {}
    for record in records:
        if record.benchmark == "jacobi":
            machines.setdefault(record.machine_name, []).append(record)
    for machine, there in machines.items():
        written.append(plot_jacobi(there, folder / f"jacobi-{machine}.png"))
    if _scales(records):
        written.append(plot_scaling(records, folder / "scaling.png"))
    places: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        shown = any(m.headline is not None and m.speedup is not None for m in record.measurements)
        if shown and record.benchmark != "collectives":
            places.setdefault((record.machine_name, record.ranks), []).append(record)
    for (machine, ranks), there in places.items():
        written.append(plot_speedups(there, folder / f"speed-{machine}-{ranks}.png"))
    return written


def plot_bandwidth(record: Record, path: str | Path) -> Path:
    """Plot bus bandwidth against message size: a panel an operation, a line a wire and the raw library.

    The median is drawn as a line, the range over the rounds as a band around it.
    """
    operations = list(dict.fromkeys(measurement.case for measurement in record.measurements))
    figure = _figure(width=11, height=3.2 * ((len(operations) + 2) // 3))
    panels = figure.subplots((len(operations) + 2) // 3, 3, squeeze=False).ravel()
    programs = list(dict.fromkeys(name for one in record.measurements for name in one.timings))
    for panel, operation in zip(panels, operations, strict=False):
        of_operation = [measurement for measurement in record.measurements if measurement.case == operation]
        _draw_bandwidth(panel, operation, of_operation, programs)
    for panel in panels[len(operations) :]:
        panel.axis("off")
    # Not every wire can do every operation: the legend takes each line from the first panel that has it.
    lines = {line.get_label(): line for panel in panels for line in reversed(panel.get_lines())}
    shown = [name for name in programs if name in lines]
    figure.legend([lines[name] for name in shown], shown, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(f"Bus bandwidth of one call, {place(record)}, float32")
    return _save(figure, path)


def _draw_bandwidth(panel: Axes, operation: str, measurements: Sequence[Measurement], programs: Sequence[str]) -> None:
    for number, program in enumerate(programs):
        measured = [one for one in measurements if program in one.timings]
        if not measured or not any(one.figures[program]["bus_bandwidth"] for one in measured):
            continue
        sizes = [one.parameters["size"] for one in measured]
        medians = [1e-9 * one.figures[program]["bus_bandwidth"] for one in measured]
        spreads = [one.timings[program].clocks.get("device", one.timings[program].wall) for one in measured]
        # The bandwidth of the fastest and of the slowest round, from the one of the median.
        low = [value * s.median / s.maximum for value, s in zip(medians, spreads, strict=True)]
        high = [value * s.median / s.minimum for value, s in zip(medians, spreads, strict=True)]
        style = "-" if program.startswith("collops") else "--"
        panel.plot(sizes, medians, style, color=f"C{number}", marker=".", label=program)
        panel.fill_between(sizes, low, high, color=f"C{number}", alpha=0.15, linewidth=0)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    ticks = [1 << shift for shift in range(3, 33, 6)]
    largest = max((one.parameters["size"] for one in measurements), default=8)
    ticks = [tick for tick in ticks if tick <= largest]
    panel.set_xticks(ticks, [bytes_in_words(tick) for tick in ticks])
    panel.set(title=operation, xlabel="message size", ylabel="bus bandwidth, GB/s")
    panel.grid(alpha=0.3)


def plot_jacobi(records: Sequence[Record], path: str | Path) -> Path:
    """Plot the time of an iteration of Jacobi's method over the ranks: a panel a family of grids, a line a variant."""
    families = {measurement.case for record in records for measurement in record.measurements}
    figure = _figure(width=1.0 + 3.2 * len(families), height=3.6)
    draw_scaling(figure, records)
    figure.suptitle(f"Jacobi's method, {records[0].machine_name}, norm in every iteration")
    return _save(figure, path)


def plot_wires(record: Record, path: str | Path) -> Path:
    """Plot the time of star forests' movers and scatters by message size: a panel a case, a line a wire."""
    figure = _figure(width=13, height=1.0 + 2.8 * (-(-len(panels_of(record)) // 4)))
    draw_wires(figure, record)
    figure.suptitle(f"Star forests, {place(record)}, float64: time of one call")
    return _save(figure, path)


def _scales(records: Sequence[Record]) -> bool:
    """Whether there is a machine whose limits were measured, and work on several numbers of ranks."""
    machines = {record.machine_name for record in records if record.benchmark == "limits"}
    runs = {(record.machine_name, record.ranks) for record in records if record.benchmark == "scaling"}
    return any(len([1 for machine, _ in runs if machine == name]) > 1 for name in machines)


def plot_scaling(records: Sequence[Record], path: str | Path) -> Path:
    """Plot how work scales, as it was measured and as a model of it says of more ranks."""
    scaling = scaling_of(records)
    figure = _figure(width=9.5, height=0.6 + 2.8 * len(scaling.models))
    draw_predictions(figure, scaling)
    machine = place(scaling.records[-1]).split(" x ")[-1]
    figure.suptitle(f"{machine}: measured (dots) and predicted (lines; grey where the first node ends)")
    return _save(figure, path)


def plot_speedups(records: Sequence[Record], path: str | Path) -> Path:
    """Plot how many times faster than its peer each piece of work with a headline is, as bars."""
    rows = [(row.work, str(row.peer_name), row.ratio) for row in speed_rows(records) if row.ratio is not None]
    figure = _figure(width=9, height=1.2 + 0.32 * len(rows))
    panel = figure.subplots()
    places = range(len(rows))
    ratios = [row[2] for row in rows]
    panel.barh(places, [ratio - 1 for ratio in ratios], left=1.0, color="C0", height=0.7)
    for number, ratio in enumerate(ratios):
        panel.text(1.03 * max(1.0, ratio), number, f"{three_digits(ratio)}x", va="center")
    panel.set_yticks(places, [row[0] for row in rows])
    panel.set_xscale("log")
    panel.axvline(1.0, color="black", linewidth=0.8)
    panel.set_xlim(0.9 * min(1.0, *ratios), 3.0 * max(1.0, *ratios))
    panel.xaxis.set_major_formatter("{x:g}x")
    panel.set_ylim(len(rows) - 0.4, -0.6)
    peers = ", ".join(sorted({row[1] for row in rows}))
    panel.set_xlabel(f"times as fast as {peers}")
    panel.set_title(place(records[0]))
    return _save(figure, path)


def _figure(width: float, height: float) -> Any:
    # The object, not pyplot: no display and no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: str | Path) -> Path:
    path = Path(path)
    try:
        figure.savefig(path, dpi=120)
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror or problem}") from problem
    return path
