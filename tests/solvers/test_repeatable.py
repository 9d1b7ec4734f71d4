"""``COLLOPS_DETERMINISTIC=1``: the same bits in every run."""

from __future__ import annotations

import numpy as np
import pytest

from collops.backend import repeatable
from collops.errors import InputError
from collops.exchange import StarForest
from collops.solvers import cgls, fista, lsqr

from .problems import problem


@pytest.mark.parametrize(("text", "asked"), [(None, False), ("", False), ("0", False), ("1", True), (" 1 ", True)])
def test_what_asks_for_it(monkeypatch, text, asked):
    if text is None:
        monkeypatch.delenv("COLLOPS_DETERMINISTIC", raising=False)
    else:
        monkeypatch.setenv("COLLOPS_DETERMINISTIC", text)
    assert repeatable() is asked


def test_anything_else_is_refused(monkeypatch):
    monkeypatch.setenv("COLLOPS_DETERMINISTIC", "yes")
    with pytest.raises(InputError, match="'yes': give 1"):
        repeatable()


def test_star_forests_obey(comm, monkeypatch):
    monkeypatch.setenv("COLLOPS_DETERMINISTIC", "1")
    forest = StarForest(comm, 1, None, np.zeros(2, np.int64), np.zeros(2, np.int64), deterministic=False)
    assert forest.deterministic


@pytest.mark.parametrize("solve", [cgls, lsqr, fista])
def test_solvers_repeat_bit_by_bit(comm, monkeypatch, solve):
    monkeypatch.setenv("COLLOPS_DETERMINISTIC", "1")
    op, _, _, y = problem("vstack", comm, "f4")
    first, second = (solve(op, y, niter=8).x.gather() for _ in range(2))
    np.testing.assert_array_equal(first, second)
