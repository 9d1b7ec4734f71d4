"""Ranks that share cores share them also among the threads of their BLAS libraries."""

from __future__ import annotations

import sys

import numpy as np  # loads a BLAS library
import pytest
from threadpoolctl import ThreadpoolController

from collops.comm import cores, from_mpi4py
from collops.comm.cores import available_cores

SAID = cores._THREAD_VARIABLES


@pytest.fixture
def blas(monkeypatch):
    """BLAS with two threads, and nothing said in the environment."""
    for name in SAID:
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    libraries = ThreadpoolController().select(user_api="blas")
    if not libraries.lib_controllers:
        pytest.skip(f"NumPy {np.__version__} has a BLAS that threadpoolctl does not know")
    with libraries.limit(limits=2):
        yield libraries.lib_controllers


@pytest.mark.serial
def test_blas_gets_the_share_of_its_rank_never_more(blas, monkeypatch):
    if any(library.num_threads != 2 for library in blas):
        pytest.skip("this BLAS was built for one thread")
    for share, expected in ((2.0, 2), (5.0, 2), (2 / 3, 1), (2.0, 1)):
        for name in SAID:
            monkeypatch.delenv(name, raising=False)  # set for libraries that are loaded later
        cores.limit_blas(share)
        assert [library.num_threads for library in blas] == [expected] * len(blas)


@pytest.mark.serial
@pytest.mark.parametrize("name", SAID)
def test_what_the_user_said_stands(blas, monkeypatch, name):
    monkeypatch.setenv(name, "2")
    before = [library.num_threads for library in blas]
    cores.limit_blas(1.0)
    assert [library.num_threads for library in blas] == before


def test_a_communicator_of_several_ranks_shares_out_its_cores(comm, monkeypatch):
    from mpi4py import MPI

    shares: list[float] = []
    monkeypatch.setattr(sys.modules["collops.comm.world"], "limit_blas", shares.append)
    from_mpi4py(MPI.COMM_WORLD.Dup())
    if comm.size == 1:
        assert shares == []  # alone, nothing is imported and nothing changes
    else:
        assert len(shares) == 1 and 0 < shares[0] <= len(available_cores())
        everyone = comm.allgather_metadata(sorted(available_cores()))
        bound = len({core for cores in everyone for core in cores}) == sum(map(len, everyone))
        assert (shares[0] == len(available_cores())) == (bound or comm.local_size == 1)
