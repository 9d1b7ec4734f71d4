"""The table of media: which parameters a wave equation has besides the velocity, and its medium."""

from __future__ import annotations

from typing import Any

from collops.errors import InputError
from collops.seismic.waves.media.elastic import Elastic
from collops.seismic.waves.media.medium import Medium
from collops.seismic.waves.media.variable_density import VariableDensity
from collops.seismic.waves.media.viscoacoustic import Viscoacoustic, ViscoacousticDensity, ViscoacousticVTI
from collops.seismic.waves.media.vti import VTI

# By the names of the parameters, sorted.
_MEDIA: dict[tuple[str, ...], Any] = {
    (): Medium,
    ("density",): VariableDensity,
    ("delta", "epsilon"): VTI,
    ("shear_velocity",): Elastic,
    ("density", "shear_velocity"): Elastic,
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
