"""What a multi-dimensional deconvolution can be told, with the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collops.apps.arrays import check_kind, open_array
from collops.apps.options import JobOptions, check_least, check_not_negative, check_positive
from collops.errors import InputError

__all__ = ["DOWN_NAMES", "UP_NAMES", "Options"]

_MADE_ONLY = ("sources", "receivers", "samples", "noise")
DOWN_NAMES, UP_NAMES = ("down", "downgoing"), ("up", "upgoing")
"""What the fields are called in a Zarr group."""


@dataclass(frozen=True, kw_only=True)
class Options(JobOptions):
    """The choices of one multi-dimensional deconvolution, beside those of every job. None means: choose for me.

    Parameters
    ----------
    down, up : str, optional
        Files of the downgoing field, of shape (sources, receivers, samples), and of the upgoing one, of shape
        (sources, virtual sources, samples); without them fields are made.
    interval : float, optional
        Milliseconds between samples; 4 for made fields.
    spacing : float, optional
        Metres between receivers; 15 for made fields.
    sources, receivers, samples : int, optional
        Size of the made fields.
    fmax : float, optional
        Highest frequency in hertz; by default where the downgoing field has a hundredth of its largest amplitude left.
    damp : float
        Damping relative to the norm of the operator.
    """

    down: str | None = None
    up: str | None = None
    interval: float | None = None
    spacing: float | None = None
    sources: int | None = None
    receivers: int | None = None
    samples: int | None = None
    fmax: float | None = None
    damp: float = 0.01
    iterations: int = 30
    out: str = "collops-mdd"

    def check(self) -> None:
        """Raise if a number makes no sense or options contradict each other; see `JobOptions`."""
        super().check()
        check_least(self, {"sources": 1, "receivers": 1, "samples": 2})
        check_positive(self, ("interval", "spacing", "fmax"))
        check_not_negative(self, ["damp"])
        if (self.down is None) != (self.up is None):
            raise InputError("give both --down and --up, or neither of them")
        if self.down is not None and self.up is not None:
            self.refuse(_MADE_ONLY, "made fields", "--down and --up")
            for name in ("interval", "spacing"):
                if getattr(self, name) is None:
                    raise InputError(f"--{name} is needed with --down and --up: arrays do not say it")
            for text, names in ((self.down, DOWN_NAMES), (self.up, UP_NAMES)):
                check_kind(Path(text))
                open_array(Path(text), names)
