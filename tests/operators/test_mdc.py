"""Multi-dimensional convolution against PyLops on gathered data, and what it may send."""

from __future__ import annotations

import numpy as np
import pylops
import pytest

from collops import profile
from collops.array import Layout, random, zeros
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import MDC
from collops.solvers import cgls
from tests.array.cases import layouts

from .fredholm_problems import FORMS, check, kernel
from .problems import assert_close


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("twosided", [True, False])
@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_mdc(comm, dtype, twosided, form):
    whole, mine = kernel(comm, 3, 4, dtype, (2, 0, 1, 1))
    real = whole.real.dtype
    for nv, conj, prescaled in ((1, False, False), (2, True, False), (3, False, True)):
        reference = pylops.waveeqprocessing.MDC(
            *(whole, 9, nv, 0.1, 2.0, twosided), fftengine="scipy", conj=conj, prescaled=prescaled
        )
        op = MDC(
            *(mine, 9, nv, len(whole), 0.1, 2.0, twosided),
            conj=conj,
            prescaled=prescaled,
            model=form,
            data=form,
            comm=comm,
        )
        assert op.dims == reference.dims and op.dimsd == reference.dimsd and op.dtype == reference.dtype == real
        check(op, reference, comm, real)


def test_mdc_in_every_layout(comm):
    whole, mine = kernel(comm, 3, 4, "c16", (2, 0, 1, 1))
    reference = pylops.waveeqprocessing.MDC(whole, 7, 2)
    for model in layouts((7, 4, 2), comm.size):
        for data in ("split", "replicated", Layout.split((7, 3, 2), comm.size)):
            check(MDC(mine, 7, 2, model=model, data=data, comm=comm), reference, comm, "f8")


def test_a_kernel_with_all_frequencies(comm):
    whole, mine = kernel(comm, 3, 4, "c16", (2, 0, 1, 1))
    nt = 2 * len(whole) - 1
    check(MDC(mine, nt, 1, comm=comm), pylops.waveeqprocessing.MDC(whole, nt, 1), comm, "f8")


def test_messages_of_mdc(comm):
    _, mine = kernel(comm, 5, 4, "c16", (2, 0, 1, 1))
    for form, kind, number in (("replicated", "allgatherv", 1), ("split", "alltoallv", 2)):
        op = MDC(mine, 9, 2, model=form, data=form, comm=comm)
        for apply, given in ((op.forward, op.domain), (op.adjoint, op.range)):
            x = random(given, comm=comm)
            with profile.count_messages() as sent:
                apply(x)
            assert sent.total == sent[kind] == number * (comm.size > 1)


def test_deconvolution(comm):
    _, mine = kernel(comm, 6, 4, "c16", (2, 0, 1, 1))
    for form in FORMS:
        op = MDC(mine, 7, 2, model=form, data=form, comm=comm)
        y = op.forward(random(op.domain, comm=comm))
        x = cgls(op, y, niter=60, tol=1e-20).x
        assert_close(op.forward(x).gather(), y.gather(), "f4")


def test_errors_of_mdc(comm):
    G = np.ones((1, 2, 3), complex)
    nt = 2 * comm.size + 1
    with pytest.raises(InputError, match="odd"):
        MDC(G, nt + 1, 1, comm=comm)
    with pytest.raises(InputError, match="nfmax"):
        MDC(G, nt, 1, comm.size + 1, comm=comm)
    with pytest.raises(InputError, match="frequencies"):
        MDC(np.ones((nt, 2, 3), complex), nt, 1, comm=comm)
    with pytest.raises(InputError, match="nt"):
        MDC(G, 2.5, 1, comm=comm)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="data must be"):
        MDC(G, nt, 1, data="gathered", comm=comm)  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match="model must have a layout"):
        MDC(G, nt, 1, model=Layout.replicated((nt, 2, 1), comm.size), comm=comm)
    op = MDC(G, nt, 1, comm=comm)
    with pytest.raises(UnsupportedTypeError, match="real wavefields"):
        op.forward(zeros(op.domain, comm=comm, dtype="c16"))
