"""How many cores a process has for itself."""

from __future__ import annotations

import pytest

from collops.comm import cores


@pytest.mark.serial
def test_shares(monkeypatch):
    monkeypatch.setattr(cores, "available_cores", lambda: frozenset({0, 1}))
    both = frozenset({0, 1})
    assert cores.share_of_cores([]) == 2
    assert cores.share_of_cores([both]) == 1
    assert cores.share_of_cores([both, both]) == pytest.approx(2 / 3)
    assert cores.share_of_cores([frozenset({0}), frozenset({1})]) == 1
    assert cores.share_of_cores([frozenset({2, 3})] * 5) == 2
    monkeypatch.setattr(cores, "available_cores", lambda: frozenset({3}))
    assert cores.share_of_cores([frozenset({0}), frozenset({1}), frozenset({2})]) == 1  # bound, each to its own
