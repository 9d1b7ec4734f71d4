"""Refuse what cannot fit before it is asked for: Linux would grant the memory, then end the process."""

from __future__ import annotations

import os

from collops.errors import InputError

__all__ = ["check_memory"]


def check_memory(needed: int, what: str, remedy: str) -> None:
    """Raise if something exceeds the memory of this machine.

    Parameters
    ----------
    needed : int
        Bytes.
    what : str
        What they hold, in the plural.
    remedy : str
        What to choose instead.

    Raises
    ------
    InputError
        If they take more than four fifths of the memory.
    """
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > 0.8 * installed:
        raise InputError(
            f"{what} need {needed / 2**30:.0f} GiB, and this machine has {installed / 2**30:.0f}: {remedy}"
        )
