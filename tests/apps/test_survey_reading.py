"""Shots read in parts from Zarr, and the choice of shots to hold out, in cases that the surveys of other tests lack."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from collops.apps.survey import Geometry
from collops.apps.survey.selection import held_out
from collops.apps.survey.zarr import ZarrShots


@pytest.mark.serial
@pytest.mark.parametrize("limit", [1 << 28, 0])
@pytest.mark.parametrize("shots", [[1, 2, 3], [6, 5, 4], [3, 4, 5, 6], [2, 7, 0]])
def test_shots_from_within_a_chunk_are_the_shots_of_the_file(tmp_path, monkeypatch, limit, shots):
    monkeypatch.setattr("collops.apps.survey.zarr._KEPT_BYTES", limit)
    values = np.random.default_rng(0).normal(size=(9, 2, 6)).astype(np.float32)
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    group.create_array("data", data=values, chunks=(4, 2, 6), dimension_names=("shot", "channel", "time"))
    group.create_array("time", data=np.arange(6.0), dimension_names=("time",))
    file = ZarrShots.inspect(tmp_path / "a.zarr")
    for shot in shots:
        np.testing.assert_array_equal(file.read(np.array([2 * shot, 2 * shot + 1])), values[shot])
    both = np.array([2 * shots[0] + 1, 2 * shots[-1]])
    np.testing.assert_array_equal(file.read(both), [values[shots[0], 1], values[shots[-1], 0]])


@pytest.mark.parametrize("longest", [0, 1])
def test_groups_are_strips_across_the_longer_side_and_depths_do_not_count(longest):
    far, near = np.array([0.0, 400.0, 100.0, 300.0, 200.0]), np.array([0.0, 60.0, 120.0, 30.0, 90.0])
    sources = np.stack([*((far, near) if longest == 0 else (near, far)), [0.0, 5000.0, 0.0, 0.0, 9000.0]])
    station = np.zeros((3, 2))
    held = held_out(Geometry(sources, [station] * 5, 50, 0.004), 150.0)
    # Groups of up to 150 m along the longer side: 0 and 100, 200 and 300, 400.
    assert [each.tolist() for each in held] == [[False] * 2, [False] * 2, [False] * 2, [True] * 2, [True] * 2]
