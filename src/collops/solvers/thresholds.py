"""Thresholds: which values an iteration shrinks or drops, by a fixed size or by their share of all values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from numbers import Real
from typing import Any

from collops.errors import InputError

__all__ = ["HALF_CUT", "Rule", "Threshold", "find_threshold"]

HALF_CUT = 54 ** (1 / 3) / 4
"""Up to this size values become 0 under the rule HALF with the threshold 1."""


class Rule(IntEnum):
    r"""What becomes of a value :math:`u` for a threshold :math:`t`; the kernels know the numbers."""

    KEEP = 0
    """Nothing."""
    SOFT = 1
    r""":math:`u \max(1 - t / |u|, 0)`, the proximal operator of :math:`t |u|`."""
    HARD = 2
    r""":math:`u` where :math:`|u| > \sqrt{2 t}`, else 0: the proximal operator of :math:`t` where u is not 0."""
    HALF = 3
    r"""The proximal operator of :math:`t |u|^{1/2} / 2`, which is 0 where :math:`|u| \le 54^{1/3} t^{2/3} / 4`."""
    PROJECT = 4
    r""":math:`u \min(t / |u|, 1)`, the projection on the ball of radius t: what SOFT takes away."""
    CLIP = 5
    """Real values only: the nearest one between two bounds."""
    HARD_AT = 6
    r"""HARD with the size :math:`t` itself up to which values become 0, so that rounding decides on none."""
    HALF_AT = 7
    r"""HALF likewise."""


@dataclass(frozen=True)
class Threshold:
    """A rule, and whether its threshold is a size, or the percentile of all sizes that it cuts at.

    Attributes
    ----------
    rule : Rule
        SOFT, HARD or HALF; of a percentile SOFT, HARD_AT or HALF_AT.
    percentile : float, optional
        Of the absolute values, 0 to 100: values up to it become 0.
    """

    rule: Rule
    percentile: float | None = None

    def parameter(self, cut: Any) -> Any:
        """Return the rule's threshold for which values of an absolute value up to `cut` become 0."""
        if self.rule is Rule.HARD:
            return 0.5 * cut * cut
        if self.rule is Rule.HALF:
            return (cut / HALF_CUT) ** 1.5
        return cut


_RULES = {"soft": Rule.SOFT, "hard": Rule.HARD, "half": Rule.HALF}
_AT = {"soft": Rule.SOFT, "hard": Rule.HARD_AT, "half": Rule.HALF_AT}
_SUFFIX = "-percentile"


def find_threshold(threshkind: Any, perc: Any) -> Threshold:
    """Return the threshold that PyLops calls `threshkind`.

    Parameters
    ----------
    threshkind : str
        ``"soft"``, ``"hard"``, ``"half"``, or one of these with ``"-percentile"`` behind it.
    perc : float, optional
        For a percentile: how many percent of the values are kept.

    Raises
    ------
    InputError
        If there is no such threshold, or `perc` is missing, not wanted or no percentage.
    """
    name = threshkind.removesuffix(_SUFFIX) if isinstance(threshkind, str) else ""
    if name not in _RULES:
        kinds = ", ".join([*_RULES, *(kind + _SUFFIX for kind in _RULES)])
        raise InputError(f"threshkind must be one of {kinds}, not {threshkind!r}")
    if name == threshkind:
        if perc is not None:
            raise InputError(f"perc is for percentiles: threshkind must be {name + _SUFFIX!r}, not {threshkind!r}")
        return Threshold(_RULES[name])
    if isinstance(perc, bool) or not isinstance(perc, Real) or not 0 <= float(perc) <= 100:
        raise InputError(f"{threshkind} keeps perc percent of the values: give 0 to 100, not {perc!r}")
    return Threshold(_AT[name], 100 - float(perc))
