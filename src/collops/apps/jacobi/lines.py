"""What NVIDIA's samples print, to the letter, so that scripts which read them read this program as well."""

from __future__ import annotations

from collections.abc import Callable

from collops.stencil import Problem

__all__ = ["csv_line", "heading", "norm_line", "norm_printer", "summary"]

_EVERY = 100


def heading(problem: Problem, who: str = "") -> str:
    """Return the line that stands before a run; `who` is ``"Single GPU "`` or nothing."""
    name = f"{who}jacobi" if who else "Jacobi"
    return (
        f"{name} relaxation: {problem.iterations} iterations on {problem.ny} x {problem.nx} mesh "
        f"with norm check every {problem.check} iterations"
    )


def norm_line(iteration: int, norm: float) -> str:
    """Return the line of every hundredth iteration."""
    return f"{iteration:5d}, {norm:0.6f}"


def norm_printer(echo: Callable[[str], None]) -> Callable[[int, float], None]:
    """Return what prints the norm of every hundredth iteration, if it is checked."""

    def report(iteration: int, norm: float) -> None:
        if iteration % _EVERY == 0:
            echo(norm_line(iteration, norm))

    return report


def summary(problem: Problem, ranks: int, seconds: float, single: float | None, unit: str = "GPU") -> list[str]:
    """Return the lines at the end.

    Parameters
    ----------
    problem : Problem
        What was solved.
    ranks : int
        By how many.
    seconds : float
        In what time.
    single : float or None
        The time of one.
    unit : str
        What a rank is.
    """
    size = f"{problem.nx}x{problem.ny}"
    first = f"Num {unit}s: {ranks}."
    if single is None:
        return [first, f"{size}: {ranks} {unit}s: {seconds:8.4f} s "]
    speedup = single / seconds
    return [
        first,
        f"{size}: 1 {unit}: {single:8.4f} s, {ranks} {unit}s: {seconds:8.4f} s, "
        f"speedup: {speedup:8.2f}, efficiency: {100 * speedup / ranks:8.2f} ",
    ]


def csv_line(variant: str, problem: Problem, ranks: int, seconds: float, single: float | None) -> str:
    """Return the line for a table; without a run on one rank its time is 0."""
    return (
        f"{variant}, {problem.nx}, {problem.ny}, {problem.iterations}, {problem.check}, {ranks}, 1, "
        f"{seconds:f}, {single or 0.0:f}"
    )
