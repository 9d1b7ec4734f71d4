"""What fuzzing has found: each of these crashed, hung, was accepted, or was told to some ranks only."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

import collops
from collops.apps.files import open_npy
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators.csr.market import read_matrix


def test_sizes_are_checked_before_allocation(comm):
    for extent in (2**55, 10**13):
        with pytest.raises(InputError, match="GiB"):
            collops.zeros((comm.size, extent), comm=comm)
    with pytest.raises(LayoutError, match="64-bit"):
        collops.Layout.split((2**40, 2**40), comm.size)
    with pytest.raises(LayoutError, match="ranks"):
        collops.Layout.split(7, 2**62)
    with pytest.raises(InputError, match="more than this machine has"):
        comm.symmetric((2**40, 2**20))


def test_layouts_of_stacked_arrays_are_no_layouts_of_arrays(comm):
    stacked = collops.StackedArray([collops.ones(5, comm=comm), collops.ones(3, comm=comm)]).layout
    part = np.ones(stacked.layouts[0].local_shape(comm.rank))
    for call in (
        lambda: collops.DistributedArray(stacked, comm, part),
        lambda: collops.from_local(part, stacked, comm=comm),
        lambda: collops.exchange.StarForest.from_layout(comm, stacked, [0, 6], [0, 1]),
    ):
        with pytest.raises(LayoutError, match=r"needs a Layout|must be a layout"):
            call()


def test_an_operator_cannot_be_left_out(comm):
    x = collops.ones(6, comm=comm)
    f, g, b = collops.L2(b=x), collops.L1(0.1), collops.Identity(x.layout, comm=comm)
    for call in (
        lambda: collops.primal_dual(f, g, None, x, 0.1, 0.1, niter=1),
        lambda: collops.linearized_admm(f, g, None, x, 0.1, 0.1, niter=1),
        lambda: collops.admm_l2(g, b, x, None, x, 0.1, niter=1),
    ):
        with pytest.raises(UnsupportedTypeError, match="A must be a distributed operator"):
            call()


def test_a_tag_is_an_integer(comm):
    for tag in (2.5, "a", None):
        with pytest.raises(InputError, match="a tag must be an integer"):
            comm.sendrecv(np.ones(3), comm.rank, np.ones(3), comm.rank, tag)


def test_objects_never_travel(comm):
    boxed = np.array([object()])
    for call in (
        lambda: comm.allgather(boxed),
        lambda: comm.allreduce(np.ones(2, ">f8")),
        lambda: comm.sendrecv(np.ones(1), comm.rank, boxed, comm.rank),
        lambda: comm.bcast(np.array(["text"])),
    ):
        with pytest.raises(UnsupportedTypeError):
            call()


def test_values_that_are_not_numbers_are_refused_on_ranks_without_elements_too(comm):
    for values in (np.array([object()]), np.array(["1.5"]), np.array(["2020-01-01"], "M8[D]"), [1, None]):
        for dtype in (None, "float64"):
            for root in (None, 0):
                with pytest.raises(InputError, match="numbers"):
                    collops.from_global(values, comm=comm, dtype=dtype, root=root)


def test_what_is_no_communicator_is_refused(comm):
    for wrong in ("world", 3, np.ones(comm.size)):
        for call in (
            lambda wrong=wrong: collops.zeros(5, comm=wrong),
            lambda wrong=wrong: collops.Transpose((6, 4), (1, 0), comm=wrong),
            lambda wrong=wrong: collops.VStack([np.eye(3)], wrong),
            lambda wrong=wrong: collops.StarForest(wrong, 1, None, [0], [0]),
        ):
            with pytest.raises(UnsupportedTypeError, match="communicator"):
                call()


def test_a_mistake_of_one_rank_is_told_to_all_of_them(comm):
    """Plain errors of Python, too, which left the others waiting in MPI, where another message met theirs."""
    last = comm.rank == comm.size - 1
    layout = collops.Layout.split(7, comm.size)
    for call in (
        lambda: collops.StarForest.from_layout(comm, layout, [[0, 1], [2]] if last else [0, 6], [0, 1]),
        lambda: collops.StarForest(comm, 2, None, ["a"] if last else [0], [0]),
        lambda: collops.from_local("nothing" if last else np.ones(3), comm=comm),
        lambda: collops.Fredholm1(np.array([object()]) if last else np.ones((2, 3, 4)), comm=comm),
        lambda: comm.symmetric(1j if last else 3),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises((collops.CollopsError, TypeError, ValueError)):
            call()
        assert int(comm.allreduce(np.array(1))) == comm.size


def test_keys_and_colors_are_integers_of_32_bits(comm):
    for key in (2**62, -(2**40)):
        with pytest.raises(InputError, match="32 bits"):
            comm.split(0, key)
    with pytest.raises(TypeError):
        comm.split(0, float("nan"))


def test_coefficients_are_numbers_on_all_ranks(comm):
    """A list of two fits the part of a rank that holds two elements, and not another's."""
    x = collops.ones(2 * comm.size + 1, comm=comm)
    for wrong in ([1, 2], np.ones(2), "2", None):
        for call in (
            lambda wrong=wrong: collops.axpby(2.0, x, wrong, x),
            lambda wrong=wrong: collops.axpby(wrong, x, 1, x),
        ):
            with pytest.raises(UnsupportedTypeError, match="coefficient"):
                call()
    assert float(collops.axpby(np.array(2.0), x, np.float32(1), x).sum()) == 3 * x.size


def test_the_other_interface_says_what_is_no_array_or_operator(comm):
    from collops.compat import pylops_mpi

    d = pylops_mpi.DistributedArray(global_shape=6)
    d[:] = 1.0
    slope = pylops_mpi.MPIFirstDerivative(6)
    both = pylops_mpi.StackedDistributedArray([d, d])
    for call in (
        lambda: slope.matvec(np.ones(6)),
        lambda: slope.rmatvec("nonsense"),
        lambda: d.dot(both),
        lambda: both.dot(3.0),
        lambda: pylops_mpi.StackedDistributedArray([d, 3]),
        lambda: pylops_mpi.cg(np.eye(6), d, d),
        lambda: pylops_mpi.cgls(slope, d, None),
        lambda: pylops_mpi.cgls(slope, "data", d),
        lambda: pylops_mpi.ista(slope, d, {}),
        lambda: pylops_mpi.MPIProxOperator(3.0),
        lambda: pylops_mpi.MPIMatrixMult("matrix", 3, base_comm=None) if comm.size == 1 else slope.matvec(1),
    ):
        with pytest.raises(UnsupportedTypeError):
            call()


@pytest.mark.serial
def test_files_that_begin_as_archives_are_refused(tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(b"PK\x03\x04" + bytes(60))
    with pytest.raises(InputError, match="archive"):
        open_npy(path)


@pytest.mark.serial
@pytest.mark.parametrize(
    "header",
    [
        "-" * 9000 + "1",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (True, 5)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807, 4)}",
    ],
)
def test_headers_of_numpy_files_that_cannot_be_parsed_are_refused(tmp_path, header):
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header.encode() + bytes(400))
    with pytest.raises(InputError, match="not a NumPy file of numbers, or it is damaged"):
        open_npy(path)


@pytest.mark.serial
def test_matrix_files_with_wrong_numbers_or_sizes_are_refused(tmp_path):
    head = b"%%MatrixMarket matrix coordinate real general\n% caf\xc3\xa9\n3 3 2\n"
    body = b"1 1 2.5\n3 2 -1e3\n"
    path = tmp_path / "a.mtx"
    path.write_bytes(head + body)
    assert read_matrix(path).nnz == 2
    for wrong in (body.replace(b"\n", b"\0"), body.replace(b"2", b"\xff"), b"x" + body):
        path.write_bytes(head + wrong)
        with pytest.raises(InputError, match="line 4 must be two indices and a real number"):
            read_matrix(path)
    for lie in (b"3 3 1000000000000", b"3 1000000000000000 2"):
        path.write_bytes(head.replace(b"3 3 2", lie) + body)
        with pytest.raises(InputError, match=r"promises|memory"):
            read_matrix(path)
    short = tmp_path / "a.mtx.gz"
    short.write_bytes(gzip.compress(head + body)[:-12])
    with pytest.raises(InputError):
        read_matrix(short)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("COLLOPS_TIMEOUT", ("soon", "-1", "nan", "inf", "__import__('os')")),
        ("COLLOPS_ENGINE", ("nonsense", "os", "numpy;")),
        ("COLLOPS_TRANSPORT", ("nonsense", "carrier-pigeon")),
        ("COLLOPS_GPU_AWARE_MPI", ("yes", "2")),
        ("COLLOPS_PROFILE", ("nonsense", "json", "trace")),
    ],
)
def test_variables_of_the_environment_are_parsed_strictly(monkeypatch, name, values):
    from collops.backend import engine
    from collops.comm.failure import default_timeout
    from collops.comm.mpi import gpu_awareness
    from collops.profile.settings import Settings

    readers = {
        "COLLOPS_TIMEOUT": default_timeout,
        "COLLOPS_ENGINE": engine,
        "COLLOPS_TRANSPORT": collops.world,
        "COLLOPS_GPU_AWARE_MPI": lambda: gpu_awareness(None),
        "COLLOPS_PROFILE": lambda: Settings.parse(value),
    }
    for value in values:
        monkeypatch.setenv(name, value)
        with pytest.raises(InputError):
            readers[name]()
