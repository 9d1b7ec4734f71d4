"""Numbers of ranks share the tests such that each case runs somewhere."""

from __future__ import annotations

import pytest

from tests.sharing import MAX_RANKS_WITH_JAX, numbers_by_name, numbers_of_ranks

pytestmark = pytest.mark.serial


def test_files_have_the_numbers_of_their_tests():
    """Ranks import a file if their number can run any of its tests."""
    for file, test in (
        ("tests/jax/test_primitives.py", "test_primitive[bcast]"),
        ("tests/comm/test_reclaim.py", "test_windows"),
        ("tests/seismic/test_lsm_job.py", "test_any"),
        ("tests/solvers/test_checkpoint.py", "test_any"),
        ("tests/bench/test_work.py", "test_cgls"),
    ):
        assert numbers_by_name(file) == numbers_by_name(f"{file}::{test}")
    assert numbers_by_name("tests/seismic/test_segy.py") == [1, 2, 3]
    assert max(numbers_by_name("tests/jax/test_order.py")) == min(MAX_RANKS_WITH_JAX, 4)


@pytest.mark.parametrize("able", [(1, 2, 3, 4), (1, 2, 3), (1, 2, 4), (1, 2), (2, 3, 4), (2, 3), (4,), (1,)])
@pytest.mark.parametrize("room", ["array", "bench", "comm", "jax", "seismic", "solvers"])
def test_each_case_runs_on_a_number_of_ranks_that_can(room, able):
    for test in "abcdefgh":
        for count in range(1, 8):
            chosen = [numbers_of_ranks(f"tests/{room}/test_{test}", case, count, able) for case in range(count)]
            assert all(numbers and numbers <= set(able) for numbers in chosen)
            if count > len(able):
                assert set().union(*chosen) == set(able)
