"""Self-contained pages: HTML, styles, scripts and SVG plots in one file that asks for nothing from elsewhere."""

from collops.pages.charts import LIMIT, Axis, Point, Series, line_chart
from collops.pages.document import Section, document
from collops.pages.markup import Markup, join, tag
from collops.pages.parts import bars, facts, figure_grid, fold, legend, table

__all__ = [
    "LIMIT",
    "Axis",
    "Markup",
    "Point",
    "Section",
    "Series",
    "bars",
    "document",
    "facts",
    "figure_grid",
    "fold",
    "join",
    "legend",
    "line_chart",
    "table",
    "tag",
]
