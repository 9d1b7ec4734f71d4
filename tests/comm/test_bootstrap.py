"""How ranks without MPI connect while other programs connect to their ports, and what their connections carry."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import numpy as np
import pytest

from collops.comm import bootstrap, mesh
from collops.comm.mesh import Mesh, TcpError
from collops.comm.tcp import Group
from collops.errors import CommunicationError, CommunicationTimeout, InputError, TransportError

pytestmark = pytest.mark.serial

HOST = "127.0.0.1"
GREETING_BYTES = 14 + 32 + 10


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("COLLOPS_SECRET", "a secret of these tests")
    monkeypatch.setenv("COLLOPS_TIMEOUT", "30")


def free_port():
    with socket.create_server((HOST, 0)) as found:
        return found.getsockname()[1]


def connected(port):
    """Connect to a port as soon as somebody listens there."""
    end = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection((HOST, port), 10)
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.01)


def is_closed(connection, seconds):
    """Return whether the other end closes a connection within some time, whatever it says before."""
    connection.settimeout(seconds)
    try:
        while connection.recv(100):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


class Ranks:
    """Ranks that are threads, started one by one."""

    def __init__(self, size):
        self.size = size
        self.port = free_port()
        self._pool = ThreadPoolExecutor(size)
        self._links = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._pool.shutdown()
        for links in self._links:
            for link in links.result().values() if links.exception() is None else ():
                link.close()

    def start(self, rank, size=None):
        links = self._pool.submit(bootstrap.connect_ranks, (HOST, self.port), rank, size or self.size)
        self._links.append(links)
        return links


def check_links(results):
    """Every rank has a connection to every other one, with the right rank at its end."""
    for rank, links in enumerate(results):
        assert sorted(links) == [other for other in range(len(results)) if other != rank]
        for other, link in links.items():
            link.sendall(bytes([rank, other]))
    for rank, links in enumerate(results):
        for other, link in links.items():
            assert bootstrap._read(link, 2, time.monotonic() + 10) == bytes([other, rank])


def test_other_programs_do_not_delay_the_ranks():
    """Many connections that are idle, stop in the middle of the handshake, send garbage, or leave."""
    begin = time.monotonic()
    with Ranks(3) as ranks, ExitStack() as strangers:
        first = ranks.start(0)
        for number in range(300):
            connection = strangers.enter_context(closing(connected(ranks.port)))
            if number % 5 == 1:
                connection.sendall(b"collops tcp 2\n" + bytes(7))
            elif number % 5 == 2:
                connection.sendall(os.urandom(5000))
            elif number % 5 == 3:
                connection.close()
            elif number % 5 == 4:
                connection.sendall(b"collops tcp 2\n" + bytes(42))
        others = [ranks.start(rank) for rank in (1, 2)]
        check_links([links.result(25) for links in (first, *others)])
    assert time.monotonic() - begin < 20


def test_the_number_of_connections_without_proof_is_bounded(monkeypatch):
    """The oldest ones are closed, long before their time."""
    monkeypatch.setattr(bootstrap, "MAX_STRANGERS", 4)
    monkeypatch.setattr(bootstrap, "_STRANGER_SECONDS", 60.0)
    with Ranks(2) as ranks, ExitStack() as strangers:
        first = ranks.start(0)
        idle = [strangers.enter_context(closing(connected(ranks.port))) for _ in range(12)]
        assert all(is_closed(connection, 10) for connection in idle[:7])
        assert not any(is_closed(connection, 0.1) for connection in idle[7:])
        check_links(both(first, ranks.start(1)))
        assert all(is_closed(connection, 10) for connection in idle)  # when all ranks have come


def both(first, second):
    return [first.result(20), second.result(20)]


def test_a_stranger_has_little_time_and_the_ranks_have_all_of_theirs(monkeypatch):
    monkeypatch.setattr(bootstrap, "_STRANGER_SECONDS", 0.3)
    with Ranks(2) as ranks:
        first = ranks.start(0)
        for said in (b"", b"collops tcp 2\n", b"collops tcp 2\n" + bytes(41)):
            with closing(connected(ranks.port)) as connection:
                connection.sendall(said)
                begin = time.monotonic()
                assert is_closed(connection, 10)
                assert 0.1 < time.monotonic() - begin < 5
        assert not first.done()
        check_links(both(first, ranks.start(1)))


def test_a_proof_may_come_in_parts():
    """A connection that is slow, but in time, is accepted: byte by byte through a second program."""
    with Ranks(2) as ranks, socket.create_server((HOST, 0)) as middle:
        first = ranks.start(0)
        there = connected(ranks.port)
        ranks.port = middle.getsockname()[1]
        second = ranks.start(1)
        here, _ = middle.accept()

        def carry(source, target):
            while part := source.recv(1):
                target.sendall(part)

        carriers = [threading.Thread(target=carry, args=ends) for ends in ((here, there), (there, here))]
        for carrier in carriers:
            carrier.start()
        check_links(both(first, second))
        for end in (here, there):
            end.shutdown(socket.SHUT_RDWR)
        for carrier in carriers:
            carrier.join()
        here.close()
        there.close()


def test_strangers_are_counted_when_ranks_are_missing(monkeypatch):
    monkeypatch.setenv("COLLOPS_TIMEOUT", "1")
    monkeypatch.setattr(bootstrap, "_STRANGER_SECONDS", 0.2)
    with Ranks(2) as ranks:
        first = ranks.start(0)
        text = r"rank 1 of 2 did not connect .*; 2 connections did not prove"
        idle = [connected(ranks.port) for _ in range(2)]
        with pytest.raises(CommunicationTimeout, match=text):
            first.result(20)
        for connection in idle:
            connection.close()


def test_a_listener_without_file_descriptors_closes_strangers(monkeypatch):
    accept, failures = socket.socket.accept, []

    def without_descriptors(listener):
        if len(failures) < 3:
            failures.append(listener)
            raise OSError(24, "Too many open files")
        return accept(listener)

    with Ranks(2) as ranks:
        first = ranks.start(0)
        with closing(connected(ranks.port)) as idle:
            assert idle.recv(GREETING_BYTES).startswith(b"collops tcp")
            monkeypatch.setattr(socket.socket, "accept", without_descriptors)
            second = ranks.start(1)
            assert is_closed(idle, 4)
            check_links(both(first, second))
    assert len(failures) == 3


def test_a_long_announcement_of_rank_0_is_refused():
    """Nothing is read or allocated for it."""
    with Ranks(2) as ranks, socket.create_server((HOST, ranks.port)) as listener:
        second = ranks.start(1)
        first = bootstrap._Bootstrap(0, 2, os.environ["COLLOPS_SECRET"].encode())
        connection, *_ = next(first.arrivals(listener, 1))
        connection.sendall(struct.pack("!I", bootstrap.MAX_ADDRESS_BYTES + 1))
        with pytest.raises(CommunicationTimeout, match="rank 1 lost rank 0") as caught:
            second.result(10)
        assert "announced 67108865 bytes" in str(caught.value.__cause__)
        connection.close()


@pytest.mark.parametrize("size", [3, 4])
def test_two_processes_of_one_rank_are_told_apart(monkeypatch, size):
    """Also where a rank is missing, which nobody then waits for until the deadline."""
    monkeypatch.setattr(bootstrap, "_GRACE_SECONDS", 0.5)
    with Ranks(size) as ranks:
        begin = time.monotonic()
        started = [ranks.start(rank) for rank in (0, 1, 1)]
        for links in started:
            with pytest.raises(InputError, match=f"two processes were started as rank 1 of {size}"):
                links.result(20)
        assert time.monotonic() - begin < 15


@pytest.mark.parametrize("number", [0, 3])
def test_a_number_that_no_other_rank_can_have_is_refused(monkeypatch, number):
    monkeypatch.setattr(bootstrap, "_GRACE_SECONDS", 0.5)
    with Ranks(3) as ranks, socket.create_server((HOST, 0)) as listener:
        first = ranks.start(0)
        with closing(connected(ranks.port)) as connection:
            other = bootstrap._Bootstrap(number, 3, os.environ["COLLOPS_SECRET"].encode())
            other.greet(connection, listener, 0)
            with pytest.raises(InputError, match=f"two processes were started as rank {number} of 3"):
                first.result(20)


def test_a_wrong_secret_is_refused_at_both_ends(monkeypatch):
    monkeypatch.setenv("COLLOPS_TIMEOUT", "2")
    with Ranks(2) as ranks:
        first = ranks.start(0)
        connected(ranks.port).close()  # rank 0 has read its secret
        monkeypatch.setenv("COLLOPS_SECRET", "another secret of these tests")
        with pytest.raises(TransportError, match="do not accept each other"):
            ranks.start(1).result(20)
        with pytest.raises(CommunicationTimeout, match="connections did not prove"):
            first.result(20)


def test_sixteen_characters_are_a_secret(monkeypatch):
    monkeypatch.setenv("COLLOPS_SECRET", 15 * "s")
    with pytest.raises(InputError, match="at least 16 secret characters"):
        bootstrap.connect_ranks((HOST, free_port()), 0, 2)
    monkeypatch.setenv("COLLOPS_SECRET", 16 * "s")
    with Ranks(2) as ranks:
        check_links([links.result() for links in (ranks.start(0), ranks.start(1))])


@pytest.fixture
def pair():
    """Two ranks with a connection."""
    with socket.create_server((HOST, 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        ends = here, listener.accept()[0]
    ranks = [Mesh(rank, {1 - rank: end}) for rank, end in enumerate(ends)]
    yield ranks
    for end in ends:
        end.close()


def until(test, *ranks):
    end = time.monotonic() + 20
    while not test():
        assert time.monotonic() < end
        for rank in ranks:
            rank.progress()


def view(values):
    return memoryview(np.ascontiguousarray(values)).cast("B")


def close(rank):
    """End a rank, which waits until the other one has disconnected."""
    thread = threading.Thread(target=rank.close)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_says_goodbye_is_not_lost(pair, number):
    leaving, other = pair[number], pair[1 - number]
    sent = leaving.send(1 - number, 5, 0, view(np.arange(3)))
    closing_rank = close(leaving)
    until(lambda: not other._connections, other)
    closing_rank.join(20)
    assert sent.done and other.lost == set()
    out = np.zeros(3, int)
    assert other.receive(number, 5, 0, view(out)).Test() and out.tolist() == [0, 1, 2]  # also what arrived before


def test_a_rank_that_disconnects_without_goodbye_is_lost(pair):
    first, second = pair
    waiting = second.receive(0, 5, 0, view(np.zeros(1)))
    first._connections[1].close()
    until(lambda: second.lost, second)
    assert second.lost == {0} and not waiting.done
    assert second.send(0, 5, 0, view(np.zeros(1))).Test()  # to nobody


@pytest.mark.parametrize("size", [mesh.MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_a_header_of_a_huge_frame_breaks_the_connection(pair, size):
    _, second = pair
    raw = pair[0]._connections[1]
    raw.send(struct.pack("!QqI?", 5, 0, size, False))
    until(lambda: second.lost, second)
    assert second.lost == {0} and not second.arrived


@pytest.mark.parametrize("posted", [False, True])
def test_long_messages_are_several_frames(pair, monkeypatch, posted):
    """In order with others, of every length around that of a frame; also where the receive is posted first."""
    monkeypatch.setattr(mesh, "MAX_FRAME_BYTES", 5000)
    first, second = pair
    lengths = [0, 1, 4096, 4097, 4999, 5000, 5001, 10_000, 123_456]
    messages = [np.random.default_rng(length).integers(0, 256, length).astype(np.uint8) for length in lengths]
    found = [np.zeros(length + 3, np.uint8) for length in lengths]
    receives = [second.receive(0, 5, 7, view(each)) for each in found] if posted else []
    sends = [first.send(1, 5, 7, view(each)) for each in messages]
    sends.append(first.send(1, 5, 8, view(np.array([9]))))
    if not posted:
        until(lambda: (0, 5, 8) in second.arrived, first, second)
        receives = [second.receive(0, 5, 7, view(each)) for each in found]
    until(lambda: all(request.done for request in (*receives, *sends)), first, second)
    for message, each in zip(messages, found, strict=True):
        np.testing.assert_array_equal(each[: len(message)], message)
        assert not each[len(message) :].any()
    assert second.take(0, 5, 8) == view(np.array([9]))


def test_messages_are_matched_by_rank_context_and_tag(pair):
    first, second = pair
    for number, (context, tag) in enumerate([(5, 0), (5, 1), (6, 0), (5, -1)]):
        first.send(1, context, tag, view(np.array([number])))
    second.send(1, 5, 0, view(np.array([7])))  # to itself
    until(lambda: (0, 5, -1) in second.arrived, second)
    out = np.zeros(1, int)
    for rank, context, tag, expected in ((0, 5, -1, 3), (0, 6, 0, 2), (1, 5, 0, 7), (0, 5, 1, 1), (0, 5, 0, 0)):
        assert second.receive(rank, context, tag, view(out)).Test() and out[0] == expected
    assert not second.arrived and not second.receive(0, 5, 0, view(out)).Test()


def test_a_message_that_is_too_long_is_an_error(pair):
    first, second = pair
    first.send(1, 5, 0, view(np.arange(3)))
    request = second.receive(0, 5, 0, view(np.zeros(1)))
    with pytest.raises(TcpError, match="24 bytes have arrived for 8"):
        until(request.Test, second)


def test_a_send_is_complete_when_its_memory_may_change(pair):
    """Not before: the other rank does not read yet, and no socket holds so much."""
    first, second = pair
    values = np.arange(2_000_000)
    request = first.send(1, 5, 0, view(values))
    assert not request.Test()
    until(lambda: request.done, first, second)
    values[:] = 0
    out = np.zeros_like(values)
    arriving = second.receive(0, 5, 0, view(out))
    until(arriving.Test, second)
    np.testing.assert_array_equal(out, np.arange(2_000_000))


def test_what_a_rank_has_sent_arrives_after_its_end(pair):
    first, second = pair
    request = first.send(1, 5, 0, view(np.arange(2_000_000)))
    assert not request.done
    closing_rank = close(first)
    time.sleep(0.2)  # the other rank does not read yet
    until(lambda: not second._connections, second)
    closing_rank.join(20)
    out = np.zeros(2_000_000, int)
    assert second.receive(0, 5, 0, view(out)).Test() and second.lost == set()
    np.testing.assert_array_equal(out, np.arange(2_000_000))


def test_a_setup_ends_at_its_deadline(pair, monkeypatch):
    monkeypatch.setenv("COLLOPS_TIMEOUT", "0.3")
    with pytest.raises(CommunicationTimeout, match=r"rank 1 of 2 sent nothing within 0.3 s \(COLLOPS_TIMEOUT\)"):
        Group(pair[0], [0, 1], "some ranks").allgather("here")


@pytest.mark.parametrize(("members", "lost"), [([0, 1], 1), ([1, 0], 0)])
def test_a_setup_ends_when_a_rank_is_lost(pair, monkeypatch, members, lost):
    """It is named by its number in the group."""
    monkeypatch.setenv("COLLOPS_TIMEOUT", "15")
    pair[1]._connections[0].close()
    begin = time.monotonic()
    with pytest.raises(CommunicationError, match=f"rank {lost} of 2 ended while ranks were starting"):
        Group(pair[0], members, "some ranks").allgather("here")
    assert time.monotonic() - begin < 10  # long before the deadline


def test_prepared_messages_start_again(pair):
    values, out = np.zeros(3), np.zeros(3)
    first, second = (Group(mesh, [0, 1], "some ranks") for mesh in pair)
    sending, receiving = first.Send_init(values, 1, 4), second.Recv_init(out, 0, 4)
    for turn in range(1, 4):
        values[:] = turn
        sending.start()
        receiving.start()
        until(lambda: sending.Test() and receiving.Test(), *pair)
        np.testing.assert_array_equal(out, values)
