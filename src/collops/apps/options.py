"""The options of applications, from which the command line, its help and its checks are generated.

A class of options is a frozen dataclass derived from `CommonOptions`. The annotation of a field has its type, its help
and the requirements on its values::

    shots: Annotated[int | None, option("Number of shots.", SYNTHETIC), AtLeast(1), SyntheticOnly()] = None
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, get_type_hints

import typer

from collops.comm.files import resolved
from collops.errors import InputError

__all__ = [
    "DATA",
    "METHOD",
    "SYNTHETIC",
    "AtLeast",
    "CommonOptions",
    "Damp",
    "Dtype",
    "EngineName",
    "Finite",
    "Folder",
    "Iterations",
    "Must",
    "NotNegative",
    "OneOf",
    "Out",
    "Overwrite",
    "Positive",
    "RecordedOnly",
    "SyntheticOnly",
    "check_must",
    "option",
]

DATA, SYNTHETIC, METHOD, CHECKPOINTS = "Data", "Synthetic data", "Method", "Checkpoints"
"""Panels of the help that several applications use."""


class Must(NamedTuple):
    """A requirement on an option; None, the default that the application chooses, is always allowed.

    Attributes
    ----------
    be : str
        The requirement in words that follow "must".
    test : callable
        Returns whether a value satisfies it.

    Examples
    --------
    >>> from collops.extend.applications import Must
    >>> Even = Must("be even", lambda value: value % 2 == 0)
    >>> Even.test(3)
    False
    """

    be: str
    test: Callable[[Any], bool]


class SyntheticOnly(NamedTuple):
    """An option for synthetic data: only its default is allowed together with the option `unless`.

    By default `unless` is the option named by ``recorded``; see :class:`CommonOptions`.

    Examples
    --------
    >>> from typing import Annotated
    >>> from collops.extend.applications import SyntheticOnly, option
    >>> Samples = Annotated[int, option("Number of samples."), SyntheticOnly(unless="data")]
    """

    unless: str | None = None


class RecordedOnly(NamedTuple):
    """An option for recorded data: only its default is allowed without the option named by ``recorded``.

    Examples
    --------
    >>> from typing import Annotated
    >>> from collops.extend.applications import RecordedOnly, option
    >>> Scale = Annotated[float, option("Factor of the recorded data."), RecordedOnly()]
    """


Positive = Must("be a positive number", lambda value: math.isfinite(value) and value > 0)
NotNegative = Must("be zero or a positive number", lambda value: math.isfinite(value) and value >= 0)
Finite = Must("be a finite number", math.isfinite)
# An empty name would mean the current folder.
Folder = Must("name a folder", bool)


def AtLeast(least: int) -> Must:
    """Require an option to be at least this number.

    Examples
    --------
    >>> from collops.extend.applications import AtLeast
    >>> AtLeast(2).be
    'be at least 2'
    """
    return Must(f"be at least {least}", lambda value: value >= least)


def OneOf(*choices: str) -> Must:
    """Require an option to be one of some words.

    Examples
    --------
    >>> from collops.extend.applications import OneOf
    >>> OneOf("linear", "cubic").be
    'be one of linear, cubic'
    """
    return Must(f"be one of {', '.join(choices)}", lambda value: value in choices)


def option(text: str, panel: str | None = None, *names: str, **keywords: Any) -> Any:
    """Describe a command-line option: its help, the panel that shows it, and names that replace the field's name.

    A flag needs its name. For keywords see `typer.Option`.

    Examples
    --------
    >>> from typing import Annotated
    >>> from collops.extend.applications import option
    >>> Verbose = Annotated[bool, option("Show all steps.", None, "--verbose")]
    """
    return typer.Option(*names, help=text, rich_help_panel=panel, **keywords)


# Options of several classes, each with its own default.
Iterations = Annotated[int, option("Number of solver iterations."), AtLeast(1)]
Damp = Annotated[float, option("Damping, relative to the norm of the operator.", METHOD), NotNegative]
Out = Annotated[str, option("Folder for the results.", metavar="DIR"), Folder]
Overwrite = Annotated[bool, option("Replace the results of an earlier run.", None, "--overwrite")]
Dtype = Annotated[str, option("Floating-point type: float32 or float64.", METHOD), OneOf("float32", "float64")]
EngineName = Annotated[
    str,
    option("numpy (CPU), cupy (GPU), or auto: cupy if every rank has a GPU, else numpy.", METHOD),
    OneOf("auto", "numpy", "cupy"),
]


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """The options of all applications: the base of the frozen dataclass ``Options`` of an application.

    A field's annotation has its type, :func:`option` and requirements such as :class:`Must`. The class attribute
    ``recorded`` is the name of the option for a file of recorded data; without this option, data are synthetic.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from typing import Annotated
    >>> from collops.extend.applications import AtLeast, CommonOptions, option
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Options(CommonOptions):
    ...     recorded = "samples"
    ...     samples: Annotated[str | None, option("Samples.", metavar="FILE.npy")] = None
    ...     degree: Annotated[int, option("Degree of the polynomial."), AtLeast(0)] = 2
    >>> Options(degree=-1).check()
    Traceback (most recent call last):
    collops.errors.InputError: --degree must be at least 0, not -1
    """

    recorded: ClassVar[str]  # the option for a file of recorded data; without it, data are synthetic
    writes: ClassVar[tuple[str, ...]] = ("out", "checkpoint", "metrics")  # options that name output files and folders

    # With None, the application chooses.
    iterations: Annotated[int | None, option("Number of solver iterations."), AtLeast(1)] = 30
    noise: Annotated[
        float | None,
        option("Noise of the synthetic data, relative to their root mean square.", SYNTHETIC),
        NotNegative,
        SyntheticOnly(),
    ] = None
    seed: Annotated[
        int, option("Seed of random numbers.", SYNTHETIC), Must("be zero or positive", lambda value: value >= 0)
    ] = 0
    dtype: Dtype = "float32"
    engine: EngineName = "auto"
    checkpoint: Annotated[
        str | None,
        option(
            "Folder for checkpoints of the solver. A checkpoint is also written when SIGTERM, SIGUSR1 or Ctrl-C ends "
            "the job.",
            CHECKPOINTS,
            metavar="DIR",
        ),
        Folder,
    ] = None
    every: Annotated[
        str | None,
        option(
            "Number of iterations between checkpoints, or a time such as 30s, 10m or 2h.",
            CHECKPOINTS,
            metavar="N|TIME",
            show_default="10m",
        ),
    ] = None
    resume: Annotated[bool, option("Resume from the last checkpoint, if any.", CHECKPOINTS, "--resume")] = False
    profile: Annotated[
        bool,
        option(
            "Measure the time per iteration of modelling, communication and the rest on each rank, and count messages. "
            "Disables CUDA graphs.",
            None,
            "--profile",
        ),
    ] = False
    metrics: Annotated[
        str | None,
        option(
            "Serve iterations, residual, seconds and messages in the text format of Prometheus on this port of "
            "localhost, or write them to this file.",
            None,
            metavar="FILE|PORT",
        ),
        Must("be a file or a port from 1 to 65535", lambda value: not value.isdigit() or 1 <= int(value) <= 65535),
    ] = None
    out: Out = "collops-result"
    overwrite: Overwrite = False

    def results(self) -> list[Path]:
        """Return the files and folders that the application may write, for any data."""
        return [Path(self.out) / name for name in ("result.zarr", "image.png", "convergence.png")]

    def resumes(self) -> bool:
        """Return whether there is a checkpoint to resume from."""
        return self.resume and any(Path(self.checkpoint or "").glob("iteration-*"))

    def check(self) -> None:
        """Raise `InputError` for invalid or contradictory values; read only headers of files."""
        check_must(self)
        for field in fields(self):
            name, is_set = field.name, getattr(self, field.name) != field.default
            for requirement in _requirements(type(self)).get(name, ()) if is_set else ():
                if isinstance(requirement, SyntheticOnly):
                    files = requirement.unless or self.recorded
                    if getattr(self, files) is not None:
                        raise InputError(
                            f"{_option_name(name)} is for synthetic data: omit it, or omit {_option_name(files)}"
                        )
                elif isinstance(requirement, RecordedOnly) and getattr(self, self.recorded) is None:
                    raise InputError(
                        f"{_option_name(name)} is for recorded data: omit it, or pass a file with "
                        f"{_option_name(self.recorded)}"
                    )
        if self.checkpoint is None:
            for name, is_set in (("every", self.every is not None), ("resume", self.resume)):
                if is_set:
                    raise InputError(f"--{name} needs checkpoints: pass their folder with --checkpoint")
        elif resolved(self.checkpoint) == resolved(self.out):
            # A folder of checkpoints must not have other files.
            raise InputError("--checkpoint and --out name the same folder: use a separate folder for checkpoints")
        texts = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in self.writes}
        read = [(name, resolved(text)) for name, text in texts.items() if isinstance(text, str)]
        for result in map(resolved, self.results()):
            # Input may be read after results have been written: results of large surveys read the traces again.
            if name := next((name for name, path in read if path.is_relative_to(result)), None):
                raise InputError(
                    f"this run would replace its input {result} ({_option_name(name)}): choose another --out"
                )
        if self.every is not None:
            from collops.solvers.checkpoint import Every

            Every.parse(self.every)


def _option_name(field: str) -> str:
    """Return the option that sets a field."""
    return "--" + field.replace("_", "-")


def check_must(options: object) -> None:
    """Raise `InputError` unless every field of a dataclass of options meets the requirements of its annotation."""
    for name, requirements in _requirements(type(options)).items():
        value = getattr(options, name)
        for requirement in requirements:
            if isinstance(requirement, Must) and value is not None and not requirement.test(value):
                shown = repr(value) if isinstance(value, str) else value
                raise InputError(f"{_option_name(name)} must {requirement.be}, not {shown}")


@functools.cache
def _requirements(kind: type) -> dict[str, tuple[Any, ...]]:
    """Return the annotations of a class of options except the types, by field."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__ for name, hint in hints.items() if hasattr(hint, "__metadata__")}
