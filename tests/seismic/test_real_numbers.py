"""Complex numbers where real ones are meant are an error, where NumPy drops the imaginary part and warns."""

from __future__ import annotations

import numpy as np
import pytest

from collops.errors import InputError
from collops.seismic import fit_avo
from collops.seismic.kirchhoff import first_arrivals
from collops.seismic.waves import Geometry

AXES = 10.0 * np.arange(5), 10.0 * np.arange(4)
SPEED, POSITIONS = np.full((5, 4), 2000.0), [[0.0, 0.0]]


@pytest.mark.parametrize(
    "call",
    [
        lambda: next(first_arrivals(AXES, POSITIONS, SPEED + 0j)),
        lambda: next(first_arrivals(AXES, np.array(POSITIONS) + 0j, SPEED)),
        lambda: fit_avo([5.0, 15.0, 25.0], np.ones((3, 2)) + 0j),
        lambda: fit_avo([5.0, 15.0, 25.0], np.ones((3, 2)), noise=1j),
        lambda: Geometry(POSITIONS, POSITIONS, np.ones(5) + 0j, 0.001),
    ],
)
def test_complex_numbers_are_refused(call):
    with pytest.raises(InputError, match="must be real, not of complex128"):
        call()
