"""Self-contained HTML pages: templates with a common base, and matplotlib figures as inline SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup
    from matplotlib.axes import Axes

__all__ = ["COLORS", "INK", "render", "svg"]

_TEMPLATES = Path(__file__).parent / "templates"
COLORS = ("#b5402a", "#1d6fa5", "#2f7d4f", "#8a5a00", "#7a4fa3", "#0f7f86", "#b03a74", "#5d6470")
"""Colours of lines; a page replaces them by the colours of its light or dark scheme."""
INK, _SOFT, _EDGE = "#22252b", "#5c626d", "#dcd9d2"
_VARIABLES = {color: f"var(--c{number})" for number, color in enumerate(COLORS)} | {
    INK: "var(--text)",
    _SOFT: "var(--soft)",
    _EDGE: "var(--edge)",
}
_WIDTH, _HEIGHT = 420, 290  # of a plot, in the units of its view box
_MARGINS = {"left": 70 / _WIDTH, "right": 1 - 12 / _WIDTH, "bottom": 40 / _HEIGHT, "top": 1 - 8 / _HEIGHT}
_STYLE: Any = {
    "font.size": 11.0,
    "font.sans-serif": ["DejaVu Sans"],
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "axes.grid": True,
    "grid.color": _EDGE,
    "grid.linewidth": 1.0,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
    **{f"{axis}tick.{kind}.size": 0.0 for axis in "xy" for kind in ("major", "minor")},
    "svg.fonttype": "none",  # text stays text, in the fonts of the page
}


def render(template: Path, **values: object) -> str:
    """Render the template of a page, which extends ``base.html``. All values except `Markup` are escaped.

    The template may include files of its own folder and of the folder of the base. An undefined name is an error.
    """
    return _environment(template.parent).get_template(template.name).render(values)


@cache
def _environment(folder: Path) -> Environment:
    """Return the environment of a folder's templates; it is cached, as compiling takes longer than rendering."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, _TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def svg(draw: Callable[[Axes], Mapping[str, Sequence[str]]], name: str, title: str) -> Markup:
    """Return a plot as an element of a page.

    `draw` draws on axes, and returns the tooltips of the markers for each line with a ``gid``. `name` must be unique on
    the page; `title` describes the plot for screen readers.
    """
    import matplotlib as mpl
    from markupsafe import Markup
    from matplotlib.figure import Figure

    file = io.StringIO()
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72))
        points = draw(figure.subplots(gridspec_kw=_MARGINS))
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ElementTree.fromstring(file.getvalue())
    for element in root.iter():
        _simplify(element)
    root[:] = [child for child in root if child.tag != "defs"]
    for group in root.iter("g"):
        words = points.get(group.attrib.pop("id", ""))
        if words is not None:
            group.set("class", "line")
            for mark, text in zip(group.iter("use"), words, strict=True):
                group.set("style", mark.attrib.pop("style"))
                mark.set("data-t", text)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": title, "class": "chart"}
    text = ElementTree.tostring(root, encoding="unicode")
    return Markup(re.sub("|".join(_VARIABLES), lambda match: _VARIABLES[match[0]], text))


def _simplify(element: ElementTree.Element) -> None:
    """Remove namespaces, fonts, clipping, decimals and spaces, to reduce the size of pages with many plots."""
    attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items() if key != "clip-path"}
    for key in attributes.keys() & {"d", "x", "y", "transform"}:
        rounded = re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), attributes[key])
        attributes[key] = " ".join(rounded.split())
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if "style" in attributes:
        style = re.sub(r"font-family: [^;]*(; )?|(stroke-linecap: square)", "", attributes["style"]).rstrip("; ")
        attributes["style"] = re.sub(r"([:;]) ", r"\1", style)
    element.tag, element.attrib, element.tail = element.tag.rpartition("}")[2], attributes, None
    if element.text is not None and not element.text.strip():
        element.text = None
