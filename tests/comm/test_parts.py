"""Parts of symmetric memory: they share pieces, and their places are used again when no rank uses them any more."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import collops
from collops.comm import reclaim, symmetric
from collops.comm.parts import Part

PIECE = 1 << 20


@pytest.fixture
def near(comm, one_host):
    """A communicator without exchanges."""
    if comm.size == 1:
        pytest.skip("a single rank needs no windows")
    near = comm.split(0, -comm.rank)
    near.symmetric(1, engine="numpy").free()  # makes the communicator of all windows
    return near


def filled(near, part, value):
    """Fill the bytes of the next rank, and return those that the rank before has written here."""
    part.peer((near.rank + 1) % near.size)[...] = value
    near.barrier()
    return part.local.tolist()


def offset(near, part):
    """Return where a part begins, which must be the same on all ranks."""
    (piece,) = near.cache[Part, "numpy"]
    starts = near.allgather(np.array(part.local.ctypes.data - piece.memory.local.ctypes.data))
    assert (starts == starts[0]).all()
    return int(starts[0])


def test_parts_share_a_piece_until_it_is_full(near):
    count = reclaim.in_use()
    made = [Part(near, nbytes, "numpy") for nbytes in (1, 300, 5, 1000)]
    assert [offset(near, part) for part in made] == [0, 256, 768, 1024]
    assert reclaim.in_use() == count + 1
    for value, part in enumerate(made):
        assert filled(near, part, 7 + value) == [7 + value] * len(part.local)
    assert made[1].local.tolist() == [8] * 300
    large = [Part(near, PIECE // 8 + 1, "numpy") for _ in range(2)]
    assert [len(piece.ends) for piece in near.cache[Part, "numpy"]] == [4, 1, 1]
    assert all(piece.memory.local.nbytes < PIECE // 4 for piece in near.cache[Part, "numpy"][1:])
    for part in (*large, *made):
        part.free()
        part.free()
    assert reclaim.in_use() == count and not near.cache[Part, "numpy"]


def test_places_are_used_again_and_are_zeros(near):
    first, second = (Part(near, 600, "numpy") for _ in range(2))
    filled(near, first, 9)
    first.free()
    with collops.profile.count_messages() as messages:
        again = Part(near, 500, "numpy")
    assert [record.operation for record in messages.records] == ["barrier"]
    assert (offset(near, again), again.local.tolist()) == (0, [0] * 500)
    second.free()
    again.free()


def test_parts_that_only_some_ranks_have_dropped_are_kept(near):
    made = [Part(near, 600, "numpy") for _ in range(3)]
    filled(near, made[0], 5)
    kept = made[2:] if near.rank else made[::2]
    del made
    near.split(0)  # with the notes of all ranks
    again = Part(near, 600, "numpy")
    assert offset(near, again) == 768
    assert near.rank or kept[0].local.tolist() == [5] * 600
    again.free()


def test_a_part_alone_where_memory_for_a_piece_is_lacking(near, monkeypatch):
    free = near.size * PIECE // 2
    monkeypatch.setattr(symmetric.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    part = Part(near, 1000, "numpy")
    assert filled(near, part, 3) == [3] * 1000
    (piece,) = near.cache[Part, "numpy"]
    assert piece.memory.local.nbytes < PIECE // 2
    part.free()
    with pytest.raises(MemoryError, match=f"has {free} free"):
        Part(near, 2 * free, "numpy")
