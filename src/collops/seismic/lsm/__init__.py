"""Least-squares migration of a seismic survey, recorded or synthetic."""

from __future__ import annotations

from collops.seismic.lsm.migrate import run
from collops.seismic.lsm.options import Options
from collops.seismic.lsm.problem import Problem
from collops.seismic.lsm.setup import recorded

__all__ = ["Options", "Problem", "recorded", "run"]
