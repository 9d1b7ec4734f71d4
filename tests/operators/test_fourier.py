"""Fourier transforms against PyLops on gathered data, in every sort of layout, and what they may send."""

from __future__ import annotations

import itertools

import numpy as np
import pylops
import pytest

from collops import profile
from collops.array import Layout, from_global, random, zeros
from collops.backend import engine
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import FFT, FFT2D, FFTND, Diagonal, StackedBlockDiag, StackedVStack
from collops.operators.fourier.engines import Workspace
from collops.operators.fourier.route import find_route
from collops.operators.fourier.transform import AxisTransform, JointTransform, joined, scale_once
from collops.solvers import cgls
from tests.array.cases import layouts, masks, values

from .problems import assert_close, views_of_repeated_calls

# PyLops warns of options that are meant.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

KINDS = [("f4", True), ("f8", True), ("f4", False), ("f8", False), ("c8", False), ("c16", False)]


def check(op, reference, dtype, comm) -> None:
    """Compare with PyLops both ways, with and without out, and run the dot test."""
    x, y = values(op.dims, dtype, 1), values(op.dimsd, op.cdtype, 2)
    xd, yd = from_global(x, op.domain, comm=comm), from_global(y, op.range, comm=comm)
    expected = (reference @ x.ravel()).reshape(op.dimsd)
    for out in (None, zeros(op.range, comm=comm, dtype=op.cdtype)):
        result = op.forward(xd, out)
        assert out is None or result is out
        assert result.layout is op.range and result.dtype == op.cdtype == op.dtype
        assert_close(result.gather(), expected, op.cdtype)
    expected = (reference.H @ y.ravel()).reshape(op.dims)
    for out in (None, zeros(op.domain, comm=comm, dtype=op.rdtype)):
        result = op.adjoint(yd, out)
        assert out is None or result is out
        assert result.layout is op.domain and result.dtype == op.rdtype
        assert_close(result.gather(), expected, op.cdtype)
    assert_close(xd.gather(), x)  # neither is written to
    assert_close(yd.gather(), y)
    assert op.dottest()


@pytest.mark.parametrize(("dtype", "real"), KINDS)
@pytest.mark.parametrize("shape", [(7,), (5, 4), (4, 3, 6)])
def test_agrees_with_pylops(comm, shape, dtype, real):
    draw = np.random.default_rng([len(shape), real])
    axes_of = [axes for k in range(1, len(shape) + 1) for axes in itertools.permutations(range(len(shape)), k)]
    for layout in layouts(shape, comm.size):
        for axes in [axes_of[n] for n in draw.integers(0, len(axes_of), 2)]:
            options = {
                "axes": axes,
                "nffts": tuple(int(draw.integers(2, 9)) if draw.random() < 0.4 else None for _ in axes),
                "sampling": tuple(draw.random(len(axes))),
                "norm": ("ortho", "none", "1/n")[draw.integers(3)],
                "real": real,
                "ifftshift_before": tuple(draw.random(len(axes)) < 0.3),
                "fftshift_after": tuple(draw.random(len(axes)) < 0.3),
                "dtype": dtype,
            }
            reference = pylops.signalprocessing.FFTND(shape, engine="scipy", **options)
            target = None if draw.random() < 0.5 else "domain"
            op = FFTND(layout, comm=comm, range_layout=target, **options)
            check(op, reference, dtype, comm)
            assert op.dims == reference.dims and op.dimsd == reference.dimsd and op.clinear == reference.clinear
            assert op.rdtype == reference.rdtype and op.cdtype == reference.cdtype
            for ours, theirs in zip(op.fs, reference.fs, strict=True):
                assert_close(ours, theirs)


@pytest.mark.parametrize("norm", ["ortho", "none", "1/n"])
@pytest.mark.parametrize("real", [True, False])
def test_large_transforms_by_two_threads(comm, monkeypatch, real, norm):
    """Against NumPy, with a local part that is large enough for each of the threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    shape, axes = (comm.size, 250, 300), (1, 2)
    scaled = {"ortho": "ortho", "none": "backward", "1/n": "forward"}[norm]
    op = FFTND(Layout.split(shape, comm.size), axes, norm=norm, real=real, comm=comm)
    x = values(shape, "f8" if real else "c16", 1)
    forward = op.forward(from_global(x, op.domain, comm=comm))
    expected = np.fft.rfftn(x, axes=axes, norm=scaled) if real else np.fft.fftn(x, axes=axes, norm=scaled)
    if real:  # the frequencies whose negatives are left out count twice
        expected[..., 1:150] *= np.sqrt(2)
    assert_close(forward.gather(), expected, "c16")
    # The transform is a multiple of a unitary one.
    unscaled = {"ortho": 1, "none": 75000, "1/n": 1 / 75000}[norm]
    assert_close(op.adjoint(forward).gather(), unscaled * x, "c16")


def test_forms_for_one_and_two_axes(comm):
    shape = (4, 5, 6)
    one = FFT(shape, 0, 7, 0.5, "1/n", True, True, comm=comm, dtype="f8")
    reference = pylops.signalprocessing.FFT(shape, 0, 7, 0.5, "1/n", True, True, dtype="f8")
    check(one, reference, "f8", comm)
    assert (one.axis, one.nfft) == (0, 7)
    assert_close(one.f, reference.f)
    two = FFT2D(shape, (2, 0), (None, 5), (0.1, 2.0), "none", False, (True, False), True, comm=comm)
    reference = pylops.signalprocessing.FFT2D(shape, (2, 0), (None, 5), (0.1, 2.0), "none", False, (True, False), True)
    check(two, reference, "c16", comm)
    assert_close(two.f1, reference.f1)
    assert_close(two.f2, reference.f2)


def test_every_range_layout(comm):
    shape = (5, 4)
    reference = pylops.signalprocessing.FFT2D(shape, dtype="f8", real=True, engine="scipy")
    for target in layouts((5, 3), comm.size):
        op = FFT2D(shape, dtype="f8", real=True, range_layout=target, comm=comm)
        assert op.range is target
        check(op, reference, "f8", comm)
    uneven = Layout.split((6, 5), comm.size, sizes=[0] * (comm.size - 1) + [6])
    assert FFT(uneven, 1, range_layout="domain", comm=comm).range is uneven


def test_masks_do_not_matter(comm):
    reference = pylops.signalprocessing.FFT2D((5, 4), engine="scipy")
    for mask in masks(comm.size):
        op = FFT2D(Layout.split((5, 4), comm.size, mask=mask), comm=comm)
        x = values((5, 4), "c16", 1)
        result = op.forward(from_global(x, op.domain, comm=comm))
        assert op.range.mask == mask
        assert_close(result.gather(), (reference @ x.ravel()).reshape(5, 4))


def test_half_precision_and_other_results(comm):
    op = FFT((6, 4), axis=0, real=True, dtype="f4", comm=comm)
    x = values((6, 4), "f2", 1)
    expected = np.fft.rfft(x.astype("f8"), axis=0, norm="ortho")
    expected[1:3] *= np.sqrt(2)
    result = op.forward(from_global(x, op.domain, comm=comm))
    assert result.dtype == np.complex64
    assert_close(result.gather(), expected, "f4")
    wide = zeros(op.range, comm=comm, dtype="c16")
    given = values((6, 4), "f8", 2)
    expected = np.fft.rfft(given, axis=0, norm="ortho")
    expected[1:3] *= np.sqrt(2)
    assert_close(op.forward(from_global(given, op.domain, comm=comm), wide).gather(), expected, "f8")
    # Vectors of solvers are complex where the operator is: the model is their real part.
    back = op.adjoint(wide, zeros(op.domain, comm=comm, dtype="c16"))
    assert_close(back.gather(), given, "f8")
    assert_close(op.forward(from_global(given + 1j, op.domain, comm=comm)).gather(), expected, "f8")


def test_messages(comm):
    shape, several = (200, 150), comm.size > 1
    cases = [
        (FFT(shape, axis=1, comm=comm), 0, "alltoallv"),
        (FFT2D(Layout.replicated(shape, comm.size), comm=comm), 0, "alltoallv"),
        (FFT2D(shape, comm=comm), 1, "alltoallv"),
        (FFT2D(shape, real=True, comm=comm), 1, "alltoallv"),
        (FFT2D(shape, axes=(1, 0), real=True, comm=comm), 2, "alltoallv"),  # the real axis goes first, and is split
        (FFT2D(shape, comm=comm, range_layout="domain"), 2, "alltoallv"),
        (FFTND((40, 30, 20), comm=comm), 1, "alltoallv"),
        (FFT(3000, comm=comm), 1, "allgatherv"),
    ]
    for op, number, kind in cases:
        x, y = random(op.domain, comm=comm, dtype=op.rdtype), random(op.range, comm=comm, dtype=op.dtype)
        for apply, given in ((op.forward, x), (op.adjoint, y)):
            with profile.count_messages() as sent:
                apply(given)
            assert sent.total == sent[kind] == number * several
    op = FFT(shape, axis=0, real=True, comm=comm)  # real numbers travel, which are half as many bytes
    with profile.count_messages() as sent:
        op.forward(random(op.domain, comm=comm))
    mine, theirs = op.domain.block(comm.rank), op.range.block(comm.rank)
    assert all(message.nbytes == 8 * mine.shape[0] * (150 - theirs.shape[1]) for message in sent.records)


@pytest.mark.parametrize("taken", [(0, 4), (1, 3), (3, 2), (4, 0)])
def test_part_of_the_frequencies(taken):
    """On its own, with and without a product with a matrix."""
    first, kept = taken
    whole = AxisTransform(1, 7, 9, norm="none", real=True, shift_before=True, scale=3.0)
    part = whole.part(first, kept)
    assert part is not None and part.count == kept
    x, y = values((2, 7, 5), "f8", 1), values((2, kept, 5), "c16", 2)
    workspace = Workspace(engine("numpy"), np.dtype("c16"), 1000, 1)
    every = whole.forward(x, np.empty((2, 5, 5), "c16"), workspace).copy()
    assert_close(part.forward(x, np.empty(y.shape, "c16"), workspace), every[:, first : first + kept])
    padded = np.zeros_like(every)
    padded[:, first : first + kept] = y
    expected = whole.adjoint(padded, np.empty(x.shape), workspace).copy()
    assert_close(part.adjoint(y, np.empty(x.shape), workspace), expected)


@pytest.mark.serial
def test_transforms_that_are_joined():
    """Neighbouring axes that are transformed in place, at most three of them, and one that scales for all."""

    def axes(*transforms):
        return [each.axes if isinstance(each, JointTransform) else each.axis for each in joined(transforms)]

    plain = [AxisTransform(axis, 5 + axis, 5 + axis) for axis in range(6)]
    padded = AxisTransform(2, 7, 9)
    assert axes(plain[1], plain[0]) == [(0, 1)]
    assert axes(plain[5], plain[0], plain[3], plain[4]) == [(3, 4, 5), (0,)]
    assert axes(plain[0], plain[1], plain[2], plain[3]) == [(1, 2, 3), (0,)]
    assert axes(plain[1], padded, plain[3]) == [2, (3,), (1,)]
    several = [JointTransform(plain[5:]), JointTransform(plain[:2])]
    scale_once(several, 5)
    assert [each.samples for each in several] == [1, 10 * 5 * 6]
    alone = [JointTransform(plain[5:])]
    scale_once(alone, 5)
    assert alone[0].samples == 10


def test_nothing_is_allocated_again(comm):
    op = FFTND((6, 5, 4), (0, 2), (8, None), fftshift_after=True, comm=comm)
    x = random(op.domain, comm=comm, dtype="c16")
    views_of_repeated_calls(op, x)


@pytest.mark.parametrize("real", [True, False])
def test_solvers_and_algebra(comm, real):
    op = FFT2D((9, 6), nffts=(12, 8), real=real, dtype="f8" if real else "c16", comm=comm)
    x = values((9, 6), op.rdtype, 1)
    y = op.forward(from_global(x, op.domain, comm=comm))
    assert_close(cgls(op, y, niter=5, tol=0).x.gather(), x, factor=10)
    normal = op.H @ op
    assert_close(normal.forward(from_global(x, op.domain, comm=comm)).gather(), x)


def test_flat(comm):
    op = FFT2D((6, 4), comm=comm, range_layout="domain")
    x = values((24,), "c16", 1)
    result = op.flat.forward(from_global(x, op.flat.domain, comm=comm))
    assert_close(result.gather(), np.fft.fft2(x.reshape(6, 4), norm="ortho").ravel())


@pytest.mark.serial
def test_routes():
    def stages(layout, axes, target=None, first=None):
        found, final = find_route(layout, {axis: layout.shape[axis] for axis in axes}, first=first, target=target)
        seen = [axis for stage in found for axis in stage.axes]
        assert sorted(seen) == sorted(axes) and (first is None or seen[0] == first)
        assert not any(set(stage.axes) & set(stage.layout.split_axes) for stage in found)
        return found, final

    cube = (128, 128, 128)
    slab = Layout.split(cube, 16)
    found, final = stages(slab, (0, 1, 2))
    assert [stage.axes for stage in found] == [(1, 2), (0,)] and final is Layout.split(cube, 16, 1)
    found, final = stages(slab, (0, 1, 2), first=0)
    assert [stage.axes for stage in found] == [(0, 2), (1,)] or [stage.axes for stage in found] == [(0, 1), (2,)]
    # Both split axes are made whole at once where the third can be cut for all ranks, which moves everything once.
    found, final = stages(Layout.grid(cube, (4, 4, 1)), (0, 1, 2))
    assert [stage.axes for stage in found] == [(2,), (0, 1)] and final is Layout.split(cube, 16, 2)
    # Where it is too short for that, one after the other.
    pencil = Layout.grid((256, 256, 16), (16, 16, 1))
    found, final = stages(pencil, (0, 1, 2))
    assert len(found) == 3 and found[0].axes == (2,) and len(final.split_axes) == 2
    # An axis that nobody transforms may carry the split, and nothing moves that need not.
    found, final = stages(Layout.split((64, 64, 9), 8, 1), (1,))
    assert len(found) == 1 and final is Layout.split((64, 64, 9), 8, 0)
    found, final = stages(Layout.grid((64, 64, 64), (4, 2, 1)), (1, 2))
    assert [stage.axes for stage in found] == [(2,), (1,)] and final is Layout.grid((64, 64, 64), (4, 1, 2))
    # Vectors have no other axis.
    found, final = stages(Layout.split((1000,), 4), (0,))
    assert found[0].layout.is_replicated and final is Layout.split((1000,), 4)


def test_wrong_arguments(comm):
    for wrong, kind, message in (
        ({"axes": (0, 3)}, LayoutError, "axis 3"),
        ({"axes": (0, -3)}, LayoutError, "distinct"),
        ({"axes": ()}, LayoutError, "distinct"),
        ({"nffts": (1, 2)}, InputError, "one for each of 3"),
        ({"nffts": 0}, InputError, "at least 1"),
        ({"nffts": 2.5}, InputError, "at least 1"),
        ({"sampling": np.complex64(1 + 2j)}, InputError, "nonzero number"),
        ({"norm": "forward"}, InputError, "'ortho', 'none' or '1/n'"),
        ({"range_layout": "same"}, InputError, "range_layout"),
        ({"range_layout": Layout.replicated((2, 2), comm.size)}, LayoutError, "cannot have the layout"),
        ({"dtype": "i4"}, UnsupportedTypeError, "int32"),
    ):
        with pytest.raises(kind, match=message):
            FFTND((3, 4, 5), **wrong, comm=comm)
    with pytest.raises(InputError, match="two axes"):
        FFT2D((3, 4, 5), (0, 1, 2), comm=comm)
    with pytest.raises(LayoutError, match="nonempty axes"):
        FFT((3, 0), comm=comm)
    with pytest.raises(LayoutError, match="ranks"):
        FFT(Layout.split((3, 4), comm.size + 1), comm=comm)
    op = FFT((3, 4), comm=comm)
    with pytest.raises(UnsupportedTypeError, match="complex"):
        op.forward(zeros(op.domain, comm=comm), zeros(op.range, comm=comm))
    with pytest.raises(UnsupportedTypeError, match="complex"):
        op.adjoint(zeros(op.range, comm=comm), zeros(op.domain, comm=comm))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_what_is_made_of_real_transforms_has_an_adjoint(comm, dtype):
    """It is linear over the real numbers only, and its adjoint that of the real part of the inner product."""
    F = FFT((9, comm.size + 1), 0, real=True, dtype=dtype, comm=comm)
    weights = Diagonal(from_global(values(F.dimsd, F.cdtype, 3), F.range, comm=comm))
    for op in (
        *(F, F.H, F.conj(), F.T, 2 * F, 2j * F, (2j * F).H, F.H @ F, F @ F.H, F + 1j * F),
        *(
            weights @ F,
            F.H @ weights @ F,
            StackedVStack([F, 2j * F]),
            StackedVStack([F, F]).H,
            StackedBlockDiag([F, F]),
        ),
        FFT(9, real=True, dtype=dtype, comm=comm).flat,
    ):
        assert not op.clinear
        assert op.dottest()
    assert (weights.H @ weights).clinear
    # Over the complex numbers it would fail.
    with pytest.raises(AssertionError):
        x, y = values(F.dims, F.cdtype, 4), values(F.dimsd, F.cdtype, 5)
        u, v = from_global(x, F.domain, comm=comm), from_global(y, F.range, comm=comm)
        assert_close(np.array(F.forward(u).vdot(v)), np.array(u.vdot(F.adjoint(v))), F.cdtype)
