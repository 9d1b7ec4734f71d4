"""Where the elements of an axis go when it is turned round, cut or padded: what shifts and lengths ask for."""

from __future__ import annotations

from typing import Any

__all__ = ["Placement"]


class Placement:
    """A map of one axis to another: turned round by some elements, then cut or padded with zeros at its end.

    Parameters
    ----------
    axis : int
        The axis of the arrays.
    given, taken : int
        Its extents before and after.
    shift : int
        Which element becomes the first.

    Attributes
    ----------
    identity : bool
        Whether everything stays where it is.
    """

    __slots__ = ("_blank_given", "_blank_taken", "_pairs", "identity")

    def __init__(self, axis: int, given: int, taken: int, shift: int) -> None:
        shift = shift % given
        common = min(given, taken)
        leading = (slice(None),) * axis
        self.identity = given == taken and shift == 0
        self._pairs = [((*leading, to), (*leading, from_)) for to, from_ in _pieces(given, shift, 0, common)]
        self._blank_taken = [(*leading, slice(common, taken))] if common < taken else []
        self._blank_given = [(*leading, from_) for _, from_ in _pieces(given, shift, common, given)]

    def place(self, source: Any, target: Any) -> None:
        """Fill `target`, whose axis has the extent ``taken``, from `source`."""
        for to, from_ in self._pairs:
            target[to] = source[from_]
        for blank in self._blank_taken:
            target[blank] = 0

    def place_back(self, source: Any, target: Any) -> None:
        """Fill `target`, whose axis has the extent ``given``, by the adjoint: elements return, cut ones are zero."""
        for from_, to in self._pairs:
            target[to] = source[from_]
        for blank in self._blank_given:
            target[blank] = 0


def _pieces(given: int, shift: int, begin: int, end: int) -> list[tuple[slice, slice]]:
    """Return which slices the places from `begin` to `end` are filled from, after turning by `shift`."""
    turn = given - shift
    pieces = [(begin, min(end, turn), shift), (max(begin, turn), end, -turn)]
    return [(slice(a, b), slice(a + by, b + by)) for a, b, by in pieces if a < b]
