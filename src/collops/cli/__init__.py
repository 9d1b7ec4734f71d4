"""The ``collops`` command."""

from __future__ import annotations

from collops.cli.main import main

__all__ = ["main"]
