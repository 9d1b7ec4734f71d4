"""Wrong programs under COLLOPS_CHECK: every rank gets the error, which shows each rank's call, and can go on."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops import errors
from tests.comm import checks
from tests.launch import run_ranks


def build(comm, level):
    """Return a communicator of the same ranks whose calls are checked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLOPS_CHECK", level)
        return collops.from_mpi4py(comm.control.Dup())


@pytest.fixture(scope="module")
def checked(comm):
    """Checks calls and where they come from."""
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    return build(comm, "1")


@pytest.fixture(scope="module")
def lenient(comm):
    """Checks calls, wherever they come from."""
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    return build(comm, "calls")


def by_rank(comm, first, others):
    """Run one function on the first rank and another one elsewhere."""
    (first if comm.rank == 0 else others)()


def different_order(comm):
    by_rank(comm, lambda: (comm.allreduce(1.0), comm.barrier()), lambda: (comm.barrier(), comm.allreduce(1.0)))


def different_collectives(comm):
    by_rank(comm, lambda: comm.allreduce(np.ones(3)), lambda: comm.bcast(np.ones(3)))


def different_sizes(comm):
    comm.allreduce(np.ones(3 + comm.rank))


def different_dtypes(comm):
    comm.allreduce(np.ones(3, "f4" if comm.rank else "f8"))


def same_width_of_different_dtypes(comm):
    comm.bcast(np.ones(3, "i8" if comm.rank else "f8"))


def different_reductions(comm):
    comm.allreduce(np.ones(3), "sum" if comm.rank else "max")


def different_roots(comm):
    comm.bcast(np.ones(3), root=1 if comm.rank else 0)


def different_roots_of_a_reduction(comm):
    comm.reduce(np.ones(3), root=1 if comm.rank else 0)


def different_roots_of_a_gather(comm):
    comm.gather(np.ones(3), root=min(comm.rank, 1))


def a_gather_and_a_scatter(comm):
    by_rank(comm, lambda: comm.gather(np.ones(3)), lambda: comm.scatter(None, out=np.ones(3)))


def scattered_pieces_of_another_size(comm):
    by_rank(
        comm,
        lambda: comm.scatter(np.ones((comm.size, 4))),
        lambda: comm.scatter(None, out=np.ones(3)),
    )


def different_counts(comm):
    counts = [2] * comm.size
    counts[-1] += comm.rank == 0
    comm.allgatherv(np.ones(counts[comm.rank]), counts)


def counts_that_two_ranks_see_differently(comm):
    sent, taken = [1] * comm.size, [1] * comm.size
    if comm.rank == 0:
        sent[1] = 2
    comm.alltoallv(np.ones(sum(sent)), sent, taken)


def one_more_call(comm):
    if comm.rank == 0:
        comm.barrier()
    comm.allreduce(1.0)


def metadata_beside_data(comm):
    by_rank(comm, lambda: comm.check(None), lambda: comm.allreduce(1.0))


def a_norm_on_one_rank_only(comm):
    x = collops.ones(12, comm=comm)
    if comm.rank == 0:
        x.norm()
    comm.barrier()


def different_arrays(comm):
    x = collops.ones(12, comm=comm, dtype="f4" if comm.rank else "f8")
    x.norm()


def different_operators(comm):
    by_rank(comm, lambda: collops.VStack([np.ones((4, 3))], comm), lambda: collops.BlockDiag([np.ones((4, 3))], comm))


def different_splits(comm):
    by_rank(comm, lambda: comm.split(0), lambda: comm.subgroup(tuple(range(comm.size))))


def exchange_of_other_sizes(comm):
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    width = 3 if comm.rank else 2
    plan = collops.ExchangePlan(comm, [(after, (slice(0, width),))], [(before, (slice(0, 3),))])
    plan(np.ones(5), np.ones(5))


def exchanges_in_another_order(comm):
    peer = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    plans = [collops.ExchangePlan(comm, [(peer[0], (slice(0, 2),))], [(peer[1], (slice(0, 2),))]) for _ in range(2)]
    for number in (0, 1) if comm.rank else (1, 0):
        plans[number](np.ones(2), np.ones(2))


def message_of_another_size(comm):
    if comm.rank == 0:
        comm.send(np.ones(3), 1)
    elif comm.rank == 1:
        comm.recv(np.ones(4), 0)
    comm.barrier()


def message_of_another_dtype(comm):
    if comm.rank == 0:
        comm.send(np.ones(3, "i8"), 1)
    elif comm.rank == 1:
        comm.recv(np.ones(3), 0)
    comm.barrier()


def message_with_another_tag(comm):
    if comm.rank == 0:
        comm.send(np.ones(3), 1, tag=1)
    elif comm.rank == 1:
        comm.recv(np.ones(3), 0, tag=2)
    comm.barrier()


def two_sends_that_wait_for_each_other(comm):
    if comm.rank < 2:
        comm.send(np.ones(3), 1 - comm.rank)
        comm.recv(np.ones(3), 1 - comm.rank)
    comm.barrier()


def message_that_nobody_takes(comm):
    if comm.rank == 0:
        comm.send(np.ones(3), 1)
    comm.barrier()


def message_that_nobody_sends(comm):
    if comm.rank == comm.size - 1:
        comm.recv(np.ones(3), 0)
    comm.barrier()


def one_message_too_few_in_a_group(comm):
    if comm.rank < 2:
        with comm.group():
            comm.send(np.ones(3), 1 - comm.rank)
            comm.recv(np.ones(3), 1 - comm.rank)
            if comm.rank:
                comm.send(np.ones(3), 0)
    comm.barrier()


def ring(comm):
    """Return a forest in which every rank has one root, of which the rank before has a leaf."""
    return collops.StarForest(comm, 1, None, np.array([(comm.rank + 1) % comm.size]), np.zeros(1, int))


def forests_of_different_values(comm):
    forest = ring(comm)
    forest.bcast(np.ones((1, 2 if comm.rank else 3)))


def forests_in_another_order(comm):
    forests = [ring(comm), ring(comm)]
    for forest in forests:
        forest.bcast(np.ones(1))
    for forest in forests if comm.rank else forests[::-1]:
        forest.bcast(np.ones(1))


WRONG = [
    different_order,
    different_collectives,
    different_sizes,
    different_dtypes,
    same_width_of_different_dtypes,
    different_reductions,
    different_roots,
    different_roots_of_a_reduction,
    different_roots_of_a_gather,
    a_gather_and_a_scatter,
    scattered_pieces_of_another_size,
    different_counts,
    counts_that_two_ranks_see_differently,
    one_more_call,
    metadata_beside_data,
    a_norm_on_one_rank_only,
    different_arrays,
    different_operators,
    different_splits,
    exchange_of_other_sizes,
    exchanges_in_another_order,
    message_of_another_size,
    message_of_another_dtype,
    message_with_another_tag,
    two_sends_that_wait_for_each_other,
    message_that_nobody_takes,
    message_that_nobody_sends,
    one_message_too_few_in_a_group,
    forests_of_different_values,
    forests_in_another_order,
]


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_wrong_programs_end_in_the_error_on_every_rank(lenient, program):
    with pytest.raises(errors.CallMismatch) as caught:
        program(lenient)
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) > 1, "all ranks made one call"
    told = " ".join(line.split(":")[0] for line in lines)
    assert set("".join(c if c.isdigit() else " " for c in told).split()) <= {str(r) for r in range(lenient.size)}
    assert all("test_disagreement.py:" in line for line in lines), lines
    assert caught.value.on_all_ranks
    # Nothing has moved, and the ranks go on.
    assert float(lenient.allreduce(1.0)) == lenient.size


@pytest.mark.parametrize(
    ("first", "others"),
    [
        ({"niter": 2}, {"niter": 3}),
        ({"tol": 0.0}, {"tol": 1e-3}),
        ({"callback": print}, {}),
        ({}, {"damp": 0.5, "solver": "lsqr"}),
    ],
)
def test_solvers_agree_on_their_start_without_being_asked(comm, first, others):
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    op = collops.VStack([np.ones((4, 3))], comm)
    y = collops.ones(op.range, comm=comm)
    options = dict(first if comm.rank == 0 else others)
    solve = getattr(collops, options.pop("solver", "cgls"))
    with pytest.raises(errors.InputError, match="a solver's start differs between ranks") as caught:
        solve(op, y, **options)
    assert caught.value.on_all_ranks
    assert len(str(caught.value).splitlines()) == 3
    with collops.profile.count_messages() as sent:
        collops.cgls(op, y, niter=1, tol=0)
    assert sent["agreement"] == 1


def test_solvers_agree_on_functions_and_step_sizes(comm):
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    op, first = collops.VStack([np.ones((4, 3))], comm), comm.rank == 0
    y, x = collops.ones(op.range, comm=comm), collops.ones(op.domain, comm=comm)
    f, g = collops.L2(op, y), collops.L1(0.1)
    last, steps = 2.0 if first else 3.0, [0.1, 0.2 if first else 0.3]
    run = collops.proximal_gradient
    for solve in (
        lambda: collops.ista(op, y, niter=1, alpha=0.1, eps=0.1, threshkind="soft" if first else "hard"),
        lambda: collops.ista(op, y, niter=2, alpha=0.1, eps=0.1, decay=np.array(steps)),
        lambda: collops.primal_dual(collops.L2(), g, op, x, steps, 0.1, niter=2),
        lambda: run(f, collops.L1(last), x, tau=0.1, niter=1),
        lambda: run(f, collops.L1(0.1) if first else collops.L0(0.1), x, tau=0.1, niter=1),
        lambda: run(f, last * collops.L1(0.1).chain(collops.Box(0, 9)), x, tau=0.1, niter=1),
        lambda: run(f, collops.Box(0, last), x, tau=0.1, niter=1, backtracking=True),
    ):
        with pytest.raises(errors.InputError, match="a solver's start differs between ranks") as caught:
            solve()
        assert caught.value.on_all_ranks
    run(f, collops.lift_proximal(Own(comm.rank)), x, tau=0.1, niter=1)  # of each rank's elements


class Own:
    """A function of another package."""

    def __init__(self, number) -> None:
        self.sigma = float(number)

    def prox(self, x, tau):
        return x


def test_the_same_call_from_two_lines(checked, lenient):
    def two_lines(comm):
        if comm.rank == 0:
            return comm.allreduce(1.0)
        return comm.allreduce(1.0)

    assert float(two_lines(lenient)) == lenient.size
    with pytest.raises(errors.CallMismatch) as caught:
        two_lines(checked)
    assert len({line.rsplit(" at ")[1] for line in str(caught.value).splitlines()[1:]}) == 2


@pytest.mark.parametrize("name", ["bool", "float64"])
def test_right_programs_are_let_through(checked, name):
    checks.check_reductions(checked, np, name, "max")
    checks.check_started_reductions(checked, np, name)
    checks.check_movement(checked, np, name)
    checks.check_messages(checked, np, name)
    checks.check_plan(checked, np)
    checks.check_plan_of_several_arrays(checked, np)


def test_right_programs_on_arrays_are_let_through(checked):
    op = collops.VStack([np.eye(4, 3)], checked)
    x = collops.ones(op.domain, comm=checked)
    result = collops.cgls(op, op @ x, niter=5)
    np.testing.assert_allclose(result.x.gather(), 1)
    line = collops.random(11, comm=checked, seed=1)
    assert collops.dottest(collops.FirstDerivative(line.layout, comm=checked))
    assert checked.split(0).size == checked.size
    assert ring(checked).bcast(np.array([checked.rank]))[0] == (checked.rank + 1) % checked.size


def test_a_check_that_does_not_exist(comm, monkeypatch):
    monkeypatch.setenv("COLLOPS_CHECK", "perhaps")
    from collops.comm.checked import check_level

    with pytest.raises(errors.InputError, match="perhaps"):
        check_level()


def test_the_strictest_check_that_a_rank_asks_for_is_every_ranks(comm):
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    assert build(comm, "calls" if comm.rank == comm.size - 1 else "off").calls is not None


def test_nothing_is_checked_by_default(comm):
    assert comm.calls is None


ENDS = """
import sys, collops
comm = collops.world()
comm.barrier()
if comm.rank == 1:
    sys.exit()
comm.allreduce(1.0)
"""
BUSY = """
import os, time
from mpi4py import MPI
import collops
os.environ["COLLOPS_TIMEOUT"] = "4"
MPI.COMM_WORLD.Barrier()
comm = collops.world()
if comm.rank == 1:
    time.sleep(90)
comm.allreduce(1.0)
"""


@pytest.mark.serial
def test_the_end_of_the_program_is_a_call():
    result = run_ranks(3, ENDS, {"COLLOPS_CHECK": "1"})
    assert result.returncode != 0
    assert "rank 1: the end of the program" in result.stderr
    assert "allreduce(sum) of 1 float64 at <string>:7" in result.stderr


@pytest.mark.serial
def test_a_rank_that_makes_no_call_is_missing():
    result = run_ranks(2, BUSY, {"COLLOPS_CHECK": "1"})
    assert result.returncode != 0
    assert "CommunicationTimeout" in result.stderr
    assert "rank 1 of 2 never arrived" in result.stderr
    assert "rank 0: allreduce(sum) of 1 float64 at <string>:10" in result.stderr
