"""Refuse what cannot fit before it is asked for: Linux would grant the memory, then end the process."""

from __future__ import annotations

from collops.backend import Engine, engine, memory_of
from collops.errors import InputError

__all__ = ["check_memory"]


def check_memory(needed: int, what: str, remedy: str, compute: Engine | None = None) -> None:
    """Raise if something exceeds the memory of this machine, or of this rank's device.

    Parameters
    ----------
    needed : int
        Bytes.
    what : str
        What they hold, in the plural.
    remedy : str
        What to choose instead.
    compute : Engine, optional
        Whose arrays they are; by default they are on the host.

    Raises
    ------
    InputError
        If they take more than four fifths of the memory.
    """
    compute = compute or engine("numpy")
    installed = memory_of(compute)
    if needed > 0.8 * installed:
        place = "a GPU" if compute.memory == "device" else "this machine"
        raise InputError(f"{what} need {needed / 2**30:.0f} GiB, and {place} has {installed / 2**30:.0f}: {remedy}")
