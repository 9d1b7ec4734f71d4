"""Standard streams of a command that may fail, and single-line messages.

This module needs only the standard library, since ``collops --help`` imports it.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from collops._launcher import started

# Exit codes: invalid input; programs that SIGPIPE ends; I/O errors (EX_IOERR of ``sysexits.h``).
BAD_INPUT, READER_GONE, _OUTPUT_LOST = 2, 141, 74


class OutputLostError(OSError):
    """Standard output or error can no longer be written; `exit_code` is the exit code of the command."""

    def __init__(self, name: str, problem: OSError) -> None:
        super().__init__(f"standard {name} cannot be written: {problem.strerror or problem}")
        self.exit_code = READER_GONE if isinstance(problem, BrokenPipeError) else _OUTPUT_LOST


class _Watched:
    """A stream that detects a terminal behind a launcher, and raises `OutputLostError` for its errors.

    Under a launcher ``isatty`` of the stream is not reliable: some launchers connect their ranks by pipes, and Open MPI
    by terminals even if it writes to a file. Instead, the environment `variable` is used, which
    `collops.cli.launch.environment_for` or the user sets.
    """

    def __init__(self, name: str, stream: Any, variable: str) -> None:
        self._name, self._stream, self._variable = name, stream, variable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return self._stream.isatty() if started() is None else os.environ.get(self._variable) == "1"

    def write(self, text: str) -> int:
        # Typer writes an empty string to detect the type of a stream, and would suppress an error.
        return self._watch(self._stream.write, text) if text != "" else 0

    def flush(self) -> None:
        self._watch(self._stream.flush)

    def _watch(self, call: Callable[..., Any], *arguments: object) -> Any:
        try:
            return call(*arguments)
        except OSError as problem:
            # Otherwise Python would flush the buffer at exit, and report the error again.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            raise OutputLostError(self._name, problem) from problem


@contextmanager
def watched_streams() -> Iterator[None]:
    """Wrap the standard streams: raise `OutputLostError` in the body or at its end if writing fails."""
    before = sys.stdout, sys.stderr
    if sys.stdout is not None:
        sys.stdout = _Watched("output", sys.stdout, "COLLOPS_STDOUT_TERMINAL")
    if sys.stderr is not None:
        sys.stderr = _Watched("error", sys.stderr, "TTY_COMPATIBLE")
    try:
        yield
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:
        sys.stdout, sys.stderr = before


def logs_as_json() -> bool:
    """Return whether lines on standard error are JSON objects."""
    return os.environ.get("COLLOPS_LOG") == "json"


def log_line(level: str, command: str, message: str, **values: object) -> str:
    """Return a message in one line: as text, or as a JSON object with time, rank, host and `values`.

    `level` is ``"info"``, ``"warning"`` or ``"error"``.
    """
    message = " ".join(message.split())
    if not logs_as_json():
        return {"info": "", "warning": f"{command}: warning: ", "error": f"{command}: "}[level] + message
    launcher = started()
    values = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "level": level,
        "command": command,
        "rank": 0 if launcher is None else launcher.rank,
        "host": socket.gethostname(),
        "message": message,
    }
    return json.dumps(entry | values)


def traceback_values() -> dict[str, str]:
    """Print the traceback of the current exception; for JSON lines, return it as one of their values instead."""
    if logs_as_json():
        return {"traceback": traceback.format_exc()}
    traceback.print_exc()
    return {}


def report(command: str, message: str, **values: object) -> None:
    """Write one line about an error on standard error, from the first rank only."""
    launcher = started()
    if launcher is None or launcher.rank == 0:
        write_line(log_line("error", command, message, **values))


def report_lost(command: str, lost: OutputLostError) -> int:
    """Report lost output, unless its reader has exited; return the exit code of the command."""
    if lost.exit_code != READER_GONE:
        report(command, str(lost))
    return lost.exit_code


def write_line(line: str) -> None:
    """Write one line on standard error, if possible."""
    # A single system call, so that lines of several ranks do not mix. Errors are ignored: they cannot be reported.
    if sys.stderr is None:  # closed: the descriptor may be another file
        return
    with suppress(OSError):
        sys.stderr.flush()
        os.write(2, (line + "\n").encode("utf-8", "replace"))
