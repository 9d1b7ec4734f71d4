"""Prestack seismic surveys: read the shots of a file, and make the operator that models and migrates them.

`read` returns a `Survey`. Its operator is a :class:`collops.LinearOperator` and its data are a distributed array, so
that any solver and any regularisation of this library apply. ``collops lsm`` uses the same classes.
"""

from __future__ import annotations

from collops.seismic.survey.geometry import Geometry, Grid
from collops.seismic.survey.normal import NormalEquations
from collops.seismic.survey.statics import Statics
from collops.seismic.survey.survey import Survey, read

__all__ = ["Geometry", "Grid", "NormalEquations", "Statics", "Survey", "read"]
