"""What a reflectivity inversion can be told, with the defaults."""

from __future__ import annotations

from dataclasses import dataclass

from collops.apps.options import check_choice
from collops.apps.volume.options import VolumeOptions
from collops.errors import InputError

__all__ = ["Options"]


@dataclass(frozen=True, kw_only=True)
class Options(VolumeOptions):
    """The choices of one reflectivity inversion, beside those of every job on post-stack data.

    Parameters
    ----------
    sparsity : float
        Weight of the sum of absolute values, relative to the one that leaves no spike at all.
    threshold : str
        ``"soft"``, ``"half"`` or ``"hard"``: what shrinks the spikes.
    """

    sparsity: float = 0.05
    threshold: str = "soft"
    iterations: int = 100
    out: str = "collops-reflectivity"

    def check(self) -> None:
        """Raise if a number makes no sense or options contradict each other; see `JobOptions`."""
        super().check()
        if not 0 <= self.sparsity <= 1:
            raise InputError(f"--sparsity must lie between 0 and 1, not {self.sparsity}")
        check_choice("threshold", self.threshold, ("soft", "half", "hard"))
