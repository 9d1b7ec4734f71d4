"""Line plots as SVG: drawn here, so that a page needs no library, and the same data always give the same bytes.

Colours, and what a pointer shows, are those of the page's style and script (`style.css`, `page.js`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from collops.pages.markup import Markup, join, tag

__all__ = ["LIMIT", "Axis", "Point", "Series", "color_of", "line_chart", "marker"]

LIMIT = -1
"""The colour of what is no measurement of a program but a bound."""

_WIDTH, _HEIGHT = 420, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 12, 46
_COLORS, _SHAPES = 8, 4
_MOST_TICKS = 6


class Point(NamedTuple):
    """One measured value, with the words that a pointer over it shows."""

    x: float
    y: float
    words: str


@dataclass(frozen=True)
class Series:
    """A line.

    Parameters
    ----------
    name : str
        In the legend.
    points : sequence of Point
        In the order of the line.
    color : int
        Number of its colour and marker: 0, 1, …, or `LIMIT`.
    dashed : bool
        Whether the line is broken, as those of peers and limits are.
    marked : bool
        Whether its points have markers.
    """

    name: str
    points: Sequence[Point]
    color: int
    dashed: bool = False
    marked: bool = True


@dataclass(frozen=True)
class Axis:
    """What an axis shows.

    Parameters
    ----------
    label : str
        With the unit, where `words` does not write it.
    words : callable
        Writes the value at a tick.
    log : bool
        Whether equal ratios have equal lengths.
    ticks : sequence of float, optional
        Where the ticks are; round numbers by default.
    start : float, optional
        Where the axis begins at the latest, such as 0.
    """

    label: str
    words: Callable[[float], str] = field(default="{:g}".format)
    log: bool = False
    ticks: Sequence[float] | None = None
    start: float | None = None


def line_chart(title: str, series: Sequence[Series], x: Axis, y: Axis) -> Markup:
    """Return a plot of one line or several.

    Parameters
    ----------
    title : str
        Stands over the plot, and is read to those who do not see it.
    series : sequence of Series
        At least one of them with a point.
    x, y : Axis
        How values become places.
    """
    points = [point for line in series for point in line.points]
    across = _Scale(x, [point.x for point in points], _LEFT, _WIDTH - _RIGHT)
    up = _Scale(y, [point.y for point in points], _HEIGHT - _BOTTOM, _TOP)
    drawn = join(_line(line, across, up) for line in series)
    picture = tag(
        "svg",
        tag("title", _description(title, series, x, y)),
        _frame(across, up),
        drawn,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        class_="chart",
    )
    return tag("figure", tag("figcaption", title), picture)


class _Scale:
    """Places along one axis."""

    def __init__(self, axis: Axis, values: Sequence[float], low: float, high: float) -> None:
        self.axis, self._low, self._high = axis, low, high
        first, last = min(values), max(values)
        if axis.start is not None:
            first, last = min(first, axis.start), max(last, axis.start)
        if axis.log:
            first, last = math.log10(first), math.log10(last)
        margin = 0.04 * (last - first) or 0.5
        self._first = first if axis.start == first else first - margin
        self._last = last + margin
        self.ticks = [
            tick for tick in axis.ticks or self._round_numbers() if self._first <= self._of(tick) <= self._last
        ]

    def place(self, value: float) -> float:
        share = (self._of(value) - self._first) / (self._last - self._first)
        return round(self._low + share * (self._high - self._low), 1)

    def _of(self, value: float) -> float:
        return math.log10(value) if self.axis.log else value

    def _round_numbers(self) -> list[float]:
        if not self.axis.log:
            return _even(self._first, self._last)
        decades = range(math.floor(self._first), math.ceil(self._last) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            ticks = [float(f"{step}e{decade}") for decade in decades for step in steps]
            inside = [tick for tick in ticks if self._first <= math.log10(tick) <= self._last]
            if len(inside) <= _MOST_TICKS:
                break
        else:
            every = -(-len(inside) // _MOST_TICKS)
            inside = inside[::every]
        if len(inside) < 2:
            inside = [tick for tick in _even(10**self._first, 10**self._last) if tick > 0]
        return inside


def _even(first: float, last: float) -> list[float]:
    """Return round numbers at equal distances."""
    rough = (last - first) / (_MOST_TICKS - 1)
    decade = 10 ** math.floor(math.log10(rough))
    step = next(decade * factor for factor in (1, 2, 5, 10) if decade * factor >= rough * 0.999)
    start = math.ceil(first / step - 1e-9)
    return [number * step for number in range(start, math.floor(last / step + 1e-9) + 1)]


def _frame(across: _Scale, up: _Scale) -> Markup:
    parts = []
    for tick in up.ticks:
        place = up.place(tick)
        parts.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=place, y2=place, class_="grid"))
        parts.append(tag("text", up.axis.words(tick), x=_LEFT - 6, y=place + 4, class_="tick end"))
    for tick in across.ticks:
        place = across.place(tick)
        parts.append(tag("line", x1=place, x2=place, y1=_TOP, y2=_HEIGHT - _BOTTOM, class_="grid"))
        parts.append(tag("text", across.axis.words(tick), x=place, y=_HEIGHT - _BOTTOM + 16, class_="tick middle"))
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(tag("text", across.axis.label, x=(_LEFT + _WIDTH - _RIGHT) / 2, y=_HEIGHT - 10, class_="label middle"))
    parts.append(
        tag("text", up.axis.label, x=12, y=middle, transform=f"rotate(-90 12 {middle:g})", class_="label middle")
    )
    return join(parts)


def _line(series: Series, across: _Scale, up: _Scale) -> Markup:
    places = [(across.place(point.x), up.place(point.y)) for point in series.points]
    path = tag(
        "polyline",
        points=" ".join(f"{left:g},{top:g}" for left, top in places),
        class_=f"line {color_of(series.color)}{' dashed' if series.dashed else ''}",
    )
    marks = [
        marker(series.color, left, top, f"{series.name}: {point.words}", hidden=not series.marked)
        for (left, top), point in zip(places, series.points, strict=True)
    ]
    return join([path, *marks])


def color_of(number: int) -> str:
    """Return the class of a series' colour; after the last one they begin again."""
    return "limit" if number == LIMIT else f"c{number % _COLORS}"


def marker(color: int, left: float, top: float, words: str | None = None, *, hidden: bool = False) -> Markup:
    """Return the mark of a point: each of the first series has a shape of its own beside its colour.

    Parameters
    ----------
    color : int
        Of the series.
    left, top : float
        Its middle.
    words : str, optional
        What a pointer over it shows.
    hidden : bool
        Whether there is only the place, for a pointer.
    """
    attributes: dict[str, object] = {"class_": f"mark {color_of(color)}{' hidden' if hidden else ''}", "data_t": words}
    shape = color % _SHAPES
    if shape == 0 or hidden:
        return tag("circle", cx=f"{left:g}", cy=f"{top:g}", r=3, **attributes)
    corners = {
        1: ((-2.8, -2.8), (2.8, -2.8), (2.8, 2.8), (-2.8, 2.8)),
        2: ((0, -3.8), (3.8, 0), (0, 3.8), (-3.8, 0)),
        3: ((0, -3.6), (3.6, 2.7), (-3.6, 2.7)),
    }[shape]
    points = " ".join(f"{left + dx:.1f},{top + dy:.1f}" for dx, dy in corners)
    return tag("polygon", points=points, **attributes)


def _description(title: str, series: Sequence[Series], x: Axis, y: Axis) -> str:
    """Say what a plot shows to those who do not see it: the ends of each line."""
    ends = []
    for line in series:
        if line.points:
            said = [point.words for point in (line.points[0], line.points[-1])]
            ends.append(f"{line.name}: {' … '.join(text for text, _ in itertools.groupby(said))}")
    return f"{title}. {y.label} over {x.label}. " + "; ".join(ends)
