"""Noise of synthetic data."""

from __future__ import annotations

import numpy as np
import pytest

from collops.seismic.signals import with_noise
from collops.seismic.survey.geometry import shots_of


@pytest.mark.parametrize("records", [5, 1])
def test_noise_depends_on_the_record_and_the_seed_only(comm, records):
    own = shots_of(comm.rank, records, comm.size)
    noisy, norm = with_noise([np.full((3, 100), 2.0) for _ in own], own, 0.25, 7, comm)
    expected = 2 + 0.5 * np.array([np.random.default_rng([7, n]).standard_normal((3, 100)) for n in range(records)])
    np.testing.assert_allclose(np.reshape(noisy, (-1, 3, 100)), expected[own.start : own.stop])
    # Also where ranks have no record.
    assert norm == pytest.approx(np.linalg.norm(expected - 2))
