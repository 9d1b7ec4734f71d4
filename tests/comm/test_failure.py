"""The failure protocol without MPI: who raises what, which messages are sent, and that no call is paired wrongly."""

from __future__ import annotations

import random
import sys
import weakref

import pytest

from collops.comm import failure
from collops.comm.agreement import name_hosts, name_ranks, table
from collops.comm.failure import Cause, Failures
from collops.errors import CallMismatch, CommunicationError, CommunicationTimeout, LayoutError, TransportError
from tests.comm.simulated import Request, TransportBroken, World

ABSENT = "not in a collops call, or its process has exited"

pytestmark = pytest.mark.serial


@pytest.fixture
def world(monkeypatch):
    """Return a function that makes a world of some ranks."""
    return lambda size, timeout=5.0, hosts=(): World(monkeypatch, size, timeout, hosts)


def errors(ranks, *expected):
    """Check that each rank's program raised an error of the class, with the text, that is expected of it."""
    for rank, (kind, text) in zip(ranks.ranks, expected, strict=True):
        assert type(rank.error) is kind and text in str(rank.error), (rank.rank, rank.error)


def kinds(world):
    """Return senders and kinds of all messages."""
    return [(rank, message[1]) for rank, message in world.sent]


def both(first, second):
    """Return a program that runs another one after an error of the first."""

    def program(rank):
        with pytest.raises(LayoutError, match="bad"):
            first(rank)
        second(rank)

    return program


def reject(rank):
    rank.reject("work")


def call(rank):
    rank.call("work")


def test_nothing_is_sent_while_nothing_fails(world):
    def program(rank):
        for number in range(5):
            rank.sleep(0.1 * rank.rank)
            rank.call(f"call {number}")

    ranks = world(3).run(program, program, program)
    assert [rank.error for rank in ranks.ranks] == [None] * 3
    assert ranks.sent == [] and [rank.failures.number for rank in ranks.ranks] == [5] * 3


def test_a_rank_rejects_before_others_begin(world):
    """They learn of it in the call, since they had no reason to look before it."""

    def late(rank):
        rank.sleep(1)
        rank.call("work")

    ranks = world(3).run(reject, late, late)
    errors(ranks, *[(LayoutError, "bad work")] * 3)
    assert str(ranks.ranks[1].error) == "rank 0: bad work"
    assert sorted(kinds(ranks)) == [(rank, "CallReport") for rank in range(3)]


def test_a_rejection_that_is_known_is_raised_before_the_call_begins(world):
    """Also when two calls are in between."""

    def ahead(rank):
        rank.call("first", root=0)
        rank.call("second", root=0)
        rank.reject("work")

    def behind(rank):
        rank.failures.wait(Request(lambda: world.now > 0.5), "a message", (0,))  # in which it receives the rejection
        rank.call("first", root=0)
        rank.call("second", root=0)
        rank.call("work")

    world = world(3)
    world.run(ahead, behind, behind)
    errors(world, *[(LayoutError, "bad work")] * 3)
    assert not [posted for posted in world.posted.values() if "work" in posted.values()]


def test_a_wait_that_is_not_that_of_the_latest_call(world):
    """Rank 0 has done its part in the call that rank 1 rejects, and waits for an earlier one: it cannot leave it."""

    def ahead(rank):
        finish = rank.start("work")
        rank.call("second", root=0)
        finish()

    def rejecting(rank):
        rank.start("work")
        rank.sleep(0.5)
        rank.reject("second")

    def late(rank):
        rank.sleep(2)
        rank.start("work")
        rank.call("second", root=0)

    ranks = world(3).run(ahead, rejecting, late)
    error = ranks.ranks[0].error
    assert type(error) is CommunicationError and "rank 1 raised LayoutError" in str(error)
    assert (0, "CallReport") not in kinds(ranks), "it says that it left a call that it has made"
    assert ranks.mispaired == []


def test_a_report_that_arrives_before_the_rejection(world):
    """Messages of different ranks may overtake each other."""

    def began(rank):
        rank.sleep(0.1)
        rank.failures.channel.send([0, "CallReport", 1])

    def late(rank):
        rank.sleep(1)
        rank.reject("work")

    errors(world(3).run(call, began, late), *[(LayoutError, "bad work"), (type(None), ""), (LayoutError, "bad work")])


def test_a_rank_rejects_while_others_wait_and_all_continue(world):
    def late(rank):
        rank.sleep(1)
        rank.reject("work")

    def then(rank):
        for number in range(3):
            rank.call(f"call {number}")

    ranks = world(3).run(both(call, then), both(call, then), both(late, then))
    assert [rank.error for rank in ranks.ranks] == [None] * 3
    assert ranks.mispaired == []
    for rank in ranks.ranks:
        assert rank.transport == 1, "the transport that has a half begun call is used again"
        assert (rank.failures.attention, rank.failures.failure, rank.failures.number) == (False, "", 4)
    assert len(ranks.sent) == 3, "messages after the rejection was settled"


def test_all_ranks_reject_and_keep_their_transports(world):
    def then(rank):
        rank.call("next")

    ranks = world(2).run(both(reject, then), both(reject, then))
    assert [(rank.error, rank.transport) for rank in ranks.ranks] == [(None, 0)] * 2


def test_two_ranks_reject_the_same_call(world):
    def late(rank):
        rank.sleep(1)
        rank.reject("work")

    def then(rank):
        rank.call("next")

    ranks = world(3).run(both(reject, then), both(call, then), both(late, then))
    assert [rank.error for rank in ranks.ranks] == [None] * 3
    assert [rank.transport for rank in ranks.ranks] == [1] * 3
    assert ranks.mispaired == []


def test_one_rejection_after_another(world):
    """The first rank rejects two calls before it waits for anybody."""

    def twice(rank):
        for name in ("first", "second"):
            with pytest.raises(LayoutError):
                rank.reject(name)
        rank.call("third")

    def once(rank):
        for name in ("first", "second"):
            with pytest.raises(LayoutError, match=f"rank 0: bad {name}"):
                rank.call(name)
        rank.call("third")

    ranks = world(3).run(twice, once, once)
    assert [rank.error for rank in ranks.ranks] == [None] * 3
    assert ranks.mispaired == []


def test_a_rank_that_completed_the_rejected_call_closes_the_communicator(world):
    """The root of a broadcast waits for nobody. All raise, and say who rejected what."""

    def root(rank):
        rank.call("work", root=0)
        rank.call("next")

    ranks = world(2).run(root, both(reject, lambda rank: rank.call("next")))
    errors(ranks, *[(CommunicationError, "cannot continue because rank 1 raised LayoutError in work at")] * 2)
    for rank in ranks.ranks:
        with pytest.raises(CommunicationError, match="can no longer be used: CommunicationError: "):
            rank.failures.attend()
    assert ranks.mispaired == []


def test_a_rejection_of_a_completed_call_is_no_error_of_a_later_wait(world):
    """The last collective call is the one that was rejected, but this rank has left it."""

    def root(rank):
        rank.call("work", root=0)
        rank.failures.wait(Request(bool), "a message", (1,))

    ranks = world(2).run(root, both(reject, lambda rank: rank.call("next")))
    errors(ranks, *[(CommunicationError, "cannot continue because rank 1 raised LayoutError in work at")] * 2)


def test_a_rejection_with_transports_that_cannot_be_replaced(world):
    def program(rank):
        rank.failures.renew = None
        rank.call("work")

    ranks = world(2).run(both(reject, lambda rank: rank.call("next")), program)
    errors(ranks, *[(CommunicationError, "cannot continue because rank 0 raised LayoutError in work")] * 2)


def test_a_rejection_where_calls_are_checked_is_a_mismatch_after_which_all_continue(world):
    def checked(rank):
        if rank.failures.attention:
            rank.failures.attend()
        rank.failures.number += 1
        rank.failures.until(bool, "the agreement on a call")  # before anything is posted

    def program(rank):
        rank.failures.checked, rank.failures.renew = True, None
        with pytest.raises(CallMismatch) as caught:
            checked(rank)
        assert caught.value.on_all_ranks
        rank.sleep(0.2 * rank.rank)
        rank.call("next")

    def rejecting(rank):
        with pytest.raises(LayoutError):
            rank.reject("work")
        program(rank)

    ranks = world(3).run(program, rejecting, program)
    assert [rank.error for rank in ranks.ranks] == [None] * 3
    assert [rank.failures.number for rank in ranks.ranks] == [1] * 3


@pytest.mark.parametrize(
    "error", [CommunicationError("broken"), CommunicationTimeout("late"), LayoutError("of all ranks")]
)
def test_errors_that_are_no_rejections_are_not_reported(world, error):
    ranks = world(2)
    error.on_all_ranks = type(error) is LayoutError
    ranks.ranks[0].failures.reject("work", error)
    assert ranks.sent == [] and ranks.ranks[0].failures.number == 0
    ranks.ranks[0].failures.reject("work", TransportError("not there"))
    assert len(ranks.sent) == 1


def test_after_a_mismatch_ranks_continue_and_late_messages_are_dropped(world):
    """Rank 1 leaves the incident last; messages of the next one reach it early, and are kept until then."""

    def finding(rank):
        rank.sleep(0.1)
        with pytest.raises(CallMismatch):
            rank.failures.abort(Cause.MISMATCH, "one call", "")
        rank.reject("work")

    def waiting(rank):
        with pytest.raises(CallMismatch):
            rank.call("another call")
        rank.call("work")

    world = world(3)
    world.run(finding, waiting, waiting)
    errors(world, *[(LayoutError, "bad work")] * 3)
    assert [rank.failures.incident for rank in world.ranks] == [1] * 3
    # A notice and a report of the first incident that arrive now.
    world.inboxes[0].append((1, [0, "FailureNotice", "timeout", "a call", ""]))
    world.inboxes[0].append((1, [0, "CallReport", 1, "a call", "LayoutError", "late"]))
    failures = world.ranks[0].failures
    number = failures.number
    world.run(*[lambda rank: rank.call("next")] * 3)
    assert [rank.error for rank in world.ranks] == [None] * 3
    assert (failures.number, failures.attention) == (number + 1, False)


def test_a_mismatch_that_a_rank_does_not_answer_closes_the_communicator(world):
    def finding(rank):
        rank.failures.abort(Cause.MISMATCH, "one call", "")

    ranks = world(3).run(finding, call, lambda rank: rank.sleep(20))
    for rank in ranks.ranks[:2]:
        assert type(rank.error) is CallMismatch and not rank.error.on_all_ranks
        assert rank.failures.attention and rank.failures.failure.startswith("CallMismatch: ")


def test_messages_of_a_later_incident_are_kept(world):
    ranks = world(2)
    failures = ranks.ranks[0].failures
    ranks.inboxes[0].append((1, [1, "CallReport", 1, "work", "LayoutError", "early"]))
    failures.receive()
    assert not failures.attention
    failures.incident = 1
    failures.receive()
    assert failures.attention


def test_the_deadline_names_the_missing_rank_and_what_each_other_waits_for(world):
    def missing(rank):
        rank.sleep(30)
        rank.failures.wait(Request(bool), "work")

    ranks = world(3)
    ranks.ranks[1].failures.timeout = None
    ranks.run(call, lambda rank: rank.call("other work"), missing)
    errors(
        ranks,
        (CommunicationTimeout, "rank 0 waited 5.0 s; the deadline is 5 s (COLLOPS_TIMEOUT); rank 2 of 3 never arrived"),
        (CommunicationTimeout, "another rank aborted its wait; rank 2 of 3 never arrived"),
        (CommunicationTimeout, "another rank aborted its wait; all 3 ranks aborted"),
    )
    first = str(ranks.ranks[0].error).splitlines()
    assert first[0].startswith("work at ")
    assert [line.split(" at ")[0] for line in first[1:]] == [
        "  rank 0: work",
        "  rank 1: other work",
        f"  rank 2: {ABSENT}",
    ]
    for rank in ranks.ranks:
        assert rank.failures.failure.startswith("CommunicationTimeout: ") and rank.failures.attention


@pytest.mark.parametrize(
    ("hosts", "missing", "lines"),
    [
        (
            ["nodea", "nodea", "nodeb", "nodeb"],
            "ranks 2-3 of 4 on nodeb never arrived:",
            ["  ranks 0-1 on nodea: work", f"  ranks 2-3 on nodeb: {ABSENT}"],
        ),
        (
            ["nodea", "nodeb"] * 2,
            "ranks 2-3 of 4 on nodea, nodeb never arrived:",
            ["  ranks 0-1 on nodea, nodeb: work", f"  ranks 2-3 on nodea, nodeb: {ABSENT}"],
        ),
        ((), "ranks 2-3 of 4 never arrived:", ["  ranks 0-1: work", f"  ranks 2-3: {ABSENT}"]),
    ],
)
def test_the_hosts_of_missing_ranks_are_named(world, hosts, missing, lines):
    """No message more is sent for it."""

    def gone(rank):
        pass

    ranks = world(4, hosts=hosts).run(call, call, gone, gone)
    errors(ranks, *[(CommunicationTimeout, missing)] * 2, *[(type(None), "")] * 2)
    for rank in ranks.ranks[:2]:
        assert [line.split(" at ")[0] for line in str(rank.error).splitlines()[1:]] == lines
    assert kinds(ranks) == [(0, "FailureNotice"), (1, "FailureNotice")]


def test_the_host_of_a_program_that_has_ended_is_named(world):
    def ending(rank):
        rank.failures.end()
        while rank.failures.incident == 0:
            rank.sleep(0.1)
            rank.failures.answer()

    ranks = world(2, None, ["nodea", "nodeb"]).run(call, ending)
    assert "rank 1 of 2 on nodeb ended" in str(ranks.ranks[0].error)


def test_a_few_hosts_are_named_and_the_others_counted():
    hosts = [f"node{rank // 2}" for rank in range(12)]
    assert name_hosts([0, 1, 5], hosts) == " on node0, node2"
    assert name_hosts(range(1, 6), hosts) == " on node0, node1, node2"
    assert name_hosts(range(12), hosts) == " on node0, node1, node2 and 3 more hosts"
    assert name_hosts(range(7), hosts) == " on node0, node1, node2 and 1 more host"
    assert name_hosts([0, 1, 5], ()) == ""


def test_ranks_are_named_in_runs_and_lines_are_those_of_all_ranks():
    assert [name_ranks(each) for each in ([3], [0, 2], [2, 3, 4, 7])] == ["rank 3", "ranks 0, 2", "ranks 2-4, 7"]
    assert table({1: "gone", 3: "gone"}, 5, "here") == "  ranks 0, 2, 4: here\n  ranks 1, 3: gone"


def test_a_rank_without_a_deadline_waits(world):
    def late(rank):
        rank.sleep(100)
        rank.call("work")

    ranks = world(2, None).run(call, late)
    assert [rank.error for rank in ranks.ranks] == [None] * 2


def test_the_end_of_a_program_that_others_need(world):
    """They do not wait for their deadline, and the ended rank answers."""

    def ending(rank):
        rank.call("first")
        rank.failures.end()
        while rank.failures.incident == 0:
            rank.sleep(0.1)
            rank.failures.answer()

    def program(rank):
        rank.call("first")
        rank.call("second")

    ranks = world(3, None).run(program, ending, program)
    waiting = ranks.ranks[0], ranks.ranks[2]
    for rank in waiting:
        assert type(rank.error) is CommunicationError
        assert "rank 1 of 3 ended:\n" in str(rank.error)
        assert "\n  rank 1: the end of the program" in str(rank.error)
    assert any("s; the program of some ranks has ended; " in str(rank.error) for rank in waiting)
    assert ranks.now < 5


def test_an_ended_rank_that_did_its_part_is_not_missed(world):
    """In a call that needs the last rank alone, the first has completed its part."""

    def ended(rank):
        rank.call("work", root=0)
        rank.failures.end()

    def waiting(rank):
        rank.call("work", root=2)

    def late(rank):
        rank.sleep(5)
        rank.call("work", root=2)

    ranks = world(3, None).run(ended, waiting, late)
    assert [rank.error for rank in ranks.ranks] == [None] * 3


def test_what_a_rank_sent_before_it_ended_is_awaited(world):
    def waiting(rank):
        rank.failures.wait(Request(lambda: world.now > 0.8), "a message", (1,))

    world = world(2, None)
    world.run(waiting, lambda rank: rank.failures.end())
    assert world.ranks[0].error is None


def test_a_rank_that_ends_within_a_call_has_not_done_its_part(world):
    """As by ``sys.exit`` in a handler of signals."""

    def exiting(rank):
        rank.call("first", root=1)
        rank.failures.number += 1
        with pytest.raises(SystemExit):
            rank.failures.wait(Request(sys.exit), "work")
        rank.failures.end()
        while rank.failures.incident == 0:
            rank.sleep(0.1)
            rank.failures.answer()

    def program(rank):
        rank.call("first", root=1)
        rank.call("work")

    ranks = world(2, None).run(program, exiting)
    assert "rank 1 of 2 ended" in str(ranks.ranks[0].error)
    assert [message for _, message in ranks.sent if message[1] == "ProgramEnd"] == [[0, "ProgramEnd", 1, 0]]


def test_a_needed_peer_has_ended(world):
    ranks = world(2, None).run(
        lambda rank: rank.failures.wait_all([Request(bool)], "a message", [1]),
        lambda rank: rank.failures.end(),
    )
    assert type(ranks.ranks[0].error) is CommunicationTimeout  # nobody answers, not even that it has ended
    assert "the program of some ranks has ended; rank 1 of 2 never arrived" in str(ranks.ranks[0].error)
    assert ranks.now < 20


def test_messages_that_are_left_behind_close_the_communicator(world):
    ranks = world(2)
    ranks.ranks[0].failures.leave_behind([Request(bool)], "a group was left")
    for enter in (ranks.ranks[0].failures.look, ranks.ranks[0].failures.attend):
        with pytest.raises(CommunicationError, match=r"^this communicator can no longer be used: a group was left$"):
            enter()
    with pytest.raises(CommunicationError):
        call(ranks.ranks[0])


def test_requests_that_are_given_up_stay_alive(world):
    """MPI may still write to their memory."""
    failures = world(2).ranks[0].failures
    requests = [Request(sys.exit) for _ in range(3)]
    kept = [weakref.ref(request) for request in requests]
    with pytest.raises(SystemExit):
        failures.wait(requests[0], "a call")
    with pytest.raises(SystemExit):
        failures.wait_all(requests[1:2], "messages", [1])
    failures.leave_behind(requests[2:], "left")
    del requests
    assert all(request() is not None for request in kept)


def test_devices_are_freed_before_the_error_is_raised(world, monkeypatch):
    freed = []
    monkeypatch.setattr(failure, "_cleanups", [])
    failure.at_abort(lambda: freed.append("device"))
    ranks = world(2).run(call, lambda rank: None)
    assert freed == ["device"] and type(ranks.ranks[0].error) is CommunicationTimeout


def test_a_look_finds_that_another_rank_has_given_up(world):
    def busy(rank):
        rank.sleep(8)
        rank.failures.look("a message")

    ranks = world(2).run(call, busy)
    errors(
        ranks,
        (CommunicationTimeout, "all 2 ranks aborted"),
        (CommunicationTimeout, "a message at"),
    )


def test_errors_of_the_transport_are_shown(world):
    def broken():
        raise TransportBroken("Message truncated")

    with pytest.raises(CommunicationError, match=r"work at .*: MPI reports: Message truncated"):
        world(2).ranks[0].failures.wait(Request(broken), "work")


def test_a_waiting_rank_soon_yields_its_core(world, monkeypatch):
    """The system may have put the rank that it waits for on the same core, and each move would take a whole spin."""
    failures, polls, yields = world(2).ranks[0].failures, [], []
    monkeypatch.setattr(failure, "_YIELDS", 1)
    monkeypatch.setattr(failure.os, "sched_yield", lambda: yields.append(True))
    Failures(failures.channel, 5.0, oversubscribed=False).until(lambda: bool(polls.append(True) or yields), "a wait")
    assert yields and 10 < len(polls) < 1000


def test_an_inspection_ends_a_wait(world):
    def inspect():
        raise CommunicationError("the device has failed")

    ranks = world(1).run(lambda rank: rank.failures.until(bool, "work", inspect=inspect))
    errors(ranks, (CommunicationError, "the device has failed"))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("broadcasts", [False, True], ids=["all wait", "roots complete at once"])
def test_calls_that_some_reject_are_never_paired_with_others(world, seed, broadcasts):
    """Random programs: ranks reject calls, at different speeds. All raise each error, or the communicator closes."""
    chance = random.Random(seed)
    size = chance.choice((2, 3))
    plans = [
        (
            f"call {number}",
            chance.randrange(size) if broadcasts and chance.random() < 0.5 else None,
            {rank for rank in range(size) if chance.random() < 0.25},
            [chance.choice((0, 0, 0.05, 0.3)) for _ in range(size)],
        )
        for number in range(8)
    ]
    outcomes = [[] for _ in range(size)]

    def program(rank):
        for name, root, rejecting, delays in plans:
            rank.sleep(delays[rank.rank])
            try:
                rank.reject(name) if rank.rank in rejecting else rank.call(name, root)
                outcomes[rank.rank].append("done")
            except LayoutError as error:
                outcomes[rank.rank].append(str(error).split(": ")[-1])
            except CommunicationError:
                outcomes[rank.rank].append("closed")
                return
        rank.call("last")

    world = world(size).run(*[program] * size)
    assert world.mispaired == []
    expected = [f"bad {name}" if rejecting else "done" for name, _, rejecting, _ in plans]
    if broadcasts:
        assert all(rank.error is None or isinstance(rank.error, CommunicationError) for rank in world.ranks)
        for found in outcomes:
            assert all(one in (wanted, "done", "closed") for one, wanted in zip(found, expected, strict=False))
        return
    assert [rank.error for rank in world.ranks] == [None] * size
    assert outcomes == [expected] * size
    assert len({rank.transport for rank in world.ranks}) == 1
    assert not any(rank.failures.attention for rank in world.ranks)
