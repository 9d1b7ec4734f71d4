"""The compiled handlers of collops.jax, as a file."""

from __future__ import annotations

from pathlib import Path

__all__ = ["library_path"]


def library_path() -> Path:
    """Return where the shared library is."""
    return Path(__file__).parent / "libcollops_native.so"
