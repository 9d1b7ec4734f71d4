"""The environment variable COLLOPS_PROFILE, and what happens at exit because of it."""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import dataclass

from collops.errors import CollopsError, InputError
from collops.profile import recording
from collops.profile.communicator import Comm

__all__ = ["Settings", "check_environment", "report_on", "start"]

_HELP = "a list, separated by commas, of: 1 (report at exit), nvtx, json=PATH, trace=PATH; or 0"


@dataclass(frozen=True)
class Settings:
    """What ``COLLOPS_PROFILE`` asks for.

    Attributes
    ----------
    show : bool
        Print a report at exit.
    nvtx : bool
        Show marks as NVTX ranges.
    json, trace : str or None
        Files to write at exit.
    """

    show: bool = False
    nvtx: bool = False
    json: str | None = None
    trace: str | None = None

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Read the variable's value.

        Raises
        ------
        InputError
            If it holds a word that means nothing.
        """
        found: dict[str, bool | str] = {}
        for word in filter(None, (part.strip() for part in text.split(","))):
            name, equals, path = word.partition("=")
            if word in ("1", "0"):
                found["show"] = word == "1"
            elif word == "nvtx":
                found["nvtx"] = True
            elif name in ("json", "trace") and equals and path:
                found[name] = path
            else:
                raise InputError(f"COLLOPS_PROFILE={text}: {word!r} means nothing; give {_HELP}")
        return cls(**found)  # pyright: ignore[reportArgumentType]

    @property
    def on(self) -> bool:
        """Whether anything was asked for."""
        return self != Settings()


class _Exit:
    """What to do when the interpreter exits."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.comm: Comm | None = None

    def __call__(self) -> None:
        taken = recording.disable()
        comm, settings = self.comm, self.settings
        if taken is None or (comm is None and not taken.spans):
            return  # a process that only starts the ranks must not replace their files by its own empty ones
        # A rank that ends by an error must not start a message that the others, who may be elsewhere, do not expect.
        failed = getattr(sys, "last_value", None) is not None
        if failed:
            comm, settings = None, Settings(show=settings.show)
        try:
            if settings.show:
                # Standard error: the last line of a program's output may be read by another program.
                taken.report(comm).show(sys.stderr)
            if settings.json:
                taken.to_json(settings.json, comm)
            if settings.trace:
                taken.to_chrome_trace(settings.trace, comm)
        except CollopsError as error:
            sys.stderr.write(f"collops: the profile is incomplete: {error}\n")


_exit: list[_Exit] = []  # empty, or the one that is registered
_refused: list[InputError] = []  # empty, or what is wrong with the variable


def start() -> None:
    """Do what ``COLLOPS_PROFILE`` asks for; called once, when `collops.profile` is imported.

    What is wrong with it is no reason for an import to fail: the first world raises it, and a program that makes none
    says it at its end.
    """
    try:
        settings = Settings.parse(os.environ.get("COLLOPS_PROFILE", ""))
        if settings.on:
            recording.enable(nvtx=settings.nvtx)
            _exit.append(_Exit(settings))
            atexit.register(_exit[0])
    except InputError as problem:
        _refused.append(problem)
        atexit.register(_say, problem)


def check_environment() -> None:
    """Raise what is wrong with ``COLLOPS_PROFILE``, which an import does not.

    Raises
    ------
    InputError
        If it has something that means nothing.
    """
    if _refused:
        atexit.unregister(_say)
        raise _refused[0]


def _say(problem: InputError) -> None:
    sys.stderr.write(f"collops: nothing was recorded: {problem}\n")


def report_on(comm: Comm) -> None:
    """Tell which ranks the report at exit compares; the first world that a program makes calls this.

    Without ``COLLOPS_PROFILE`` this does nothing.

    Parameters
    ----------
    comm : Communicator
        All ranks of the program.

    Raises
    ------
    InputError
        If ``COLLOPS_PROFILE`` has something that means nothing.

    Examples
    --------
    >>> import collops
    >>> from collops import profile
    >>> profile.report_on(collops.world())  # what COLLOPS_PROFILE reports at the end compares all ranks
    """
    check_environment()
    if _exit and _exit[0].comm is None:
        _exit[0].comm = comm
        # Exit functions run in reverse order: register anew, to run before those that close what `comm` needs.
        atexit.unregister(_exit[0])
        atexit.register(_exit[0])
