"""Fredholm integrals against PyLops on gathered data, and what they may send."""

from __future__ import annotations

import numpy as np
import pylops
import pytest

from collops import profile
from collops.array import random, zeros
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import Fredholm1
from tests.array.cases import values

from .fredholm_problems import FORMS, check, kernel
from .problems import assert_close

DTYPES = ["f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("model", FORMS)
@pytest.mark.parametrize("data", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_fredholm(comm, dtype, data, model):
    whole, mine = kernel(comm, 5, 4, dtype)
    for nz in (1, 3):
        reference = pylops.signalprocessing.Fredholm1(whole, nz=nz, dtype=dtype)
        for options in ({}, {"saveGt": True}, {"usematmul": False}, {"saveGt": True, "usematmul": False}):
            op = Fredholm1(mine, nz, **options, model=model, data=data, comm=comm)
            assert op.dims == reference.dims and op.dimsd == reference.dimsd
            check(op, reference, comm, dtype)
            if np.dtype(dtype).kind == "f":
                assert op.dottest(complex_vectors=True)


def test_kernels_in_any_order_and_type(comm):
    whole, mine = kernel(comm, 5, 4, "f8")
    turned = np.asfortranarray(mine)
    check(Fredholm1(turned, comm=comm), pylops.signalprocessing.Fredholm1(whole, dtype="f8"), comm, "f8")
    op = Fredholm1(mine, 2, comm=comm, dtype="c8")
    assert op.dtype == np.complex64 and op.dottest()
    whole_numbers = Fredholm1(mine.round().astype(int), comm=comm)
    assert whole_numbers.dtype == np.float64 and whole_numbers.dottest()
    counted = pylops.signalprocessing.Fredholm1((whole > 0).astype("f8"), dtype="f8")
    check(Fredholm1(mine > 0, comm=comm), counted, comm, "f8")
    x = values(op.dims, "c16", 1)
    strided = zeros(op.domain, comm=comm, dtype="c16")
    strided.local_array = np.repeat(x, 2, axis=2)[op.domain.slices(comm.rank)[:1]][:, :, ::2]
    expected = whole.astype("c8") @ x
    assert_close(op.forward(strided).gather(), expected, "f4")
    real = Fredholm1(mine.astype("f4"), 2, comm=comm)
    single = real.forward(random(real.domain, comm=comm, dtype="c16")).local_array
    np.testing.assert_array_equal(single, single.astype("c8"))  # in the precision of the kernel


def test_only_one_rank_has_slices(comm):
    counts = (0,) * (comm.size - 1) + (2,)
    whole, mine = kernel(comm, 3, 4, "c16", counts)
    for form in FORMS:
        op = Fredholm1(mine, 2, model=form, data=form, comm=comm)
        check(op, pylops.signalprocessing.Fredholm1(whole, nz=2, dtype="c16"), comm, "c16")


def test_messages_of_fredholm(comm):
    _, mine = kernel(comm, 5, 4, "c16")
    for model in FORMS:
        for data in FORMS:
            op = Fredholm1(mine, 3, model=model, data=data, comm=comm)
            for apply, given, gathered in ((op.forward, op.domain, data), (op.adjoint, op.range, model)):
                x = random(given, comm=comm, dtype="c16")
                with profile.count_messages() as sent:
                    apply(x)
                assert sent.total == sent["allgatherv"] == (gathered == "replicated" and comm.size > 1)


def test_real_matrices_stay_real(comm):
    _, mine = kernel(comm, 64, 64, "f8", (8,) * comm.size)
    op = Fredholm1(mine, 2, comm=comm)
    x, out = random(op.domain, comm=comm, dtype="c16"), zeros(op.range, comm=comm, dtype="c16")
    expected = mine @ x.local_array
    import tracemalloc

    op.forward(x, out)
    tracemalloc.start()
    op.forward(x, out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < mine.nbytes / 2
    assert_close(out.local_array, expected)


@pytest.mark.parametrize("at_once", [True, False])
def test_half_precision_with_complex_vectors(comm, at_once):
    """Complex vectors of twice the precision of the kernel: real and imaginary parts are columns of their own type."""
    _, mine = kernel(comm, 5, 4, "f4")
    op = Fredholm1(mine.astype("f2"), 3, usematmul=at_once, comm=comm)
    x = random(op.domain, comm=comm, dtype="c8")
    np.testing.assert_allclose((op @ x).local_array, mine.astype("f2").astype("f8") @ x.local_array, atol=2e-2)
    out = zeros(op.range, comm=comm, dtype="c8")
    np.testing.assert_allclose(op.forward(x, out).local_array, (op @ x).local_array, atol=2e-2)


def test_errors_of_fredholm(comm):
    last = comm.rank == comm.size - 1
    with pytest.raises(LayoutError, match="three axes"):
        Fredholm1(np.ones((2, 3)) if last else np.ones((2, 3, 4)), comm=comm)
    with pytest.raises(InputError, match="nz"):
        Fredholm1(np.ones((2, 3, 4)), 0, comm=comm)
    with pytest.raises(InputError, match="data must be"):
        Fredholm1(np.ones((2, 3, 4)), data="broadcast", comm=comm)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedTypeError, match="imaginary"):
        Fredholm1(np.ones((2, 3, 4), complex), comm=comm, dtype="f8")
    if comm.size > 1:
        with pytest.raises(LayoutError, match="one shape and dtype"):
            Fredholm1(np.ones((2, 3, 5 if last else 4)), comm=comm)
        with pytest.raises(LayoutError, match="one shape and dtype"):
            Fredholm1(np.ones((2, 3, 4), "f4" if last else "f8"), comm=comm)
    op = Fredholm1(np.ones((1, 3, 4)), comm=comm)
    with pytest.raises(UnsupportedTypeError, match="does not fit"):
        op.forward(zeros(op.domain, comm=comm, dtype="c16"), zeros(op.range, comm=comm))
