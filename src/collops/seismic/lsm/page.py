"""The interactive page of a migration or an inversion, generated from ``result.zarr`` alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collops.extend.applications import COLORS, atomic, digits, render, svg
from collops.extend.arrays import open_node
from collops.seismic.lsm.geometry_charts import geometry_charts

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

_TEMPLATE = Path(__file__).parent / "page.html"
_MAX_POINTS = 4_000_000  # of an image on the page; a point takes 2.7 bytes
_MAX_BYTES = 16 << 20  # of traces in memory, unless a shot is larger
_MAX_NORMS = 500  # number of points of the convergence plot
_MAX_MARKS = 60  # maximum number of points with large markers
_GATHERS = {"data": "recorded", "explained": "explained by the {subject}", "data_residual": "not explained"}


class Words(NamedTuple):
    """What a page shows, in words.

    Attributes
    ----------
    title : str
        The title of the page.
    images : dict of str
        The names of images in ``result.zarr``, and their labels, in the order of the page.
    speeds : tuple of str
        The images that are velocities.
    subject : str
        What the traces are modelled from.
    """

    title: str
    images: Mapping[str, str]
    speeds: tuple[str, ...]
    subject: str


_MIGRATION = Words(
    "Least-squares migration",
    {
        "image": "least-squares image",
        "adjoint_image": "adjoint image",
        "difference": "difference",
        "standard_deviation": "standard deviation of the image",
        "truth": "true reflectivity",
        "velocity": "velocity",
        "illumination": "illumination",
    },
    ("velocity",),
    "image",
)


def write_page(folder: Path, words: Words = _MIGRATION) -> Path:
    """Write ``result.html`` next to ``result.zarr`` in the folder of the results; return its path.

    The page loads only files of the folder ``shots`` in the same folder, one for each shot of ``result.zarr``.
    """
    group = open_node(folder / "result.zarr")
    nodes = {name: open_node(group, name) for name in group.array_keys()}
    # Read what the page shows: not the traces yet, nor other sections of 3-D images.
    fields = {name: node[...] for name, node in nodes.items() if node.ndim == 1}
    fields |= {name: np.asarray(section(nodes[name])) for name in words.images if name in nodes}
    numbers: dict[str, Any] = dict(group.attrs)
    if "adjoint_scale" in numbers:
        fields["difference"] = fields["image"] - numbers["adjoint_scale"] * fields["adjoint_image"]
    seconds = nodes["seconds"][...].tolist()
    firsts = np.unique(fields["shot"], return_index=True)[1]
    page = render(
        _TEMPLATE,
        title=words.title,
        subject=words.subject,
        facts=_facts(numbers, words.subject),
        payload=_payload(fields, words) | {"records": fields["field_record"][firsts].tolist()},
        images=[(name, text) for name, text in words.images.items() if name in fields],
        gathers=[(name, text.format(subject=words.subject)) for name, text in _GATHERS.items()],
        shots=len(firsts),
        every=int(np.diff(fields["shot"][firsts]).max(initial=1)),
        convergence=_convergence(fields["residual_norms"]),
        held_out=_convergence(fields["held_out_residuals"], chosen=True) if "held_out_residuals" in fields else None,
        geometry=geometry_charts(fields, numbers["surface_speed"]),
        kinds=numbers["kinds"],
        seconds=seconds,
        longest=max(map(sum, seconds)) or 1.0,
        milliseconds=[[f"rank {rank}", *(digits(1e3 * value) for value in row)] for rank, row in enumerate(seconds)],
        run=_run(numbers),
        digits=digits,
    )
    with atomic(folder / "shots") as shots:
        shots.mkdir()
        for number, shot in enumerate(_shots(nodes, fields, [*firsts.tolist(), len(fields["shot"])])):
            content = json.dumps(shot, separators=(",", ":"))
            (shots / f"{number}.js").write_text(f"shot({number},{content})", encoding="ascii")
    path = folder / "result.html"
    with atomic(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def _shots(nodes: Mapping[str, Any], fields: Mapping[str, np.ndarray], ends: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the content of the file of each shot, whose traces are between two of `ends`.

    The traces of several shots are read at once: a chunk of the group holds several, and is decoded as a whole.
    """
    gathers = {name: nodes[name] for name in _GATHERS if name in nodes}
    bytes_of_trace = sum(node.dtype.itemsize * node.shape[1] for node in gathers.values())
    first = 0
    for last in range(1, len(ends)):
        if last == len(ends) - 1 or (ends[last + 1] - ends[first]) * bytes_of_trace > _MAX_BYTES:
            yield from _read(gathers, fields, ends[first : last + 1])
            first = last


def _read(gathers: Mapping[str, Any], fields: Mapping[str, np.ndarray], ends: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the same for consecutive shots, whose traces are read at once."""
    traces = {name: node[ends[0] : ends[-1]] for name, node in gathers.items()}
    for first, last in pairwise(ends):
        of_shot = {name: values[first - ends[0] : last - ends[0]] for name, values in traces.items()}
        yield _shot(of_shot, fields["channel"][first:last], fields["offset"][first:last])


def _shot(traces: Mapping[str, np.ndarray], channel: np.ndarray, offset: np.ndarray) -> dict[str, Any]:
    """Return the traces of a shot as signed square roots, for which a byte resolves weak echoes better."""
    steps = np.diff(offset)
    roots = {name: np.sign(values) * np.sqrt(np.abs(values)) for name, values in traces.items()}
    return {
        "channel": channel.tolist(),
        "offset": _round(offset),
        "even": bool(len(steps) and np.ptp(steps) <= 0.1 * abs(steps.mean())),  # otherwise the axis has trace numbers
        **{name: _packed(values, np.int8) for name, values in roots.items()},
    }


def _facts(numbers: Mapping[str, Any], subject: str) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("survey", f"{numbers['shots']} shots, {numbers['traces']} traces"),
        ("iterations", numbers["iterations"]),
        ("norm of the residual", f"{digits(100 * numbers['residual_reduction'])} % of the first"),
        ("an iteration", f"{digits(1e3 * numbers['seconds_per_iteration'])} ms"),
        ("ranks", f"{numbers['ranks']} ({numbers['engine']})"),
    ]
    if "y0" in numbers:
        facts.insert(1, ("section shown", f"y = {numbers['y0'] + numbers['dy'] * (numbers['ny'] // 2):.5g} m"))
    if numbers["relative_error"] is not None:
        facts.insert(3, (f"error of the {subject}", f"{100 * numbers['relative_error']:.1f} %"))
    return facts


# The page holds arrays as integers and a scale: 16 bits resolve the displayed values to 1 in 30 000.


def section(image: np.ndarray) -> np.ndarray:
    """Return an image of shape ``(nx, nz)``: a 2-D image, or the section of a 3-D image in the middle of axis y."""
    return image if image.ndim == 2 else image[image.shape[0] // 2]


def _payload(fields: Mapping[str, np.ndarray], words: Words = _MIGRATION) -> dict[str, Any]:
    sections = {name: fields[name] for name in words.images if name in fields}
    step = int(np.ceil(np.sqrt(max(1.0, max(image.size for image in sections.values()) / _MAX_POINTS))))
    images = {name: _packed(image[::step, ::step]) for name, image in sections.items()}
    return {
        "speeds": list(words.speeds),
        "x": _round(fields["x"][::step]),
        "z": _round(fields["z"][::step]),
        "images": images,
        "time": _round(fields["time"]),
    }


def _packed(values: np.ndarray, kind: type[np.signedinteger] = np.int16) -> dict[str, Any]:
    """Return values as integers of a type, their scale, and the value of 0."""
    low, high = (float(end) for end in (values.min(), values.max())) if values.size else (0.0, 0.0)
    # Zero is represented exactly in arrays of both signs.
    middle = 0.0 if low <= 0 <= high else (low + high) / 2
    scale = max(high - middle, middle - low) / np.iinfo(kind).max or 1.0
    integers = np.rint((values.astype(np.float64) - middle) / scale).astype(np.dtype(kind).newbyteorder("<"))
    text = base64.b64encode(np.ascontiguousarray(integers).tobytes()).decode("ascii")
    return {"bytes": integers.itemsize, "scale": scale, "middle": middle, "values": text}


def _round(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _convergence(norms: np.ndarray, *, chosen: bool = False) -> Markup:
    """Plot norms against iterations; `chosen` marks the smallest, at least iteration 1."""
    from matplotlib.ticker import MaxNLocator

    shares = norms / norms[0] if norms[0] else norms
    last = len(shares) - 1
    shown = [*range(0, last, -(-len(shares) // _MAX_NORMS)), last]
    shown = [number for number in shown if shares[number] > 0] or shown

    def draw(axes: Axes) -> dict[str, list[str]]:
        marks = "." if len(shown) > _MAX_MARKS else "o"
        axes.plot(shown, shares[shown], color=COLORS[0], marker=marks, markersize=4, gid="norms", clip_on=False)
        if chosen and last:
            best = max(1, int(shares.argmin()))
            axes.plot(best, shares[best], color=COLORS[1], marker="o", markersize=9, fillstyle="none")
        # A logarithmic axis of less than a decade has one tick or none.
        decades = shares[shown].min() > 0 and shares[shown].max() >= 10 * shares[shown].min()
        axes.set(xlabel="iteration", ylabel="share of the first", yscale="log" if decades else "linear")
        axes.set_xlim(left=0.0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter("{x:.3g}")
        axes.yaxis.set_minor_formatter("")
        return {"norms": [f"iteration {number}, {shares[number]:.4g}" for number in shown]}

    name = "held-out" if chosen else "convergence"
    return svg(draw, name, f"Norm of the residual{' of held-out traces' * chosen} by iteration")


def _run(numbers: Mapping[str, Any]) -> list[tuple[str, str]]:
    hidden = ("surface_speed", "versions", "seconds_split", "kinds", "coordinates", "adjoint_scale")
    shown = {name: value for name, value in numbers.items() if name not in hidden}
    shown |= {f"{package}, version": version for package, version in numbers["versions"].items()}
    return [(name.replace("_", " "), _words(value)) for name, value in shown.items() if value is not None]


def _words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(_words(item) for item in value) if isinstance(value, list) else str(value)
