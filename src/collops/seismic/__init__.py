"""Seismic imaging and inversion: surveys, Kirchhoff migration, stacked data, and the commands that use them.

Like a third-party package, it imports only :mod:`collops` and :mod:`collops.extend`.
"""

from __future__ import annotations

from collops.seismic.avo import Avo, fit_avo
from collops.seismic.kirchhoff import Kirchhoff

__all__ = ["Avo", "Kirchhoff", "fit_avo"]
