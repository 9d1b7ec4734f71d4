"""Whole inversions, from files to pictures: what the command line runs, usable from Python too."""

from __future__ import annotations

__all__: list[str] = []
