"""How a solver is run, whatever its method: the options that all of them share."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any, TypedDict

__all__ = ["Run"]


class Run(TypedDict, total=False):
    """The options that every solver takes; :func:`collops.solvers.cgls` says what they do.

    Examples
    --------
    >>> import collops
    >>> from collops.solvers import Run
    >>> options: Run = {"progress": False, "graph": "auto"}
    >>> collops.cgls(collops.Identity(3), collops.ones(3), niter=2, **options).iterations
    1
    """

    callback: Callable[[int, Any], Any] | None
    progress: bool | None
    graph: bool | str
    lag: int | None
    checkpoint: str | PathLike[str] | None
    every: int | str | None
    resume: bool
    differentiate: str
