"""The parts that pages are put together from: tables, bars, legends, facts and what can be folded away."""

from __future__ import annotations

import math
from collections.abc import Sequence

from collops.pages.charts import color_of, marker
from collops.pages.markup import Markup, join, tag

__all__ = ["bars", "facts", "figure_grid", "fold", "legend", "table"]


def table(
    head: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: Sequence[int] = (), caption: str = ""
) -> Markup:
    """Return a table that scrolls by itself where it is wider than the page.

    Parameters
    ----------
    head : sequence of str
        Titles of the columns.
    rows : sequence of sequences
        As many cells each; the first one names the row.
    numbers : sequence of int
        Columns that stand to the right, of 1 to 9.
    caption : str
        What the table shows.
    """
    top = tag("tr", *(tag("th", text, scope="col") for text in head))
    body = join(tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows)
    # Said once for a table: thousands of cells need no class then.
    right = " ".join(f"n{column}" for column in numbers) or None
    title = tag("caption", caption) if caption else Markup()
    inner = tag("table", title, tag("thead", top), tag("tbody", body), class_=right)
    # What scrolls must be reachable from the keyboard, and say what it is.
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption or ", ".join(head))


def bars(rows: Sequence[tuple[str, float, str]], label: str, longest: float | None = None) -> Markup:
    """Return horizontal bars of factors, whose lengths are logarithms: 1 has none, and less is a number alone.

    Parameters
    ----------
    rows : sequence of (str, float, str)
        What it is, how many times, and a note behind that.
    label : str
        What the bars show.
    longest : float, optional
        The factor whose bar is as long as can be, so that several lists have one scale; the largest by default.
    """
    largest = math.log10(longest or max(factor for _, factor, _ in rows))
    items = []
    for name, factor, note in rows:
        length = max(0.0, math.log10(factor)) / largest if largest > 0 else 0.0
        bar = tag("span", class_="bar", style=f"width:{100 * length:.1f}%")
        items.append(
            tag(
                "li",
                tag("span", name, class_="name"),
                tag("span", bar, class_="track", aria_hidden="true"),
                tag("span", tag("strong", f"{times(factor)}x"), " ", tag("small", note), class_="value"),
                class_="slower" if factor < 1 else None,
            )
        )
    return tag("ul", *items, class_="bars", aria_label=label)


def times(factor: float) -> str:
    """Write a factor with three digits."""
    return f"{factor:.0f}" if factor >= 100 else f"{factor:.3g}"


def legend(lines: Sequence[tuple[str, int, bool]]) -> Markup:
    """Return the names of lines, each with its line and mark.

    Parameters
    ----------
    lines : sequence of (str, int, bool)
        Name, number of the colour, and whether the line is dashed.
    """
    items = []
    for name, color, dashed in lines:
        line = tag("line", x1=1, x2=27, y1=7, y2=7, class_=f"line {color_of(color)}{' dashed' if dashed else ''}")
        sample = tag("svg", line, marker(color, 14, 7), viewBox="0 0 28 14", class_="sample", aria_hidden="true")
        items.append(tag("li", sample, name))
    return tag("ul", *items, class_="legend")


def facts(pairs: Sequence[tuple[str, object]]) -> Markup:
    """Return names and values, side by side where there is room."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs), class_="facts")


def figure_grid(*figures: Markup) -> Markup:
    """Return figures beside each other, as many as fit."""
    return tag("div", *figures, class_="grid")


def fold(summary: str, *content: Markup) -> Markup:
    """Return what is shown when it is asked for."""
    return tag("details", tag("summary", summary), *content)
