"""How the steps of a method are run one by one; :mod:`collops.solvers.graph` replays them as a CUDA graph."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from collops.profile import mark
from collops.solvers.history import History
from collops.solvers.method import Method

__all__ = ["Execution"]


class Execution:
    """Launches every step on the caller's stream. A context, inside which the solver's work is ordered.

    Its `description` says how the steps are run, and why; the `history` records their numbers.
    """

    def __init__(self, method: Method, A: Any, history: History, description: str = "eager") -> None:
        self._method = method
        self._operator = A
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
        """Return the state after one more step, whose numbers are recorded in the history."""
        with mark(self._label):
            state = self._method.step(self._operator, state)
            self._history.record(self._method.report(state))
        return state
