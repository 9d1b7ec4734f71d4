"""The standard streams of a command, which can be lost, and its messages of one line.

This module needs only the standard library, since ``collops --help`` imports it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from collops._launcher import started

# Exit codes: for invalid input; of programs that SIGPIPE ends; and of errors of input and output in ``sysexits.h``.
BAD_INPUT, READER_GONE, _OUTPUT_LOST = 2, 141, 74


class OutputLostError(OSError):
    """Standard output or error cannot be written any more; `exit_code` is the command's."""

    def __init__(self, name: str, problem: OSError) -> None:
        super().__init__(f"standard {name} cannot be written: {problem.strerror or problem}")
        self.exit_code = READER_GONE if isinstance(problem, BrokenPipeError) else _OUTPUT_LOST


class _Watched:
    """A stream that knows where its rank's launcher writes, and whose errors are `OutputLostError`.

    Other errors of the operating system are about files of the job. Under a launcher the stream itself says nothing
    about a terminal: some launchers give their ranks pipes, and Open MPI gives them terminals even where it writes to a
    file. A `variable` of the environment does, which `collops.cli.launch.environment_for` sets, or the user.
    """

    def __init__(self, name: str, stream: Any, variable: str) -> None:
        self._name, self._stream, self._variable = name, stream, variable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return self._stream.isatty() if started() is None else os.environ.get(self._variable) == "1"

    def write(self, text: str) -> int:
        # Typer writes nothing to learn of what kind a stream is, and would hide an error.
        return self._watch(self._stream.write, text) if text != "" else 0

    def flush(self) -> None:
        self._watch(self._stream.flush)

    def _watch(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except OSError as problem:
            # Python would write what is left, and complain again, at its end.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            raise OutputLostError(self._name, problem) from problem


@contextmanager
def watched_streams() -> Iterator[None]:
    """Watch the standard streams: raise `OutputLostError` in the body or at its end if one cannot be written."""
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


def report(command: str, message: str) -> None:
    """Write one line on standard error, from the first rank only."""
    launcher = started()
    if launcher is None or launcher.rank == 0:
        write_line(f"{command}: {' '.join(message.split())}")


def report_lost(command: str, lost: OutputLostError) -> int:
    """Return the exit code of a command whose output was lost, after a line that says so unless its reader has gone."""
    if lost.exit_code != READER_GONE:
        report(command, str(lost))
    return lost.exit_code


def write_line(line: str) -> None:
    """Write one line on standard error, where that is possible."""
    # One system call, so that lines of several ranks do not mix. Where it cannot be written nobody can be told.
    if sys.stderr is None:  # closed: the descriptor may be another file
        return
    with suppress(OSError):
        sys.stderr.flush()
        os.write(2, (line + "\n").encode("utf-8", "replace"))
