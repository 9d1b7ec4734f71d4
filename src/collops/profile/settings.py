"""The environment variable COLLOPS_PROFILE, and the report that it writes at exit."""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import dataclass
from typing import Any

from collops._forks import at_fork
from collops.errors import CollopsError, InputError
from collops.profile import recording
from collops.profile.report import AnyCommunicator

__all__ = ["check_environment"]


@dataclass(frozen=True)
class Settings:
    """The words of ``COLLOPS_PROFILE``; see `collops.profile`."""

    show: bool = False
    nvtx: bool = False
    json: str | None = None
    trace: str | None = None

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Read the variable's value; raise `InputError` if it contains an unknown word."""
        values: dict[str, Any] = {}
        for word in filter(None, (part.strip() for part in text.split(","))):
            name, _, path = word.partition("=")
            if word in ("1", "0"):
                values["show"] = word == "1"
            elif word == "nvtx":
                values["nvtx"] = True
            elif name in ("json", "trace") and path:
                values[name] = path
            else:
                raise InputError(
                    f"COLLOPS_PROFILE={text}: unknown word {word!r}; give a list, separated by commas, of: "
                    "1 (report at exit), nvtx, json=PATH, trace=PATH; or 0"
                )
        return cls(**values)


class _ReportAtExit:
    """Writes the report and the files when the interpreter exits."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.comm: AnyCommunicator = None

    def __call__(self) -> None:
        closed = recording.disable()
        comm, settings = self.comm, self.settings
        if closed is None or (comm is None and not closed.spans):
            return  # a process that only launches the ranks must not overwrite their files with empty ones
        # After an error on this rank, other ranks may not expect a message.
        if getattr(sys, "last_value", None) is not None:
            comm, settings = None, Settings(show=settings.show)
        try:
            if settings.show and sys.stderr is not None:
                # Standard error: another program may read the last line of this one's output.
                closed.report(comm).show(sys.stderr)
            if settings.json:
                closed.to_json(settings.json, comm)
            if settings.trace:
                closed.to_chrome_trace(settings.trace, comm)
        except CollopsError as error:
            _tell(f"the profile is incomplete: {error}")


_at_exit: _ReportAtExit | None = None
_error: InputError | None = None  # the error in the variable


def start() -> None:
    """Read ``COLLOPS_PROFILE``; called once, when `collops.profile` is imported.

    An invalid value does not make the import fail: the first world raises the error, and a program without a world
    prints it at exit.
    """
    global _at_exit, _error  # noqa: PLW0603 - the state of the process
    try:
        settings = Settings.parse(os.environ.get("COLLOPS_PROFILE", ""))
        if settings != Settings():
            recording.enable(nvtx=settings.nvtx)
            _at_exit = _ReportAtExit(settings)
            atexit.register(_at_exit)
    except InputError as error:
        _error = error
        atexit.register(_print_error)


def _forget() -> None:
    """Do not write the parent's profile in a forked child."""
    global _at_exit  # noqa: PLW0603 - the state of the process
    atexit.unregister(_print_error)
    if _at_exit is not None:
        atexit.unregister(_at_exit)
    _at_exit = None
    recording.disable()


at_fork(_forget)


def check_environment() -> None:
    """Raise `InputError` if ``COLLOPS_PROFILE`` contains an unknown word, or if NVTX ranges are not available."""
    if _error is not None:
        atexit.unregister(_print_error)
        raise _error


def _print_error() -> None:
    _tell(f"nothing was recorded: {_error}")


def _tell(text: str) -> None:
    if sys.stderr is not None:  # None if the stream is closed
        sys.stderr.write(f"collops: {text}\n")


def report_on(comm: AnyCommunicator) -> None:
    """Set the ranks that the report at exit compares; called for the first world of a program.

    No effect without ``COLLOPS_PROFILE``. Raises InputError if its value is invalid, or NVTX is not available.
    """
    check_environment()
    if _at_exit is not None and _at_exit.comm is None:
        _at_exit.comm = comm
        # Exit functions run in reverse order: register again, to run before functions that close resources of `comm`.
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)
