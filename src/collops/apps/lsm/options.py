"""What a migration can be told, with the defaults, and the checks that need neither files nor other ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from collops.apps.lsm.velocity import Gradient, parse_velocity
from collops.apps.segy import SegyFile
from collops.errors import InputError

__all__ = ["Options"]

_SYNTHETIC_ONLY = ("shots", "receivers", "samples", "noise", "write_survey")


@dataclass(frozen=True)
class Options:
    """The choices of one least-squares migration. None means: choose for me.

    Parameters
    ----------
    survey : str, optional
        SEG-Y file to migrate; without it a synthetic survey is made.
    velocity : str, optional
        A number, a gradient ``1500+0.6z``, or a file .npy, .sgy or .segy.
    inline : int, optional
        Which section of a velocity volume.
    nx, nz : int, optional
        Image points along the line and in depth.
    dx, dz, x0 : float, optional
        Their spacings and the position of the first column, in metres.
    shots, receivers, samples : int, optional
        Size of the synthetic survey.
    noise : float, optional
        Root mean square of its noise relative to that of its signal.
    seed : int
        Of the noise; the same on any number of ranks.
    write_survey : str, optional
        SEG-Y file to write the synthetic survey to.
    frequency : float, optional
        Peak frequency of the Ricker wavelet in hertz.
    mute : float, optional
        Slowest speed in m/s of what is muted: samples before offset over this speed become zero.
    mode : str, optional
        Travel times: ``"eikonal"`` (the default), or ``"analytic"`` for a constant velocity.
    iterations : int
        Of CGLS.
    damp : float
        Damping relative to the operator's norm.
    dtype : str
        ``"float32"`` or ``"float64"``.
    engine : str
        ``"auto"``, ``"numpy"`` or ``"cupy"``.
    out : str
        Folder for the results.
    """

    survey: str | None = None
    velocity: str | None = None
    inline: int | None = None
    nx: int | None = None
    nz: int | None = None
    dx: float | None = None
    dz: float | None = None
    x0: float | None = None
    shots: int | None = None
    receivers: int | None = None
    samples: int | None = None
    noise: float | None = None
    seed: int = 0
    write_survey: str | None = None
    frequency: float | None = None
    mute: float | None = None
    mode: str | None = None
    iterations: int = 30
    damp: float = 0.0
    dtype: str = "float32"
    engine: str = "auto"
    out: str = "collops-lsm"

    def check(self) -> None:
        """Raise if a number makes no sense or options contradict each other; reads only the heads of files.

        Raises
        ------
        InputError
            Naming the option and what to do.
        """
        for name, least in (
            ("nx", 2),
            ("nz", 2),
            ("shots", 1),
            ("receivers", 1),
            ("samples", 2),
            ("iterations", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"--{name} must be at least {least}, not {value}")
        for name in ("dx", "dz", "frequency", "mute"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"--{name} must be a positive number, not {value}")
        for name in ("noise", "damp"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"--{name} must be zero or a positive number, not {value}")
        if self.x0 is not None and not math.isfinite(self.x0):
            raise InputError(f"--x0 must be a finite number, not {self.x0}")
        if self.seed < 0:
            raise InputError(f"--seed must be zero or positive, not {self.seed}")
        for name, choices in (
            ("mode", (None, "eikonal", "analytic")),
            ("dtype", ("float32", "float64")),
            ("engine", ("auto", "numpy", "cupy")),
        ):
            if getattr(self, name) not in choices:
                raise InputError(
                    f"--{name} must be one of {', '.join(filter(None, choices))}, not {getattr(self, name)!r}"
                )
        if self.survey is not None:
            for name in _SYNTHETIC_ONLY:
                if getattr(self, name) is not None:
                    option = name.replace("_", "-")
                    raise InputError(f"--{option} belongs to the synthetic survey: leave it out, or leave out --survey")
            SegyFile.inspect(self.survey)
        self._check_velocity()

    def _check_velocity(self) -> None:
        model = None if self.velocity is None else parse_velocity(self.velocity)
        if isinstance(model, Path):
            if model.suffix.lower() != ".npy":
                SegyFile.inspect(model)
            elif not model.is_file():
                raise InputError(f"{model} does not exist: check the name of the velocity file")
        if self.inline is not None and (not isinstance(model, Path) or model.suffix.lower() == ".npy"):
            raise InputError(
                "--inline chooses a section of a SEG-Y velocity: give one with --velocity, or leave it out"
            )
        # The velocity of a survey that this package wrote may still come from its header; it is checked there
        # again.
        if self.mode == "analytic" and not (
            (isinstance(model, Gradient) and model.gradient == 0) or (model is None and self.survey is not None)
        ):
            raise InputError("--mode analytic needs a constant velocity: give one such as --velocity 1800")
