"""Least-squares migration of a seismic survey, recorded or synthetic."""

from __future__ import annotations

from collops.apps.lsm.migrate import run
from collops.apps.lsm.problem import Options, Problem, recorded

__all__ = ["Options", "Problem", "recorded", "run"]
