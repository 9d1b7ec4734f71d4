"""Formulas as MathML, which browsers draw themselves: no script, nothing to fetch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# The converter lacks sizes of delimiters, which browsers choose themselves, the ellipsis and the degree sign.
_UNKNOWN = (
    (re.compile(r"\\[Bb]igg?[lr]?(?![A-Za-z])"), ""),
    (re.compile("…"), r"\\ldots "),
    (re.compile("°"), r"^\\circ "),
)
_ALIGNED = r"\begin{aligned}%s\end{aligned}"


def _markup(text: str, inline: bool) -> str:
    if not inline and (r"\\" in text or "&" in text) and r"\begin" not in text:
        text = _ALIGNED % text
    for pattern, known in _UNKNOWN:
        text = pattern.sub(known, text)
    return tex2mathml(text, as_block=not inline)


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_markup(node.astext(), inline=True))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math">{_markup(node.astext(), inline=False)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer the renderer that `html_math_renderer` names."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
