"""The model of an iteration: what it was made of is found again, and messages cost what they must."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from collops.errors import InputError
from collops_bench import model as module
from collops_bench.model import Line, Machine, Model, Network, Work

pytestmark = pytest.mark.serial

MACHINE = Machine(
    copies=[(1e6, 2e-6), (1e8, 5e-5), (1e9, 5e-4)],
    allreduces={2: Line(8e-6, 4e-12), 4: Line(1.2e-5, 6e-12)},
    exchanges={2: Line(9e-6, 3e-12)},
    network=Network(ranks=8, adapters=8, latency=5e-6, bandwidth=5e10),
)


def works() -> list[Work]:
    return [
        Work(ranks, operations, nbytes, [("allreduce", 2, 8.0), ("exchange", 1, 1e6)] if ranks > 1 else [])
        for ranks in (1, 2, 4)
        for operations, nbytes in ((1e6, 1e7), (3e8, 2e6), (1e9, 4e8), (0.0, 1e5))
    ]


def test_coefficients_are_found_again() -> None:
    made = Model(overhead=4e-6, operation=2e-13, memory=1.5, messages=0.7)
    found = Model.fit(MACHINE, [(work, made.seconds(MACHINE, work)) for work in works()])
    assert found.overhead == pytest.approx(4e-6, rel=1e-6)
    assert found.operation == pytest.approx(2e-13, rel=1e-6)
    assert found.memory == pytest.approx(1.5, rel=1e-6)
    assert found.messages == pytest.approx(0.7, rel=1e-6)
    without = Model.fit(MACHINE, [(work, made.seconds(MACHINE, work)) for work in works()], without=("operation",))
    assert without.operation == 0.0


def test_no_coefficient_is_negative_and_errors_are_relative() -> None:
    rng = np.random.default_rng(3)
    runs = [(work, float(1e-6 * (1 + rng.random()))) for work in works()]
    found = Model.fit(MACHINE, runs)
    assert min(found.overhead, found.operation, found.memory, found.messages) >= 0
    # Of a second and a microsecond with one overhead neither drowns the other: the fit is near the small one.
    two = Model.fit(MACHINE, [(Work(1, 0.0, 0.0), 1.0), (Work(1, 0.0, 0.0), 1e-6)])
    assert two.overhead == pytest.approx(1e-6, rel=1e-3)


def test_copies_between_and_beyond_those_that_were_measured() -> None:
    assert MACHINE.copy_seconds(0) == 0.0
    assert MACHINE.copy_seconds(10) == pytest.approx(2e-6)
    assert MACHINE.copy_seconds(1e6) == pytest.approx(2e-6)
    assert 2e-6 < MACHINE.copy_seconds(1e7) < 5e-5
    assert MACHINE.copy_seconds(4e9) == pytest.approx(2e-3)


def test_messages_on_a_node() -> None:
    assert MACHINE.message_seconds("allreduce", 1e6, 1) == 0.0
    assert MACHINE.message_seconds("allreduce", 1e6, 2) == pytest.approx(1.2e-5)
    assert MACHINE.message_seconds("allreduce", 1e6, 3) == pytest.approx(1.8e-5)
    # Eight ranks: three steps instead of two, and 2 * 7 / 8 instead of 2 * 3 / 4 of the message.
    assert MACHINE.message_seconds("allreduce", 1e6, 8) == pytest.approx(1.8e-5 + 7e-6)
    assert MACHINE.message_seconds("exchange", 1e6, 8) == pytest.approx(1.2e-5)


def test_messages_over_hosts() -> None:
    within = MACHINE.message_seconds("allreduce", 1e6, 8)
    # 64 ranks are 8 hosts: three steps up and down, and what each host sends goes over eight adapters.
    wanted = within + 6 * 5e-6 + 2 * 7 / 8 * 1e6 / 4e11
    assert MACHINE.message_seconds("allreduce", 1e6, 64) == pytest.approx(wanted)
    assert MACHINE.message_seconds("exchange", 1e6, 64) == pytest.approx(9e-6 + 5e-6 + 2e-5)
    times = [MACHINE.message_seconds("allreduce", 8, 1 << shift) for shift in range(11)]
    assert times == sorted(times)
    alone = Machine(MACHINE.copies, MACHINE.allreduces, MACHINE.exchanges)
    assert alone.message_seconds("allreduce", 0, 16) == pytest.approx(2 * 1.2e-5)


def test_adapters_are_shared_by_the_ranks_of_a_host() -> None:
    within = {4: Line(latency=1e-5, per_byte=1e-12)}
    machine = Machine([(1.0, 1.0)], within, within, Network(ranks=4, adapters=2, latency=3e-6, bandwidth=2e10))
    # 8 MB on 16 ranks, four hosts: 10 + 8 us within a host; four steps of 3 us; 12 MB over 40 GB/s are 300 us.
    assert machine.message_seconds("allreduce", 8e6, 16) == pytest.approx(330e-6)
    # One message leaves each host: 10 us, 3 us more, and 8 MB over 20 GB/s are 400 us.
    assert machine.message_seconds("exchange", 8e6, 16) == pytest.approx(413e-6)
    # Within a host there is no adapter: 10 us and 8 us.
    assert machine.message_seconds("allreduce", 8e6, 4) == pytest.approx(18e-6)
    assert machine.message_seconds("exchange", 8e6, 4) == pytest.approx(18e-6)


@pytest.mark.parametrize("change", [{"ranks": 0}, {"adapters": -1}, {"latency": 0.0}, {"bandwidth": float("nan")}])
def test_a_network_needs_positive_numbers(change) -> None:
    with pytest.raises(InputError, match=f"the {next(iter(change))} of a network"):
        Network(**({"ranks": 8, "adapters": 8, "latency": 5e-6, "bandwidth": 5e10} | change))


def test_a_line_through_points() -> None:
    line = Line.fit([(8, 1e-5), (1e5, 1.05e-5), (1e8, 5.1e-4)])
    assert line.seconds(1e8) == pytest.approx(5.1e-4, rel=0.01)
    assert line.seconds(8) == pytest.approx(1e-5, rel=0.03)


def test_what_is_missing_is_said() -> None:
    with pytest.raises(InputError, match="needs measured copies"):
        Machine([], {}, {})
    with pytest.raises(InputError, match="needs measured messages of kind 'exchange'"):
        Machine([(1.0, 1.0)], {2: Line(1, 1)}, {}).message_seconds("exchange", 8, 2)
    with pytest.raises(InputError, match="needs runs"):
        Model.fit(MACHINE, [])
    with pytest.raises(InputError, match="needs measured messages"):
        Line.fit([])


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="from small to large"):
        Machine([(1e9, 1e-3), (1e6, 1e-6)], {}, {})
    with pytest.raises(InputError, match="must be allreduce or exchange, not 'bcast'"):
        MACHINE.message_seconds("bcast", 8, 2)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="positive numbers"):
            Model.fit(MACHINE, [(Work(1, 0.0, 1e6), seconds)])


def test_the_examples_of_the_module() -> None:
    found = doctest.testmod(module)
    assert (found.failed, found.attempted > 10) == (0, True)
