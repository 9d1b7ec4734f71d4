"""Let ``python -m collops`` do what the ``collops`` command does."""

from __future__ import annotations

from collops.cli import main

if __name__ == "__main__":
    main()
