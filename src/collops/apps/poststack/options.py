"""What a post-stack inversion can be told, with the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collops.apps.options import check_not_negative
from collops.apps.volume.options import VolumeOptions, check_array_file
from collops.errors import InputError

__all__ = ["BACKGROUND_NAMES", "Options", "parse_background"]

BACKGROUND_NAMES = ("background", "impedance")
"""What the background is called in a Zarr group."""


@dataclass(frozen=True, kw_only=True)
class Options(VolumeOptions):
    """The choices of one post-stack inversion, beside those of every job on post-stack data.

    Parameters
    ----------
    background : str, optional
        Impedance to start from: a number, ``"smooth"`` (the made one without its details), or a file of the volume's
        shape. By default ``"smooth"`` for made data, else 1: impedances are then relative.
    weight : float
        Of the lateral Laplacian, relative to the norm of the modelling operator.
    damp : float
        Damping towards the background, likewise.
    """

    background: str | None = None
    weight: float = 0.05
    damp: float = 0.01
    iterations: int = 60
    out: str = "collops-poststack"

    def check(self) -> None:
        """Raise if a number makes no sense or options contradict each other; see `JobOptions`."""
        super().check()
        check_not_negative(self, ("weight", "damp"))
        if self.background == "smooth" and self.volume is not None:
            raise InputError("--background smooth needs the impedance of made data: give a number or a file")
        if self.background is not None:
            parse_background(self.background)


def parse_background(text: str) -> float | Path | None:
    """Tell the three kinds of backgrounds apart.

    Returns
    -------
    float, pathlib.Path or None
        The impedance, the file, or None for the smoothed truth.

    Raises
    ------
    InputError
        If the number is not positive and finite, or the file cannot be read.
    """
    if text == "smooth":
        return None
    try:
        value = float(text)
    except ValueError:
        check_array_file(text, BACKGROUND_NAMES)
        return Path(text)
    if not 0 < value < float("inf"):
        raise InputError(f"--background must be a positive impedance, not {text}")
    return value
