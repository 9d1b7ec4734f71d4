"""The benchmark of star forests, small."""

from __future__ import annotations

import numpy as np
import pytest

from collops.backend import engine
from collops.bench import BENCHMARKS, Options
from collops.bench.registry import Context
from collops.bench.starforest import stencil_rows


def test_every_program_is_right(comm):
    context = Context(comm, engine("numpy"), Options(quick=True, peer=False))
    found = list(BENCHMARKS["starforest"].measure(context))
    cases = [one.case for one in found]
    assert cases[:4] == ["bcast, shift", "reduce, shift", "bcast, random", "reduce, random"]
    assert "scatter sequential to parallel" in cases
    for one in found:
        assert one.checks and all(each.error <= each.tolerance for each in one.checks)
        assert "collops" in one.timings
        assert one.messages is None or set(one.messages) <= {"exchange"}


@pytest.mark.serial
def test_stencil_rows():
    rows = stencil_rows(4, 0, 4).toarray()
    assert rows.shape == (64, 96)
    inner = rows.reshape(4, 4, 4, 6, 4, 4)[1, 1, 2]
    assert inner.sum() == 27
    np.testing.assert_array_equal(np.argwhere(inner).min(axis=0), [1, 0, 1])
