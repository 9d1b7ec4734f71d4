"""Numbers of ranks share the tests such that each case runs somewhere."""

from __future__ import annotations

import pytest

from tests.sharing import numbers_of_ranks

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("able", [(1, 2, 3, 4), (1, 2, 3), (1, 2, 4), (1, 2), (2, 3, 4), (2, 3), (4,), (1,)])
@pytest.mark.parametrize("room", ["array", "bench", "comm", "jax", "seismic", "solvers"])
def test_each_case_runs_on_a_number_of_ranks_that_can(room, able):
    for test in "abcdefgh":
        for count in range(1, 8):
            chosen = [numbers_of_ranks(f"tests/{room}/test_{test}", case, count, able) for case in range(count)]
            assert all(numbers and numbers <= set(able) for numbers in chosen)
            if count > len(able):
                assert set().union(*chosen) == set(able)
