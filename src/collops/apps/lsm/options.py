"""What a migration can be told, with the defaults, and the checks that need neither files nor other ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from collops.apps.lsm.velocity import Gradient, parse_velocity
from collops.apps.options import JobOptions, check_choice, check_least, check_not_negative, check_positive
from collops.apps.segy import SegyFile
from collops.errors import InputError

__all__ = ["Options"]

_SYNTHETIC_ONLY = ("shots", "receivers", "samples", "noise", "write_survey")


@dataclass(frozen=True, kw_only=True)
class Options(JobOptions):
    """The choices of one least-squares migration, beside those of every job. None means: choose for me.

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
    write_survey : str, optional
        SEG-Y file to write the synthetic survey to.
    frequency : float, optional
        Peak frequency of the Ricker wavelet in hertz.
    mute : float, optional
        Slowest speed in m/s of what is muted: samples before offset over this speed become zero.
    mode : str, optional
        Travel times: ``"eikonal"`` (the default), or ``"analytic"`` for a constant velocity.
    damp : float
        Damping relative to the operator's norm.
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
    write_survey: str | None = None
    frequency: float | None = None
    mute: float | None = None
    mode: str | None = None
    damp: float = 0.0
    out: str = "collops-lsm"

    def check(self) -> None:
        """Raise if a number makes no sense or options contradict each other; see `JobOptions`."""
        super().check()
        check_least(self, {"nx": 2, "nz": 2, "shots": 1, "receivers": 1, "samples": 2})
        check_positive(self, ("dx", "dz", "frequency", "mute"))
        check_not_negative(self, ["damp"])
        if self.x0 is not None and not math.isfinite(self.x0):
            raise InputError(f"--x0 must be a finite number, not {self.x0}")
        check_choice("mode", self.mode, (None, "eikonal", "analytic"))
        if self.survey is not None:
            self.refuse(_SYNTHETIC_ONLY, "the synthetic survey", "--survey")
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
