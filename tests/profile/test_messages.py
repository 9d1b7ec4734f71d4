"""Message counters."""

from __future__ import annotations

import numpy as np
import pytest

from collops import profile
from collops.profile import messages
from collops.profile.messages import Message


def test_counts():
    with profile.count_messages() as counted:
        messages.record("allreduce", 1, 8)
        messages.record("exchange", 5, 20)
        messages.record("allreduce", 3, 24)
    assert counted["allreduce"] == 2
    assert counted["exchange"] == 1
    assert counted["metadata"] == 0
    assert counted.total == 3
    assert counted.nbytes == 52
    assert counted.counts() == {"allreduce": 2, "exchange": 1}
    assert counted.records[1] == Message("exchange", 5, 20)
    assert repr(counted) == "MessageCounts(allreduce=2, exchange=1)"


def test_nested_contexts_each_count():
    with profile.count_messages() as outer:
        messages.record("bcast", 1, 4)
        with profile.count_messages() as inner:
            messages.record("bcast", 1, 4)
        messages.record("split", 0, 0)
    assert (outer.total, inner.total) == (3, 1)


def test_nothing_is_active_outside_even_after_an_error():
    with pytest.raises(ZeroDivisionError), profile.count_messages() as counted:
        assert messages.active == [counted]
        raise ZeroDivisionError
    assert not messages.active


def test_communicators_report_their_messages(comm):
    with profile.count_messages() as counted:
        comm.allreduce(np.ones(3))
        comm.allgather_metadata("hello")
    if comm.size > 1:
        assert (counted["allreduce"], counted["metadata"]) == (1, 1)
        assert counted.records[0] == Message("allreduce", 3, 24)
