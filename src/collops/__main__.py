"""The program: ``python -m collops`` and the ``collops`` command."""

from __future__ import annotations

from typing import NoReturn

from collops.apps import interruption


def main() -> NoReturn:
    """Run the command line of this process, and exit."""
    interruption.install()
    from collops.cli import main as run  # takes a second or more, during which signals are noted

    try:
        run()
    except SystemExit as leaving:
        from collops.comm.ending import end_if_blocked

        end_if_blocked(leaving.code if isinstance(leaving.code, int) else 0)
        raise


if __name__ == "__main__":
    main()
