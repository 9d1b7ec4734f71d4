"""Patterns of indices are recognised, and mean the same points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collops.exchange.packing import numpy_moves
from collops.exchange.packing.index import Index
from tests.exchange.test_forest import EXAMPLES

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("points", [np.arange(5) + 3, np.arange(5) * 4 + 1, [7], []])
def test_equal_distances_are_a_slice(points):
    index = Index(points)
    assert index.slice is not None and index.contiguous == (len(points) < 2 or points[1] == points[0] + 1)
    np.testing.assert_array_equal(np.arange(20)[index.slice], points)


@pytest.mark.parametrize("points", [[5, 4, 3], [2, 2], [1, 2, 4], [1, 3, 5, 6]])
def test_other_points_are_no_slice(points):
    assert Index(points).slice is None


@settings(max_examples=EXAMPLES)
@given(st.lists(st.integers(0, 5), max_size=12))
def test_any_index(points):
    index = Index(points)
    assert index.unique == (len(set(points)) == len(points))
    if index.slice is not None:
        np.testing.assert_array_equal(np.arange(6)[index.slice], points)
    seen = {}
    for turn in index.rounds:
        assert len(set(index.points[turn])) == len(turn)
        for position in turn:
            assert seen.get(points[position], -1) < position
            seen[points[position]] = position
    assert seen == {point: max(np.flatnonzero(np.array(points) == point)) for point in points}
    if index.unique:
        source, target = index.ascending(Index(np.arange(len(points)) * 7 % 11))
        given = set(zip(np.arange(len(points)) * 7 % 11, points, strict=True))
        assert set(zip(source.points, target.points, strict=True)) == given
        assert index.slice is not None or (np.diff(target.points) > 0).all()
        kept = [index.ascending(Index.run(len(points)))[1] for _ in range(2)]
        assert kept[0] is kept[1]
    positions, different = index.last_writes(Index.run(len(points)))
    assert dict(zip(different.points.tolist(), positions.points.tolist(), strict=True)) == seen


@pytest.mark.parametrize(
    ("op", "dtype"),  # each one compiles
    [("replace", "float64"), ("replace", "int16"), ("replace", "complex128"), ("sum", "float32"), ("sum", "int64")],
)
def test_many_points(dtype, op):
    rng = np.random.default_rng(0)
    count = 5000
    given, taken = (rng.integers(0, 2, 2 * count).astype(dtype) for _ in range(2))
    given = given if given.dtype.kind in "bi" else (given * rng.standard_normal(2 * count)).astype(dtype)
    irregular = rng.permutation(2 * count)[:count]
    for source in (np.arange(count) + 3, irregular):
        for target in (np.arange(count) + 5, irregular[::-1], rng.integers(0, count // 2, count)):
            want = taken.copy()
            if op == "replace":
                want[target] = given[source]
            else:
                np.add.at(want, target, given[source])
            got = taken.copy()
            numpy_moves.mover(Index(source), Index(target), op, np.dtype(dtype), 1, True)(given, got)
            assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("op", ["replace", "sum"])
def test_few_points_are_compiled_when_they_come_often(monkeypatch, op):
    loops = pytest.importorskip("collops.exchange.packing.numba_moves")
    made, mover = [], loops.mover
    monkeypatch.setattr(loops, "mover", lambda *given: made.append(mover(*given)) or made[-1])
    monkeypatch.setattr(numpy_moves, "_COMPILE_AFTER_MOVES", 3)
    rng = np.random.default_rng(0)
    irregular, run = Index(rng.permutation(20)), Index.run(20)
    repeated = Index(rng.integers(0, 6, 20))
    for source, target in ((irregular, run), (run, irregular), (irregular, repeated), (run, repeated)):
        given, got, want = rng.standard_normal(20), np.zeros(20), np.zeros(20)
        move = numpy_moves.mover(source, target, op, np.dtype("f8"), 1, True)
        for turn in range(5):
            given[...] = rng.standard_normal(20)
            move(given, got)
            if op == "sum":
                np.add.at(want, target.points, given[source.points])
            else:
                want[target.points] = given[source.points]
            assert got.tobytes() == want.tobytes(), turn
    assert len(made) == 4
