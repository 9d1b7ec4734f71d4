"""Seismic imaging and inversion: surveys, Kirchhoff migration, stacked data, and the commands made of them.

A guest of collops: it imports :mod:`collops` and :mod:`collops.extend` alone, as a package of another author would.
"""

from __future__ import annotations

from collops.seismic.kirchhoff import Kirchhoff

__all__ = ["Kirchhoff"]
