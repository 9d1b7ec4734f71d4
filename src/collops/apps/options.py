"""The choices that all jobs share, with their defaults, and the checks of options that need no files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collops.errors import InputError

if TYPE_CHECKING:
    from collops.solvers import Run

__all__ = [
    "JobOptions",
    "check_choice",
    "check_folders",
    "check_least",
    "check_not_negative",
    "check_positive",
    "option_name",
]


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What every job can be told. None means: choose for me.

    Parameters
    ----------
    noise : float, optional
        Root mean square of the noise in made-up data relative to that of their signal.
    seed : int
        Of all that is drawn at random; the same on any number of ranks.
    iterations : int
        Of the solver.
    dtype : str
        ``"float32"`` or ``"float64"``.
    engine : str
        ``"auto"``, ``"numpy"`` or ``"cupy"``.
    out : str
        Folder for the results.
    checkpoint : str, optional
        Folder for the solver's checkpoints.
    every : str, optional
        How often one is written, see `collops.solvers.cgls`.
    resume : bool
        Whether the solver goes on from the one that is there.
    """

    noise: float | None = None
    seed: int = 0
    iterations: int = 30
    dtype: str = "float32"
    engine: str = "auto"
    out: str = "collops-result"
    checkpoint: str | None = None
    every: str | None = None
    resume: bool = False

    def check(self) -> None:
        """Raise if a number makes no sense or options contradict each other; reads only the heads of files.

        Raises
        ------
        InputError
            Naming the option and what to do.
        """
        check_least(self, {"iterations": 1})
        check_not_negative(self, ["noise"])
        if self.seed < 0:
            raise InputError(f"--seed must be zero or positive, not {self.seed}")
        check_choice("dtype", self.dtype, ("float32", "float64"))
        check_choice("engine", self.engine, ("auto", "numpy", "cupy"))
        check_folders(self, ["out", "checkpoint"])
        self._check_checkpoint()

    def run(self, progress: bool) -> Run:
        """Return how the solver is run, on a rank that shows progress or does not."""
        return {"progress": progress, "checkpoint": self.checkpoint, "every": self.every, "resume": self.resume}

    def refuse(self, names: Iterable[str], owner: str, remedy: str) -> None:
        """Raise if an option is given that belongs to something else.

        Parameters
        ----------
        names : iterable of str
            Fields that must be None.
        owner : str
            What they belong to.
        remedy : str
            What to leave out instead.
        """
        for name in names:
            if getattr(self, name) is not None:
                raise InputError(f"{option_name(name)} belongs to {owner}: leave it out, or leave out {remedy}")

    def _check_checkpoint(self) -> None:
        if self.checkpoint is None:
            for name, given in (("every", self.every is not None), ("resume", self.resume)):
                if given:
                    raise InputError(f"--{name} is about checkpoints: name their folder with --checkpoint")
        elif Path(self.checkpoint).resolve() == Path(self.out).resolve():
            # Later runs would take the results for things that are not theirs.
            raise InputError("--checkpoint and --out name one folder: give checkpoints a folder of their own")
        if self.every is not None:
            from collops.solvers.agenda import Every

            Every.of(self.every)


def option_name(field: str) -> str:
    """Return the option that sets a field."""
    return "--" + field.replace("_", "-")


def check_least(options: Any, least: Mapping[str, int]) -> None:
    """Raise unless each field is None or at least as large as given."""
    for name, smallest in least.items():
        value = getattr(options, name)
        if value is not None and value < smallest:
            raise InputError(f"{option_name(name)} must be at least {smallest}, not {value}")


def check_positive(options: Any, names: Iterable[str]) -> None:
    """Raise unless each field is None, or finite and positive."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"{option_name(name)} must be a positive number, not {value}")


def check_not_negative(options: Any, names: Iterable[str]) -> None:
    """Raise unless each field is None, or finite and not negative."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise InputError(f"{option_name(name)} must be zero or a positive number, not {value}")


def check_folders(options: Any, names: Iterable[str]) -> None:
    """Raise unless each field is None or has a name: that of no folder would be the one that the user is in."""
    for name in names:
        if getattr(options, name) == "":
            raise InputError(f"{option_name(name)} must name a folder")


def check_choice(name: str, value: str | None, choices: Iterable[str | None]) -> None:
    """Raise unless a value is one of the choices."""
    if value not in choices:
        raise InputError(f"{option_name(name)} must be one of {', '.join(filter(None, choices))}, not {value!r}")
