"""How the steps of a method are run: launched one by one, or recorded once and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Protocol

from collops.backend import Engine
from collops.comm import Communicator
from collops.errors import InputError, UnsupportedTypeError
from collops.profile import mark
from collops.solvers.history import History
from collops.solvers.method import Method

__all__ = ["EagerExecution", "Execution", "open_execution"]

_FEWEST_TO_RECORD = 4  # recording costs a few milliseconds, which fewer iterations do not bring back


class Execution(Protocol):
    """Runs steps; a context, inside which the solver's work is ordered.

    Attributes
    ----------
    description : str
        How the steps ran.
    """

    description: str

    def __enter__(self) -> Execution: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def advance(self, state: Any) -> Any:
        """Return the state after one more step, whose numbers are stored in the history."""
        ...

    def outside(self) -> AbstractContextManager[Any]:
        """Return a context for foreign code between two steps."""
        ...


class EagerExecution:
    """Launches every step on the caller's stream.

    Parameters
    ----------
    method : Method
        Whose steps.
    history : History
        Gets their numbers.
    description : str
        ``"eager"``, and why.
    """

    def __init__(self, method: Method, history: History, description: str = "eager") -> None:
        self._step = method.step
        self._monitor = method.monitor
        self._history = history
        self._label = f"{method.name} iteration"
        self.description = description

    def __enter__(self) -> EagerExecution:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""

    def advance(self, state: Any) -> Any:
        """Return the state after one more step."""
        with mark(self._label):
            state = self._step(state)
            history = self._history
            history.store(self._monitor(state))
            history.advance()
        return state

    def outside(self) -> AbstractContextManager[Any]:
        """Return a context that does nothing."""
        return nullcontext()


def open_execution(
    graph: bool | str,
    method: Method,
    history: History,
    parts: Sequence[Any],
    engine: Engine,
    niter: int,
    comm: Communicator,
) -> Execution:
    """Choose how to run the steps; the same on every rank, without a message.

    Parameters
    ----------
    graph : bool or "auto"
        Whether to record and replay: where it is possible, always, or never.
    method, history
        What is run.
    parts : sequence of object
        What takes part in a step: operators, and whatever else has an attribute ``capturable``.
    engine, niter, comm
        On which arrays it is run, how often at most, and by which ranks.

    Raises
    ------
    InputError
        If `graph` is none of its values.
    UnsupportedTypeError
        If it is ``True`` and nothing can be recorded.
    """
    if graph not in (True, False, "auto"):
        raise InputError(f"graph must be True, False or 'auto', not {graph!r}")
    if not graph:
        return EagerExecution(method, history)
    if engine.memory == "host" or not engine.keeps:
        reason = "" if graph == "auto" else "arrays on the host have no CUDA graphs"
    elif (obstacle := next((part for part in parts if not part.capturable), None)) is not None:
        reason = f"{type(obstacle).__name__} cannot be captured"
    elif graph == "auto" and niter < _FEWEST_TO_RECORD:
        reason = f"{niter} iterations are too few to record one"
    else:
        from collops.solvers.graph import GraphExecution

        return GraphExecution(method, history, comm, required=graph is True)
    if graph is True:
        raise UnsupportedTypeError(f"graph=True, but {reason}")
    return EagerExecution(method, history, f"eager: {reason}" if reason else "eager")
