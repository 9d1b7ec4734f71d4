"""What a job on post-stack data can be told, with the defaults, and the checks that need no other ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collops.apps.arrays import check_kind, open_array
from collops.apps.options import JobOptions, check_least, check_positive
from collops.apps.segy import SegyFile
from collops.apps.volume.arrays import DATA_NAMES
from collops.apps.volume.wavelet import parse_wavelet

__all__ = ["VolumeOptions", "check_array_file", "is_segy"]

_MADE_ONLY = ("inlines", "crosslines", "samples", "noise")
_RECORDED_ONLY = ("strength", "inline_byte", "crossline_byte")


@dataclass(frozen=True, kw_only=True)
class VolumeOptions(JobOptions):
    """Where post-stack data come from. None means: choose for me.

    Parameters
    ----------
    volume : str, optional
        SEG-Y file, .npy file or Zarr store; without it data are made.
    interval : float, optional
        Milliseconds between samples, in place of what the file says; of made data, 4.
    inline_byte, crossline_byte : int, optional
        Where SEG-Y trace headers hold these numbers, counted from 1; 189 and 193 by default.
    inlines, crosslines, samples : int, optional
        Size of the made volume.
    wavelet : str, optional
        ``"ricker:FREQUENCY"``, a .npy file, or ``"data"``: of zero phase, from the spectrum of the data.
    strength : float, optional
        Root mean square of the reflection coefficients that gives a wavelet without amplitude one.
    """

    volume: str | None = None
    interval: float | None = None
    inline_byte: int | None = None
    crossline_byte: int | None = None
    inlines: int | None = None
    crosslines: int | None = None
    samples: int | None = None
    wavelet: str | None = None
    strength: float | None = None

    def check(self) -> None:
        """Raise if a number makes no sense or options contradict each other; see `JobOptions`."""
        super().check()
        check_least(self, {"inlines": 1, "crosslines": 1, "samples": 8, "inline_byte": 1, "crossline_byte": 1})
        check_positive(self, ("interval", "strength"))
        if self.wavelet is not None:
            parse_wavelet(self.wavelet)
        if self.volume is None:
            self.refuse(_RECORDED_ONLY, "data from a file", "that option, or name the file with --volume")
        else:
            self.refuse(_MADE_ONLY, "made data", "--volume")
            check_array_file(self.volume, DATA_NAMES)


def is_segy(path: Path) -> bool:
    """Return whether a path names a SEG-Y file, by its suffix."""
    return path.suffix.lower() in (".sgy", ".segy")


def check_array_file(text: str, names: tuple[str, ...]) -> None:
    """Raise unless a file is there that may hold a volume; reads its head only.

    Parameters
    ----------
    text : str
        Its path.
    names : tuple of str
        See `open_array`.

    Raises
    ------
    InputError
        If it is missing, empty, truncated or of another kind.
    """
    path = Path(text)
    if is_segy(path):
        SegyFile.inspect(path)
    else:
        check_kind(path, ".sgy", ".segy")
        open_array(path, names)
