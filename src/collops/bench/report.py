"""Plots and the README's table of speed, made from recorded results alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collops.bench.jacobi_plot import draw_scaling
from collops.bench.record import Measurement, Record, read_record
from collops.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "BEGIN",
    "END",
    "plot_bandwidth",
    "plot_jacobi",
    "plot_speedups",
    "read_records",
    "seconds_in_words",
    "speed_table",
    "update_readme",
    "write_plots",
]

BEGIN, END = "<!-- speed table: begin -->", "<!-- speed table: end -->"
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def read_records(folder: str | Path) -> list[Record]:
    """Read all records of a folder, in the order of their file names.

    Raises
    ------
    InputError
        If there are none, or one cannot be read.
    """
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        raise InputError(f"there are no results in {folder}: run a benchmark first, e.g. collops bench arrays")
    return [read_record(path) for path in paths]


def seconds_in_words(seconds: float) -> str:
    """Write a time with three digits in the unit that suits it."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= factor or unit == "µs":
            return f"{_three_digits(seconds / factor)} {unit}"
    raise AssertionError("every time has a unit")


def speed_table(records: Sequence[Record]) -> str:
    """Return the table of speed in Markdown: every measurement that has a headline.

    The times are medians of the rounds on the clock ``wall``; where the peer was not measured the table
    says so.
    """
    lines = [
        "| work | machine | collops | peer | ratio |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for record in records:
        for measurement in record.measurements:
            if measurement.headline is not None and measurement.ours in measurement.timings:
                lines.append(_row(record, measurement))
    lines += ["", "Median wall times, both programs in turns in one run. Made by `collops bench plot`."]
    return "\n".join(lines)


def _row(record: Record, measurement: Measurement) -> str:
    ours = seconds_in_words(measurement.timings[measurement.ours].wall.median)
    peer = "none"
    if measurement.peer is not None:
        measured = measurement.timings.get(measurement.peer)
        time = "not measured" if measured is None else seconds_in_words(measured.wall.median)
        peer = f"{measurement.peer}: {time}"
    ratio = "" if measurement.speedup is None else f"{_three_digits(measurement.speedup)}x"
    return f"| {_label(measurement)} | {_where(record)} | {ours} | {peer} | {ratio} |"


def _where(record: Record) -> str:
    devices = record.machine["devices"]
    if devices:
        return f"{len(devices)} x {devices[0]}"
    return f"{record.machine['cores']} CPU cores, {record.ranks} rank{'s' if record.ranks > 1 else ''}"


def update_readme(path: str | Path, records: Sequence[Record]) -> None:
    """Replace what stands between the two markers in a Markdown file by the table of speed.

    Raises
    ------
    InputError
        If the file cannot be read or written, or does not have both markers once and in order.
    """
    path = Path(path)
    try:
        text = path.read_text()
        if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
            raise InputError(f"{path} needs the lines {BEGIN} and {END}, once and in this order")
        before, _, rest = text.partition(BEGIN)
        after = rest.partition(END)[2]
        path.write_text(f"{before}{BEGIN}\n{speed_table(records)}\n{END}{after}")
    except OSError as problem:
        raise InputError(f"cannot rewrite {path}: {problem.strerror or problem}") from problem


def write_plots(records: Sequence[Record], folder: str | Path) -> list[Path]:
    """Plot the bandwidth for each record of collectives, the scaling of Jacobi's method, and the speed of all others.

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
    machines: dict[str, list[Record]] = {}
    for record in records:
        if record.benchmark == "jacobi":
            machines.setdefault(record.machine_name, []).append(record)
    for machine, there in machines.items():
        written.append(plot_jacobi(there, folder / f"jacobi-{machine}.png"))
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
    figure.suptitle(f"Bus bandwidth of one call, {_where(record)}, float32")
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
    panel.set_xticks(ticks, [_bytes_in_words(tick) for tick in ticks])
    panel.set(title=operation, xlabel="message size", ylabel="bus bandwidth, GB/s")
    panel.grid(alpha=0.3)


def plot_jacobi(records: Sequence[Record], path: str | Path) -> Path:
    """Plot the time of an iteration of Jacobi's method over the ranks: a panel a family of grids, a line a variant."""
    families = {measurement.case for record in records for measurement in record.measurements}
    figure = _figure(width=1.0 + 3.2 * len(families), height=3.6)
    draw_scaling(figure, records)
    figure.suptitle(f"Jacobi's method, {records[0].machine_name}, norm in every iteration")
    return _save(figure, path)


def plot_speedups(records: Sequence[Record], path: str | Path) -> Path:
    """Plot how many times faster than its peer each piece of work with a headline is, as bars."""
    rows = [
        (_label(measurement), measurement.peer, speedup)
        for record in records
        for measurement in record.measurements
        if measurement.headline is not None and (speedup := measurement.speedup) is not None
    ]
    figure = _figure(width=9, height=1.2 + 0.32 * len(rows))
    panel = figure.subplots()
    places = range(len(rows))
    bars = panel.barh(places, [row[2] for row in rows], color="C0", height=0.7)
    panel.bar_label(bars, [f"{_three_digits(row[2])}x" for row in rows], padding=3)
    panel.set_yticks(places, [row[0] for row in rows])
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.axvline(1.0, color="black", linewidth=0.8)
    panel.margins(x=0.15)
    peers = ", ".join(sorted({str(row[1]) for row in rows}))
    panel.set_xlabel(f"times faster than {peers}")
    panel.set_title(_where(records[0]))
    return _save(figure, path)


def _label(measurement: Measurement) -> str:
    """Return the headline, with the shape behind it that it may lack: one operator stands there in several sizes."""
    headline = str(measurement.headline)
    shape = " x ".join(map(str, measurement.parameters.get("shape", ())))
    return headline if shape in headline else f"{headline}, {shape}"


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


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _bytes_in_words(size: int) -> str:
    factor, unit = next((factor, unit) for factor, unit in _UNITS if size >= factor)
    return f"{size // factor} {unit}"
