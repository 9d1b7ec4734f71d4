"""The table of media: which parameters a wave equation has besides the velocity, and its medium."""

from __future__ import annotations

from typing import Any

from collops.errors import InputError
from collops.seismic.waves.medium import Medium
from collops.seismic.waves.variable_density import VariableDensity
from collops.seismic.waves.viscoacoustic import Viscoacoustic, ViscoacousticDensity, ViscoacousticVTI
from collops.seismic.waves.vti import VTI

# By the names of the parameters, sorted.
_MEDIA: dict[tuple[str, ...], Any] = {
    (): Medium,
    ("density",): VariableDensity,
    ("delta", "epsilon"): VTI,
    ("quality_factor",): Viscoacoustic,
    ("density", "quality_factor"): ViscoacousticDensity,
    ("delta", "epsilon", "quality_factor"): ViscoacousticVTI,
}


def kind_of_medium(parameters: dict[str, Any]) -> type[Medium]:
    """Return the medium with these parameters. Raises InputError if there is none."""
    kind = _MEDIA.get(tuple(sorted(parameters)))
    if kind is None:
        known = ", or ".join(" and ".join(names) for names in _MEDIA if names)
        raise InputError(f"a medium takes {known}, not {' and '.join(sorted(parameters))}")
    return kind
