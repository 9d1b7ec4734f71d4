# ruff: noqa: D102
"""Until the proximal methods are ported: a method of the former interface as one of the present."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np

from collops.solvers.method import Method

__all__ = ["Unported"]


class Unported(Method):
    """A method of the former interface."""

    traceable = False

    def __init__(self, former: Any) -> None:
        self.former, self.name, self.tolerances = former, former.name, former.stops
        self.numbers = namedtuple("Numbers", [f"number{place}" for place in range(former.width)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.former, name)

    def init(self, A, y, x0):
        return self.former.init(A, y, x0, True)

    def step(self, A, state):
        return self.former.step(state)

    def report(self, state):
        return self.former.monitor(state)

    def status(self, now, first):
        return self.former.verdict(list(now), list(first))

    def suspect(self, now, iteration):
        return self.former.suspect(list(now), iteration)

    def residual_norm(self, now):
        norms = self.former.residual_norms(np.atleast_2d(np.array(now).T))
        return norms if np.ndim(now[0]) else norms[0]

    def details(self, state, history):
        return self.former.details(state, np.array(history).T)
