"""The runner: every rank evaluates a case, the ranks compare what happened, and continue with transports that work."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

import collops
from collops.errors import CollopsError, CommunicationError
from tests.fuzz.cases import Call, Case, cases, simpler

__all__ = ["Failure", "Tally", "fuzz"]

DEADLINE = 20.0  # seconds of COLLOPS_TIMEOUT: no call of a case works as long, nor does a busy machine hold it back
_HUNG = 110.0  # seconds after which nothing but ending the process helps
_MAX_FAILURES = 25
Names: TypeAlias = Callable[[Any], dict[str, Callable[[], Any]]]

_REFUSED = (CollopsError, TypeError, ValueError, OSError)


@dataclass(frozen=True)
class Failure:
    """A case that ended as no case may."""

    case: Case
    why: str

    def __str__(self) -> str:
        return f"{self.case}\n      {self.why}"


@dataclass
class Tally:
    """What a run saw."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """How many were run."""
        return sum(self.outcomes.values())

    def __str__(self) -> str:
        seen = ", ".join(f"{count} {what}" for what, count in self.outcomes.most_common())
        return f"{self.cases} cases: {seen}"


def fuzz(
    calls: Sequence[Call],
    names: Names,
    count: int,
    seed: int,
) -> Tally:
    """Run cases on all ranks. Collective.

    Parameters
    ----------
    calls : sequence of Call
        What is called.
    names : callable
        Given a communicator, what each name in a case stands for, made anew for each case that has it.
    count, seed : int
        How many cases, and where they come from.
    """
    transports = Transports()
    tally = Tally()
    known: set[tuple[Call, str]] = set()
    with _watched() as watch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NaN and infinity are among the values

        def judged(case: Case) -> tuple[str, str]:
            watch(str(case))
            outcomes = transports.outcomes(case, names)
            return outcomes[0][0], _wrong_with(case, outcomes)

        for case in cases(calls, count, seed, transports.comm.size):
            outcome, why = judged(case)
            tally.outcomes[outcome] += 1
            if why and (case.call, outcome) not in known:
                known.add((case.call, outcome))
                tally.failures.append(_shrunk(Failure(case, why), judged))
            if len(tally.failures) >= _MAX_FAILURES:
                break
    return tally


def _shrunk(failure: Failure, judged: Callable[[Case], tuple[str, str]]) -> Failure:
    for case in simpler(failure.case):
        _, why = judged(case)
        if why:
            return _shrunk(Failure(case, why), judged)
    return failure


def _wrong_with(case: Case, outcomes: list[list[str]]) -> str:
    """Return what is wrong with the ranks' outcomes (name of the exception, text, and how it may be taken)."""
    names = [name for name, *_ in outcomes]
    shown = "; ".join(f"rank {rank}: {name}: {text}" for rank, (name, text, _) in enumerate(outcomes))
    if any(kind == "bug" for *_, kind in outcomes):
        return f"not a documented exception: {shown}"
    if any(kind == "transport" for *_, kind in outcomes):
        return f"some rank waited in vain: {shown}"
    if len(set(names)) > 1:
        return f"the ranks disagree: {shown}"
    if case.is_right and names[0] != "returned":
        return f"the right call was refused: {shown}"
    if case.wrong and names[0] == "returned":
        return f"accepted on {'all ranks' if case.only is None else 'a rank'}"
    return ""


class Transports:
    """A communicator that cases use, and another, of MPI itself, on which the ranks compare what happened."""

    def __init__(self) -> None:
        self._control = collops.world().control
        self.comm = self._fresh()

    def outcomes(self, case: Case, names: Names) -> list[list[str]]:
        """Return what happened on every rank, and make sure that the communicator still works. Collective."""
        mine = _evaluate(case.text(self.comm.rank), names(self.comm), (*_REFUSED, *case.call.also))
        try:
            total = int(self.comm.allreduce(np.array([self.comm.rank + 1]))[0])
            if total != self.comm.size * (self.comm.size + 1) // 2:
                mine = ["wrong sum afterwards", f"{total}; before: {mine}", "bug"]
        except CollopsError as error:
            mine = ["broken transport afterwards", f"{error}; before: {mine}", "transport"]
        outcomes = [mine] if self._control is None else self._control.allgather(mine)
        if any(kind == "transport" for *_, kind in outcomes):
            self.comm = self._fresh()
        return outcomes

    def _fresh(self) -> Any:
        if self._control is None:
            return collops.world()
        before = os.environ.get("COLLOPS_TIMEOUT")
        os.environ["COLLOPS_TIMEOUT"] = str(DEADLINE)
        try:
            # Never freed: messages of a failed case may still be under way on it.
            return collops.from_mpi4py(self._control.Dup())
        finally:
            os.environ.pop("COLLOPS_TIMEOUT") if before is None else os.environ.update(COLLOPS_TIMEOUT=before)


def _evaluate(text: str, makers: dict[str, Callable[[], Any]], refusals: tuple[type[Exception], ...]) -> list[str]:
    code = compile(text, "<case>", "eval")
    needed = _names(code)
    space = {name: make() for name, make in makers.items() if name in needed}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            eval(code, space)
        except CommunicationError as error:
            return [type(error).__name__, str(error), "transport"]
        except Exception as error:
            kind = "refused" if isinstance(error, refusals) else "bug"
            return [type(error).__name__, _first_lines(error), kind]
    return ["returned", "", "returned"]


def _first_lines(error: Exception) -> str:
    trace = error.__traceback__
    where = ""
    while trace is not None:
        frame = trace.tb_frame
        if f"{os.sep}collops{os.sep}" in frame.f_code.co_filename:
            where = f"{os.path.relpath(frame.f_code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{str(error)[:160]} ({where})"


def _names(code: Any) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            found |= _names(constant)
    return found


@contextlib.contextmanager
def _watched() -> Any:
    """End the process with the case's text where a case neither ends nor lets anything else do so."""
    state = {"case": "", "since": time.monotonic(), "done": False}
    log = os.environ.get("COLLOPS_FUZZ_LOG")
    file = open(f"{log}.{collops.world().rank}", "w+") if log else None  # noqa: SIM115 - closed below

    def watch(case: str) -> None:
        state.update(case=case, since=time.monotonic())
        if file is not None:  # what a crash of the interpreter leaves behind
            file.seek(0)
            file.truncate()
            file.write(case + "\n")
            file.flush()

    def look() -> None:
        while not state["done"]:
            time.sleep(0.5)
            if time.monotonic() - state["since"] > _HUNG:
                sys.__stderr__.write(f"rank {collops.world().rank} hangs in: {state['case']}\n")
                faulthandler.dump_traceback(sys.__stderr__)
                os.kill(os.getpid(), signal.SIGKILL)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        state["done"] = True
        thread.join()
        if file is not None:
            file.close()
