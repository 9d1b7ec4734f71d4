"""The result as a small interactive page, made from ``result.zarr`` alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from collops.apps.outputs import atomic
from collops.pages import (
    Axis,
    Markup,
    Point,
    Section,
    Series,
    document,
    facts,
    figure_grid,
    fold,
    join,
    line_chart,
    table,
    tag,
)

__all__ = ["write_page"]

_HERE = Path(__file__).parent
_MOST_POINTS = 30_000  # of an image on the page
_MOST_NORMS = 500  # of the line of convergence
_IMAGES = {
    "image": "least-squares image",
    "adjoint_image": "adjoint image",
    "truth": "true reflectivity",
    "velocity": "velocity",
}
_GATHERS = {"data": "recorded", "explained": "explained by the image", "data_residual": "not explained"}


def write_page(folder: Path) -> Path:
    """Write ``result.html`` beside ``result.zarr``, from what is in it.

    Parameters
    ----------
    folder : pathlib.Path
        That of the results.

    Returns
    -------
    pathlib.Path
        The page: one file of a few hundred kB that asks for nothing from elsewhere.
    """
    import zarr

    group = zarr.open_group(str(folder / "result.zarr"), mode="r")
    fields = {name: np.asarray(array) for name, array in group.arrays()}
    numbers: dict[str, Any] = dict(group.attrs)
    path = folder / "result.html"
    with atomic(path) as temporary:
        temporary.write_text(_page(fields, numbers), encoding="utf-8")
    return path


def _page(fields: Mapping[str, np.ndarray], numbers: Mapping[str, Any]) -> str:
    sections = [
        Section("image", "Image", _images(fields)),
        Section("gathers", "Shots", _gathers(fields)),
        Section("convergence", "Convergence", figure_grid(_convergence(fields["residual_norms"]))),
        Section("time", "Time of an iteration, rank by rank", _timeline(fields["seconds"], numbers["kinds"])),
        Section("run", "The run", _run(numbers)),
    ]
    data = tag("script", Markup(_payload(fields)), type="application/json", id="fields")
    lead = join([_lead(numbers), data])
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return document("Least-squares migration", lead, sections, style=style, script=script)


def _lead(numbers: Mapping[str, Any]) -> Markup:
    said: list[tuple[str, object]] = [
        ("survey", f"{numbers['shots']} shots, {numbers['traces']} traces"),
        ("iterations", numbers["iterations"]),
        ("norm of the residual", f"{100 * numbers['residual_reduction']:.3g} % of the first"),
        ("an iteration", f"{1e3 * numbers['seconds_per_iteration']:.3g} ms"),
        ("ranks", f"{numbers['ranks']} ({numbers['engine']})"),
    ]
    if numbers["relative_error"] is not None:
        said.insert(3, ("error of the image", f"{100 * numbers['relative_error']:.1f} %"))
    return facts(said)


# Arrays travel as 16-bit integers and their scale: a value at the pointer is right to a part in 30 000.


def _payload(fields: Mapping[str, np.ndarray]) -> str:
    step = int(np.ceil(np.sqrt(max(1.0, fields["image"].size / _MOST_POINTS))))
    images = {name: _packed(fields[name][::step, ::step]) for name in _IMAGES if name in fields}
    content = {
        "x": _round(fields["x"][::step]),
        "z": _round(fields["z"][::step]),
        "images": images,
        "shots": fields["shot"].tolist(),
        "time": _round(fields["time"]),
        "offset": [_round(row) for row in fields["offset"]],
        "data": _packed(fields["data"], np.int8),
        "data_residual": _packed(fields["data_residual"], np.int8),
    }
    # A slash after "<" would end the element that the text stands in.
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")


def _packed(values: np.ndarray, kind: type[np.signedinteger] = np.int16) -> dict[str, Any]:
    """Return values as integers of a type, their scale, and the value of 0."""
    low, high = (float(end) for end in (values.min(), values.max())) if values.size else (0.0, 0.0)
    # What has both signs keeps its zero.
    middle = 0.0 if low <= 0 <= high else (low + high) / 2
    scale = max(high - middle, middle - low) / np.iinfo(kind).max or 1.0
    whole = np.rint((values.astype(np.float64) - middle) / scale).astype(np.dtype(kind).newbyteorder("<"))
    text = base64.b64encode(np.ascontiguousarray(whole).tobytes()).decode("ascii")
    return {"bytes": whole.itemsize, "scale": scale, "middle": middle, "values": text}


def _round(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


# Sections


def _images(fields: Mapping[str, np.ndarray]) -> Markup:
    choices = [(name, words) for name, words in _IMAGES.items() if name in fields]
    return join(
        [
            tag(
                "div",
                _choice("shown", choices),
                _slider("gain", "gain"),
                tag("label", tag("input", type="checkbox", id="balance"), "balance amplitudes over depth"),
                class_="controls",
            ),
            _canvas("picture", "The image, distance to the right and depth downwards"),
            tag(
                "p",
                "Point at the image to read its values; the line below is the column at the pointer.",
                class_="soft",
            ),
            _canvas("column", "Values of one column of the image over depth", small=True),
        ]
    )


def _gathers(fields: Mapping[str, np.ndarray]) -> Markup:
    shots = [(str(number), f"shot {shot}") for number, shot in enumerate(fields["shot"].tolist())]
    panels = [
        tag("figure", tag("figcaption", words), _canvas(f"gather-{name}", f"Traces of one shot, {words}"))
        for name, words in _GATHERS.items()
    ]
    return join(
        [
            tag("div", _choice("shot", shots), _slider("loud", "gain"), class_="controls"),
            figure_grid(*panels),
            tag("p", "All three have one scale. What the image explains is modelled from it.", class_="soft"),
        ]
    )


def _choice(name: str, choices: list[tuple[str, str]]) -> Markup:
    options = [
        tag("label", tag("input", type="radio", name=name, value=value, checked=number == 0), words)
        for number, (value, words) in enumerate(choices)
    ]
    return tag("span", *options, class_="choice", role="radiogroup", aria_label=name)


def _slider(name: str, words: str) -> Markup:
    return tag("label", words, tag("input", type="range", id=name, min=-2, max=4, step=0.25, value=0))


def _canvas(name: str, words: str, *, small: bool = False) -> Markup:
    # Pictures of numbers: those who do not see them get the words, and the numbers are in result.zarr.
    inner = tag("canvas", id=name, role="img", aria_label=words, class_="small" if small else None)
    return tag("div", inner, tag("output", id=f"{name}-words"), class_="plot")


def _convergence(norms: np.ndarray) -> Markup:
    shares = norms / norms[0] if norms[0] else norms
    last = len(shares) - 1
    shown = [*range(0, last, -(-len(shares) // _MOST_NORMS)), last]
    points = [Point(number, float(shares[number]), f"iteration {number}, {shares[number]:.4g}") for number in shown]
    drawn = [point for point in points if point.y > 0]
    line = Series("norm of the residual", drawn or points, 0)
    return line_chart(
        "Norm of the residual over its first",
        [line],
        Axis("iteration", start=0.0),
        Axis("share of the first", "{:.3g}".format, log=bool(drawn)),
    )


def _timeline(seconds: np.ndarray, kinds: list[str]) -> Markup:
    """Return one bar a rank, of the parts of an iteration one after the other."""
    longest = float(seconds.sum(axis=1).max()) or 1.0
    bars = []
    for rank, parts in enumerate(seconds.tolist()):
        pieces = [
            tag(
                "span",
                class_=f"piece p{number % 3}",
                style=f"width:{100 * part / longest:.2f}%",
                title=f"{kind}: {1e3 * part:.3g} ms",
            )
            for number, (kind, part) in enumerate(zip(kinds, parts, strict=True))
        ]
        bars.append(tag("li", tag("span", f"rank {rank}", class_="name"), tag("span", *pieces, class_="track")))
    key = tag(
        "ul",
        *(tag("li", tag("span", class_=f"swatch p{number % 3}"), kind) for number, kind in enumerate(kinds)),
        class_="legend",
    )
    rows = [[f"rank {rank}", *(f"{1e3 * part:.3g}" for part in parts)] for rank, parts in enumerate(seconds.tolist())]
    numbers = table(["", *kinds], rows, numbers=range(1, len(kinds) + 1), caption="Milliseconds")
    return join([key, tag("ul", *bars, class_="timeline", aria_hidden="true"), numbers])


def _run(numbers: Mapping[str, Any]) -> Markup:
    shown = {name: value for name, value in numbers.items() if name not in ("versions", "seconds_split", "kinds")}
    shown |= {f"{package}, version": version for package, version in numbers["versions"].items()}
    rows = [[name.replace("_", " "), _words(value)] for name, value in shown.items() if value is not None]
    return fold("All numbers and versions", table(["", "value"], rows))


def _words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(_words(one) for one in value) if isinstance(value, list) else str(value)
