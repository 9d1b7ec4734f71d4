"""The program: ``python -m collops`` and the ``collops`` command."""

from __future__ import annotations

from typing import NoReturn

from collops.apps import interruption


def main() -> NoReturn:
    """Run the command line of this process, and exit."""
    interruption.install()
    from collops.cli import main as run  # takes a second or more, during which signals are noted

    run()


if __name__ == "__main__":
    main()
