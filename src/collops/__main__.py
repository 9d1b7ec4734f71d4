"""The program: ``python -m collops`` and the ``collops`` command."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from collops.apps import interruption


def main() -> NoReturn:
    """Run the command line of this process, and exit."""
    _open_closed_streams()
    interruption.install()
    from collops.cli import main as run  # signals are noted during imports, which take a second or more

    try:
        run()
    except SystemExit as leaving:
        ending = sys.modules.get("collops.comm.ending")  # not imported for the list of commands
        if ending is not None:
            ending.end_if_blocked(leaving.code if isinstance(leaving.code, int) else 0)
        raise


def _open_closed_streams() -> None:
    """Open the null device for each standard stream that is closed.

    The next file that this process opens would otherwise get the number of the stream, and libraries and started
    processes would write their messages into it. For a closed stream Python has None.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (for as long as the process lives)


if __name__ == "__main__":
    main()
