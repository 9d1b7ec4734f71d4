"""Which numbers of ranks run a test, so that `make test` takes half an hour on two cores: all run on some number."""

from __future__ import annotations

import os
import zlib

import pytest

import collops

# Compiling takes minutes where more ranks than cores do it; there only the primitives themselves are compiled.
MAX_RANKS_WITH_JAX = int(os.environ.get("COLLOPS_JAX_RANKS", max(2, os.cpu_count() or 1)))
MAX_CASES_ON_ALL_RANKS = 2
JAX_ON_ALL_RANKS = ("tests/jax/test_primitives.py::test_primitive[",)
if collops.world().size == 4:  # a device each
    JAX_ON_ALL_RANKS += ("tests/jax/test_devices.py::",)

# Solvers send sums only, and steps of applications send nothing that depends on the number of ranks. They take longest
# where more ranks than cores do them; what divides its ranks into groups runs on four ranks, and not on three.
IN_FULL = ("tests/bench/", "tests/soak/")  # on up to two ranks; they run what other tests run on any number
# Loops that count what hundreds of steps use; other tests of their file run on three ranks.
LOOPS = (
    "tests/comm/test_reclaim.py::test_communicators_of_freed_duplicates_are_freed",
    "tests/comm/test_reclaim.py::test_forests_that_are_dropped_use_up_nothing",
    "tests/comm/test_reclaim.py::test_matrices_of_a_time_stepping_loop_use_up_nothing",
)
ONLY_TO_TWO_RANKS = (*IN_FULL, *LOOPS, "tests/solvers/test_proximal_methods.py", "tests/solvers/test_true_residuals.py")
COMPILED_SOLVERS = ("tests/solvers/test_jax",)
# Rooms whose tests with one or two cases two numbers of ranks share.
TAKEN_IN_TURN = {
    (2, 3): ("tests/seismic/", "tests/solvers/"),
    (3, 4): (
        *("tests/apps/", "tests/array/", "tests/compat/", "tests/exchange/", "tests/jacobi/", "tests/operators/"),
        "tests/preconditioners/",
    ),
}
SHARED = (
    *("tests/array/", "tests/compat/", "tests/jax/", "tests/operators/", "tests/preconditioners/"),
    *("tests/seismic/", "tests/solvers/"),
)
# Above the core and in compiled programs one rank differs from two in its messages alone, which the core's rooms test.
ABOVE_THE_CORE = ("tests/bench/", "tests/jax/", "tests/seismic/")
ONLY_TO_THREE_RANKS = (
    "tests/apps/test_outputs.py",
    "tests/comm/test_reclaim.py",
    "tests/compat/test_side_by_side",
    "tests/preconditioners/test_device_setup.py",  # whose kernels compiled for the host take four times as long on four
    "tests/seismic/",
    "tests/solvers/",
    "tests/uncertainty/test_posterior.py",
)
NOT_ON_THREE_RANKS = (
    "tests/seismic/test_kirchhoff_split.py",
    "tests/seismic/test_lsm_job.py",
    "tests/solvers/test_checkpoint.py",
    "tests/solvers/test_counts.py",
)


def numbers_by_name(name: str) -> list[int]:
    """Return the numbers of ranks, up to 4, that can run the test of this name, or some test of this file."""
    last = 2 if name.startswith(ONLY_TO_TWO_RANKS) else 3 if name.startswith(ONLY_TO_THREE_RANKS) else 4
    numbers = [1, 2, 4] if name.startswith(NOT_ON_THREE_RANKS) else list(range(1, last + 1))
    on_all_ranks = any(name.startswith(test) or test.startswith(f"{name}::") for test in JAX_ON_ALL_RANKS)
    if "jax" in name and not on_all_ranks:
        numbers = [number for number in numbers if number <= MAX_RANKS_WITH_JAX]
    return numbers


def numbers_that_can(item: pytest.Item) -> tuple[int, ...]:
    """Return the numbers of ranks, up to 4, that can run a test."""
    needed = item.get_closest_marker("needs_ranks")
    if item.get_closest_marker("serial"):
        return (1,)
    return tuple(number for number in numbers_by_name(item.nodeid) if needed is None or number >= needed.args[0])


def numbers_of_ranks(name: str, position: int, count: int, able: tuple[int, ...]) -> set[int]:
    """Return the numbers of ranks on which `make test` runs a case of a test, one of `count`, if it runs 1, 2, 3 and 4.

    Of a test with more than two cases 2, 3 and 4 ranks run a third each. Of tests with one or two cases, 2 ranks run
    one half and 3 ranks the other, or so do 3 and 4 ranks (`TAKEN_IN_TURN`). One rank runs all, or in some rooms a
    third, or what no other number runs. Compiled solvers are shared like tests with more cases: each rank compiles them
    for itself, and the first case of each test runs on two ranks.
    """
    several, third = [number for number in able if number > 1], position % 3
    chosen, alone = set(several), True
    many = count > MAX_CASES_ON_ALL_RANKS or name.startswith(COMPILED_SOLVERS)
    if many and not name.startswith(IN_FULL):
        if 1 not in able:
            third = position % len(several)
        chosen = set(several[third : third + 1])
        alone = not name.startswith(SHARED) or not chosen or (third == 0 and len(several) == 3)
    elif not many:
        for pair, rooms in TAKEN_IN_TURN.items():
            if name.startswith(rooms) and chosen.issuperset(pair):
                chosen.discard(pair[zlib.crc32(name.encode()) % 2])
        alone = 2 not in chosen or not name.startswith(ABOVE_THE_CORE)
    return chosen | {1} if alone and 1 in able else chosen
