"""How the steps of a method are run: launched one by one, or recorded once and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from collops.backend import Engine
from collops.comm import Communicator
from collops.errors import InputError, UnsupportedTypeError
from collops.profile import mark
from collops.solvers.history import History
from collops.solvers.method import Method

__all__ = ["Execution", "open_execution"]

_FEWEST_TO_RECORD = 4  # recording costs a few milliseconds, which fewer iterations do not save


class Execution:
    """Launches every step on the caller's stream. A context, inside which the solver's work is ordered.

    Its `description` says how the steps are run, and why; the `history` stores their numbers.
    """

    def __init__(self, method: Method, history: History, description: str = "eager") -> None:
        self._method = method
        self._history = history
        self._label = f"{method.name} iteration"
        self.description = description

    def __enter__(self) -> Execution:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""

    def advance(self, state: Any) -> Any:
        """Return the state after one more step, whose numbers are stored in the history."""
        with mark(self._label):
            state = self._method.step(state)
            self._history.store(self._method.monitor(state))
            self._history.advance()
        return state


def open_execution(
    graph: bool | str,
    method: Method,
    history: History,
    parts: Sequence[Any],
    engine: Engine,
    niter: int,
    comm: Communicator,
) -> Execution:
    """Choose how to run the steps: `graph` says whether to record them. The same on every rank, without a message.

    The `parts` are operators and other objects that take part in a step; each has an attribute ``capturable``.

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
        return Execution(method, history)
    if engine.memory == "host" or not engine.mutable:
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
    return Execution(method, history, f"eager: {reason}" if reason else "eager")
