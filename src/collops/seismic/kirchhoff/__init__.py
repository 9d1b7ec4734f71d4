"""Kirchhoff demigration and migration, with kernels for CPUs and GPUs."""

from __future__ import annotations

from collops.seismic.kirchhoff.eikonal import Thomsen, arrivals_error, first_arrivals
from collops.seismic.kirchhoff.fixed_point import FixedTables
from collops.seismic.kirchhoff.geometry import Geometry
from collops.seismic.kirchhoff.local import LocalKirchhoff
from collops.seismic.kirchhoff.operator import Kirchhoff, KirchhoffOperator, KirchhoffOptions, SplitKirchhoff
from collops.seismic.kirchhoff.traveltimes import TravelTimes
from collops.seismic.kirchhoff.weights import Weighting

__all__ = [
    "FixedTables",
    "Geometry",
    "Kirchhoff",
    "KirchhoffOperator",
    "KirchhoffOptions",
    "LocalKirchhoff",
    "SplitKirchhoff",
    "Thomsen",
    "TravelTimes",
    "Weighting",
    "arrivals_error",
    "first_arrivals",
]
