"""The tables of the page on scaling, as Markdown, and their place in it."""

from __future__ import annotations

from collections.abc import Sequence

from collops_bench.prediction import STRONG, Family, Scaling
from collops_bench.speed import place, seconds_in_words, three_digits

__all__ = ["BEGIN", "END", "scaling_tables"]

BEGIN, END = "<!-- scaling: begin -->", "<!-- scaling: end -->"
_MANY = (64, 1024)


def scaling_tables(scaling: Scaling) -> str:
    """Return what was measured, the models and how far off they were, and what they say of more ranks."""
    parts = [
        "### Measured",
        _measured(scaling),
        "### The model, and how far off it is",
        _models(scaling),
        _errors(scaling),
        "### Carried on",
        _predicted(scaling),
        _source(scaling),
    ]
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """Return a table whose first columns, so many, are words and the others numbers."""
    ruler = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ruler, *rows))


def _gain(family: Family, first: float, seconds: float, ranks: int) -> float:
    """Return the efficiency: what share of the ranks' work is not lost."""
    return first / seconds / (ranks if family.scaling == STRONG else 1)


def _measured(scaling: Scaling) -> str:
    counts = sorted({ranks for family in scaling.families for ranks in family.measured})
    head = ["work", "problem", "scaling", *(f"{n} GPU{'s' if n > 1 else ''}" for n in counts), "efficiency"]
    rows = []
    for family in scaling.families:
        times = [seconds_in_words(family.measured[n]) if n in family.measured else "" for n in counts]
        first, last = min(family.measured), max(family.measured)
        gain = _gain(
            family, family.measured[first] * (first if family.scaling == STRONG else 1), family.measured[last], last
        )
        rows.append([family.kind, family.words, family.scaling, *times, f"{100 * gain:.0f} %"])
    return _table(head, rows, 3)


def _models(scaling: Scaling) -> str:
    head = ["work", "overhead", "an operation", "times a copy", "times the messages alone"]
    rows = []
    for kind, fitted in scaling.models.items():
        model = fitted.model
        rows.append(
            [
                kind,
                seconds_in_words(model.overhead) if model.overhead else "none",
                f"{three_digits(1e12 * model.operation)} ps" if model.operation else "",
                three_digits(model.memory) if model.memory else "",
                three_digits(model.messages),
            ]
        )
    return _table(head, rows, 1)


def _errors(scaling: Scaling) -> str:
    head = ["held out", "problem", "scaling", "measured", "predicted", "error"]
    rows = []
    for kind, fitted in scaling.models.items():
        for family, seconds, predicted in fitted.errors:
            off = f"{round(100 * (predicted / seconds - 1)):+d} %"
            times = [seconds_in_words(seconds), seconds_in_words(predicted)]
            rows.append([f"{kind}, {max(family.measured)} GPUs", family.words, family.scaling, *times, off])
    return _table(head, rows, 3)


def _predicted(scaling: Scaling) -> str:
    head = ["work", "problem", "scaling", "1 GPU"]
    for count in _MANY:
        head += [f"{count} GPUs", "efficiency"]
    rows = []
    for family in (*scaling.families, *scaling.larger):
        first = scaling.seconds(family, 1)
        cells = [family.kind, family.words, family.scaling, seconds_in_words(first)]
        for count in _MANY:
            seconds = scaling.seconds(family, count)
            cells += [seconds_in_words(seconds), f"{100 * _gain(family, first, seconds, count):.0f} %"]
        rows.append(cells)
    return _table(head, rows, 3)


def _source(scaling: Scaling) -> str:
    made = {}
    for one in scaling.records:
        made.setdefault(f"{one.benchmark}, commit {str(one.commit)[:9]}, {one.started[:10]}", []).append(str(one.ranks))
    runs = "; ".join(f"{run} (on {', '.join(ranks)})" for run, ranks in made.items())
    machine = place(scaling.records[-1]).split(" x ")[-1]
    return f"From the records of {machine}: {runs}. Written by `collops bench plot`."
