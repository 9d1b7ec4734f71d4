"""What PyLops-MPI's solver classes have in common: this package's methods, run as a whole or step by step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pylops.optimization.basesolver import Solver

from collops.compat.pylops_mpi._native import brought
from collops.compat.pylops_mpi._operator import checked_operator, native_of
from collops.compat.pylops_mpi._stacked_array import wrapped
from collops.solvers import Method, SolverResult

__all__ = ["NativeSolver", "told"]

Show = tuple[int, int, int]


class NativeSolver(Solver):
    """A solver of PyLops-MPI's interface on a method of this package.

    ``solve`` gives the whole solution to the driver, which replays CUDA graphs and checks tolerances late; ``setup``,
    ``step``, ``run`` and ``finalize`` take the same steps one by one, as a solver with PyLops' callback objects does.
    """

    _method: Method
    _state: Any

    def __init__(self, Op: Any, callbacks: Any = None) -> None:
        super().__init__(checked_operator(Op), callbacks)

    def memory_usage(self, show: bool = False, unit: str = "B") -> Any:
        """Return nothing: the vectors of a distributed solver are not accounted for."""

    # Step by step

    def _begin(self, method: Method, y: Any, x0: Any, niter: int | None, show: bool, facts: str) -> Any:
        self._method, self.y, self._like = method, y, x0
        self.niter, self.iiter = niter, 0
        operator = native_of(self.Op, x0, y)
        start = brought(x0.native, operator.domain)
        self._state = method.init(operator, brought(y.native, operator.range), start, True)
        self._rows = [self._numbers()]
        self._print_start(show, facts)
        return self._model()

    def _advance(self, show: bool) -> Any:
        """Take a step; return the model after it."""
        self._state = self._method.step(self._state)
        self._rows.append(self._numbers())
        self.iiter += 1
        if show:
            self._print_rows([self.iiter])
        return self._model()

    def _numbers(self) -> list[float]:
        values = self._method.monitor(self._state)
        return np.array([float(value) for value in values], np.float64).tolist()

    def _done(self) -> bool:
        return self._method.verdict(self._rows[-1], self._rows[0]) is not None

    def _model(self) -> Any:
        return self._seen(self._state.x)

    def _seen(self, array: Any) -> Any:
        """Return an array of the method's state as one of PyLops-MPI's."""
        return wrapped(brought(array, self._like.native.layout), self._like, _partition(self._like))

    def _shown(self, show: bool, itershow: Show, niter: int) -> bool:
        """Return whether the next iteration is one of those to be shown."""
        return show and (self.iiter + 1) in _chosen(niter, itershow)

    # As a whole

    def _solved(
        self, solve: Callable[..., SolverResult], y: Any, x0: Any, niter: int, show: bool, facts: str, **options: Any
    ) -> tuple[SolverResult, Any]:
        """Run a solver function; return its result, and the model as PyLops-MPI's array."""
        self.y, self.niter = y, niter
        operator = native_of(self.Op, x0, y)
        callback = told(self.callback, x0)
        if getattr(self.callback, "__func__", None) is Solver.callback:
            callback = None  # the base class' one, which does nothing
        self._print_start(show, facts)
        result = solve(
            operator,
            brought(y.native, operator.range),
            brought(x0.native, operator.domain),
            niter=niter,
            callback=callback,
            progress=None if show else False,
            **options,
        )
        self.iiter = result.iterations
        x = wrapped(brought(result.x, x0.native.layout), x0, _partition(x0))
        return result, x

    def _print_start(self, show: bool, facts: str) -> None:
        if show and self._first_rank():
            bar = "-" * 65
            rows, columns = self.Op.shape
            _write(
                f"{type(self).__name__}\n{bar}\nThe Operator Op has {rows} rows and {columns} cols\n{facts}\n{bar}\n"
            )

    def _print_rows(self, iterations: Sequence[int]) -> None:
        if self._first_rank():
            for number in iterations:
                _write(f"{number:6d}  {self.cost[min(number, len(self.cost)) - 1]:.4e}\n")

    def _print_end(self, show: bool, itershow: Show) -> None:
        if show:
            self._print_rows(_chosen(self.iiter, itershow))
            self.finalize(show=True)

    def _first_rank(self) -> bool:
        return self._like_rank() == 0

    def _like_rank(self) -> int:
        part = self.y
        while hasattr(part, "distarrays"):
            part = part.distarrays[0]
        return part.rank

    cost: Any = ()

    def finalize(self, show: bool = False, **kwargs: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """End the timing, and show it."""
        import time

        self.cost = np.asarray(self.cost)
        self.tend = time.time()
        self.telapsed = self.tend - self.tstart
        if show and self._first_rank():
            _write(f"\nIterations = {self.iiter}        Total time (s) = {self.telapsed:.2f}\n{'-' * 65}\n\n")


def told(callback: Callable[[Any], Any] | None, like: Any) -> Callable[[int, Any], None] | None:
    """Return a callback of the driver that tells PyLops-MPI's the model; whatever that returns, the solver goes on."""
    if callback is None:
        return None

    def tell(_: int, view: Any) -> None:
        callback(wrapped(brought(view.x, like.native.layout), like, _partition(like)))

    return tell


def _partition(like: Any) -> Any:
    while hasattr(like, "distarrays"):
        like = like.distarrays[0]
    return like.partition


def _chosen(niter: int, itershow: Show) -> list[int]:
    """Return the iterations to show: the first, the last, and some of those between."""
    first, last, every = itershow
    return [n for n in range(1, niter + 1) if n <= first or n > niter - last or n % every == 0]


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
