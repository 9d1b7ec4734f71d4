"""Stencils: a grid over ranks, its halos, and the programming models that sweep it."""

from collops.stencil.grid import Grid
from collops.stencil.problem import Problem
from collops.stencil.run import Run, run
from collops.stencil.timeline import Span, Timeline, timeline_of
from collops.stencil.variants import MODELS, Model, make, obstacle
from collops.stencil.variants.base import Variant

__all__ = [
    "MODELS",
    "Grid",
    "Model",
    "Problem",
    "Run",
    "Span",
    "Timeline",
    "Variant",
    "make",
    "obstacle",
    "run",
    "timeline_of",
]
