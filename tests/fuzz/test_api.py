"""Public calls with wrong arguments: a documented error on every rank, no hang, no crash, and working transports."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from scipy import io, sparse

import collops
from tests.fuzz.catalogue import COMPAT, NATIVE
from tests.fuzz.names import names_for
from tests.fuzz.runner import fuzz

pytestmark = pytest.mark.skipif("COLLOPS_FUZZ_CASES" not in os.environ, reason="takes minutes: make fuzz")
CASES = int(os.environ.get("COLLOPS_FUZZ_CASES", "600"))
SEED = int(os.environ.get("COLLOPS_FUZZ_SEED", "0"))


@pytest.fixture
def folder(comm):
    with tempfile.TemporaryDirectory(prefix="collops-fuzz-") as mine:
        place = mine if comm.control is None else comm.control.bcast(mine)
        if comm.rank == 0:
            io.mmwrite(Path(place, "matrix.mtx"), sparse.eye_array(7))
        collops.save(Path(place, "store"), collops.from_global(np.arange(7.0), comm=comm))
        yield Path(place)
        comm.barrier()


@pytest.mark.timeout(3600)
def test_wrong_arguments_are_refused_on_every_rank(comm, folder):
    report(comm, fuzz(NATIVE, names_for(folder), CASES, SEED))


@pytest.mark.timeout(3600)
def test_wrong_arguments_of_the_other_interface_are_refused_too(comm, folder):
    report(comm, fuzz(COMPAT, names_for(folder), CASES // 8, SEED))


def report(comm, tally):
    if comm.rank == 0:
        print(tally)
    assert not tally.failures, "\n".join(["", *map(str, tally.failures), f"of {tally}"])
