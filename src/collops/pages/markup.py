"""Elements of HTML and SVG as text, with everything that is not markup already escaped on the way."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["Markup", "join", "tag"]

_EMPTY = frozenset({"meta", "input", "br", "line", "circle", "path", "rect", "polyline", "polygon"})


class Markup(str):
    """Text that is markup, and is taken as it is."""

    __slots__ = ()


def tag(name: str, /, *content: object, **attributes: object) -> Markup:
    """Return an element.

    Parameters
    ----------
    name : str
        Of the element.
    *content : object
        What stands in it: `Markup` as it is, anything else as text.
    **attributes : object
        An underscore stands for a hyphen, and one at the end for nothing (``class_``). ``None`` and ``False`` leave an
        attribute out, ``True`` gives it no value.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{escape(str(value))}"')
    start = " ".join(words)
    if name in _EMPTY and not content:
        return Markup(f"<{start}/>")
    return Markup(f"<{start}>{join(content)}</{name}>")


def join(content: Iterable[object], separator: str = "") -> Markup:
    """Return several pieces of content as one."""
    return Markup(separator.join(one if isinstance(one, Markup) else escape(str(one)) for one in content))
