"""Checkpoints: resumed as if nothing had happened, on any number of ranks, with errors where that cannot be."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zarr

from collops import profile
from collops.array import Layout, from_global, full
from collops.errors import CheckpointError, InputError, Interrupted
from collops.operators import Diagonal, VStack
from collops.solvers import (
    Status,
    bicgstab,
    block_cg,
    block_cgls,
    cg,
    cgls,
    fista,
    gmres,
    ista,
    lsmr,
    lsqr,
    minres,
    power_iteration,
)
from collops.solvers.checkpoint import Every, Signals, Timer, difference, fingerprint
from collops.solvers.nonlinear import gauss_newton, lbfgs
from collops.solvers.proximal import L1, L2, Box, admm, admm_l2, linearized_admm, primal_dual, proximal_gradient

from .problems import ROWS, Cubic, assert_close, joined, problem, random_matrix, start


@dataclass
class OneFunction:
    """A method with one option."""

    f: L2
    name = "a method"


METHODS = {
    "cg": lambda op, y, **run: cg(op.H @ op, op.H @ y, tol=0, **run),
    "cgls": lambda op, y, **run: cgls(op, y, damp=0.1, tol=0, **run),
    "cg, one reduction": lambda op, y, **run: cg(op.H @ op, op.H @ y, tol=0, reductions=1, **run),
    "cgls, one reduction": lambda op, y, **run: cgls(op, y, damp=0.1, tol=0, reductions=1, **run),
    "pipelined cgls": lambda op, y, **run: cgls(op, y, damp=0.1, tol=0, reductions="pipelined", **run),
    "pipelined cg, with M": lambda op, y, **run: cg(
        op.H @ op, op.H @ y, tol=0, reductions="pipelined", M=_ascending(op), **run
    ),
    "lsqr": lambda op, y, **run: lsqr(op, y, calc_var=True, **run),
    "cg with M": lambda op, y, **run: cg(op.H @ op, op.H @ y, tol=0, M=_ascending(op), **run),
    "cgls, one reduction, with M": lambda op, y, **run: cgls(
        op, y, damp=0.1, tol=0, reductions=1, M=_ascending(op), **run
    ),
    "lsqr with M": lambda op, y, **run: lsqr(op, y, calc_var=True, M=_ascending(op), **run),
    "lsmr": lambda op, y, **run: lsmr(op, y, damp=0.1, **run),
    "minres": lambda op, y, **run: minres(op.H @ op, op.H @ y, shift=0.3, rtol=0, **run),
    "bicgstab": lambda op, y, **run: bicgstab(op.H @ op, op.H @ y, rtol=0, **run),
    # Resumed in the middle of the second cycle.
    "gmres": lambda op, y, **run: gmres(op.H @ op, op.H @ y, restart=2, rtol=0, **run),
    "flexible gmres": lambda op, y, **run: gmres(op.H @ op, op.H @ y, restart=4, flexible=True, rtol=0, **run),
    "block CG": lambda op, y, **run: block_cg(op.H @ op, [op.H @ y, op.H @ (y * y)], rtol=0, **run),
    "block CGLS, with M": lambda op, y, **run: block_cgls(op, [y, y * y], damp=0.1, rtol=0, M=_ascending(op), **run),
    "ista": lambda op, y, **run: ista(op, y, eps=0.3, decay=_falling(**run), **run),
    "fista": lambda op, y, **run: fista(op, y, eps=0.3, threshkind="half", rtol=1e-9, **run),
    "percentile": lambda op, y, **run: fista(op, y, threshkind="soft-percentile", perc=50, **run),
    "power iteration": lambda op, y, **run: power_iteration(op.H @ op, dtype=y.dtype, tol=0, **run),
    "L-BFGS": lambda op, y, **run: lbfgs(Cubic(op, y), _start(op, y), tol=0, memory=2, **run),
    "L-BFGS, bounds": lambda op, y, **run: lbfgs(Cubic(op, y), _start(op, y), tol=0, lower=-0.1, **run),
    "Gauss-Newton": lambda op, y, **run: gauss_newton(Cubic(op, y), _start(op, y), tol=0, inner=3, **run),
    "proximal gradient": lambda op, y, **run: proximal_gradient(
        L2(op, y), L1(0.3), _start(op, y), epsg=_falling(**run), acceleration="fista", objective=True, **run
    ),
    "ADMM": lambda op, y, **run: admm(L2(op, y, niter=1), L1(0.3), _start(op, y), 0.1, tol=0, **run),
    "ADMM, least squares": lambda op, y, **run: admm_l2(
        L1(0.3), op, y, op, _start(op, y), 0.1, inner=3, gfirst=True, **run
    ),
    # With a weight that leaves values between its cuts, so that the multiplier still moves.
    "linearised ADMM": lambda op, y, **run: linearized_admm(L2(), L1(9.0), op, _start(op, y), 1.0, 0.01, **run),
    "primal-dual": lambda op, y, **run: primal_dual(
        L2(), L1(0.3), op, _start(op, y), 0.05 * _falling(**run), 0.05, **run
    ),
}


def _ascending(op):
    """A preconditioner."""
    return Diagonal(np.arange(1.0, 1 + op.domain.size), op.domain, comm=op.comm)


def _falling(niter, **_):
    """A factor for each iteration."""
    return 1 / (1 + np.arange(niter))


def _start(op, y):
    return start(op, y.comm, y.dtype)[1]


@pytest.fixture
def folder(comm, tmp_path) -> Path:
    """A folder for checkpoints that is the same on all ranks."""
    return Path(comm.allgather_metadata(str(tmp_path / "checkpoints"))[0])


@pytest.fixture(autouse=True)
def no_disk(request, monkeypatch) -> None:
    """Do not wait for the disk: the tests write many small checkpoints, and no machine breaks down."""
    for module in ("collops.array.store", "collops.comm.files"):
        monkeypatch.setattr(f"{module}.sync", lambda path: None)


def assert_same(actual, expected) -> None:
    """Two results have the same bits."""
    np.testing.assert_array_equal(actual.x.local_array, expected.x.local_array)
    np.testing.assert_array_equal(actual.residual_norms, expected.residual_norms)
    assert actual.iterations == expected.iterations
    assert actual.details.keys() == expected.details.keys()
    for name, value in expected.details.items():
        other = actual.details[name]
        if hasattr(value, "local_array"):
            value, other = value.local_array, other.local_array
        np.testing.assert_array_equal(other, value)


@pytest.mark.parametrize("name", METHODS)
def test_what_goes_on_ends_where_it_would_have(comm, folder, name):
    split = name in (
        "cg",
        "cgls, one reduction",
        "lsqr",
        "lsqr with M",
        "gmres",
        "minres",
        "block CG",
        "fista",
        "ADMM",
        "primal-dual",
    )
    op, _, _, y = problem("block_diag" if split else "vstack", comm, "c8" if split else "f8")
    run = METHODS[name]
    expected = run(op, y, niter=5)
    begun = run(op, y, niter=3, checkpoint=folder)
    assert begun.resumed_from is None and begun.iterations == 3
    resumed = run(op, y, niter=5, checkpoint=folder, resume=True)
    assert resumed.resumed_from == 3
    assert_same(resumed, expected)
    assert os.listdir(folder) == ["iteration-000000005"]
    assert_same(run(op, y, niter=5, checkpoint=folder, resume=True), expected)


@pytest.mark.parametrize(
    "method",
    [
        lambda op, y, **run: power_iteration(op.H @ op, dtype=y.dtype, tol=1e-3, **run),
        lambda op, y, **run: cgls(op, y, tol=1e-3, **run),
        lambda op, y, **run: lsqr(op, y, atol=1e-3, btol=1e-3, **run),
        lambda op, y, **run: ista(op, y, eps=0.3, tol=1e-2, monitorres=True, **run),
    ],
)
def test_what_goes_on_stops_where_it_would_have(comm, folder, method):
    """Also where the test of the next iteration compares it with the last one before the checkpoint."""
    op, _, _, y = problem("vstack", comm, "f8")
    expected = method(op, y, niter=100)
    assert 1 < expected.iterations < 100
    method(op, y, niter=expected.iterations - 1, checkpoint=folder)
    resumed = method(op, y, niter=100, checkpoint=folder, resume=True)
    assert resumed.status is expected.status
    assert_same(resumed, expected)


@pytest.mark.parametrize("name", ["cgls", "cgls, one reduction", "lsqr", "fista", "proximal gradient"])
def test_on_another_number_of_ranks(comm, folder, name):
    """What all ranks have begun one of them ends alone, and the other way round."""
    blocks = [[random_matrix(n + 3, 6, "f8", n) for n in rows] for rows in ROWS[: comm.size]]
    together, _, values, y = problem("vstack", comm, "f8")
    own = comm.split(comm.rank)
    alone = VStack(joined(blocks), own)
    run, expected = METHODS[name], METHODS[name](together, y, niter=5).x.gather()
    data = from_global(values, alone.range, comm=own)

    run(together, y, niter=2, checkpoint=folder)
    if comm.rank == 0:
        result = run(alone, data, niter=3, checkpoint=folder, resume=True)
        assert result.resumed_from == 2
    comm.barrier()
    result = run(together, y, niter=5, checkpoint=folder, resume=True)
    assert result.resumed_from == 3
    assert_close(result.x.gather(), expected)


def test_a_nonlinear_problem_of_other_data_or_bounds(comm, folder):
    """Its data are known by its residual alone."""

    class Roots:
        def __init__(self, data):
            self.data = data

        def residual(self, x):
            return x * x - self.data

        def jacobian(self, x):
            return Diagonal(2 * x)

    x0, data = (full(Layout.split((9,), comm.size), value, comm=comm) for value in (2.0, 3.0))
    run = partial(lbfgs, x0=x0, checkpoint=folder)
    run(Roots(data), lower=0.1 * x0, niter=1)
    with pytest.raises(CheckpointError, match="its residual at the starting point differs"):
        run(Roots(1.01 * data), lower=0.1 * x0, niter=2, resume=True)
    with pytest.raises(CheckpointError, match="its option lower is"):
        run(Roots(data), lower=0.2 * x0, niter=2, resume=True)
    assert run(Roots(data), lower=0.1 * x0, niter=2, resume=True).resumed_from == 1


@pytest.mark.parametrize("special", [-np.inf, np.nan])
def test_infinite_bounds_do_not_conceal_the_others(comm, folder, special):
    op, _, _, y = problem("vstack", comm, "f8")
    x0 = _start(op, y)

    def bound(factor, value):
        result = factor * abs(x0)
        for leaf in result.leaves:
            leaf.local_array[:1] = value
        return result

    run = partial(lbfgs, Cubic(op, y), x0, checkpoint=folder)
    run(lower=bound(-0.1, special), niter=1)
    for other in (bound(-0.2, special), bound(-0.1, 0.0), bound(-0.1, -1e3), bound(-0.1, np.inf), abs(x0) * -0.1):
        with pytest.raises(CheckpointError, match="its option lower is"):
            run(lower=other, niter=2, resume=True)
    assert run(lower=bound(-0.1, special), niter=2, resume=True).resumed_from == 1


def test_where_nothing_is_yet(comm, folder):
    op, _, _, y = problem("vstack", comm, "f8")
    result = cgls(op, y, niter=3, tol=0, checkpoint=folder / "a" / "b", resume=True)
    assert result.resumed_from is None and result.iterations == 3
    assert cgls(op, y, niter=0, checkpoint=folder / "c").iterations == 0


def test_what_stopped_stays_stopped(comm, folder):
    op, _, _, y = problem("block_diag", comm, "f8")
    begun = cgls(op, y, niter=50, tol=1.0, checkpoint=folder, every=1)
    again = cgls(op, y, niter=50, tol=1.0, checkpoint=folder, resume=True)
    assert again.status is begun.status is Status.CONVERGED
    assert again.iterations == begun.iterations == again.resumed_from
    further = cgls(op, y, niter=50, tol=1e-9, checkpoint=folder, resume=True)
    assert further.resumed_from == begun.iterations < further.iterations


def test_a_checkpoint_is_never_overwritten_unasked(comm, folder):
    op, _, _, y = problem("vstack", comm, "f8")
    cgls(op, y, niter=3, tol=0, checkpoint=folder)
    with pytest.raises(CheckpointError, match="iteration 3: pass resume=True"):
        cgls(op, y, niter=3, tol=0, checkpoint=folder)
    assert cgls(op, y, niter=3, tol=0, checkpoint=folder, resume=True).resumed_from == 3


def test_other_problems_are_refused(comm, folder):
    op, _, _, y = problem("vstack", comm, "f8")
    run = {"checkpoint": folder, "resume": True}
    cgls(op, y, niter=3, damp=0.5, tol=0, **run)
    x0 = _start(op, y)
    for refused, reason in [
        (lambda: lsqr(op, y, niter=9, damp=0.5, **run), "a checkpoint of CGLS, not of LSQR"),
        (lambda: cgls(op, y * 1.001, niter=9, damp=0.5, **run), "data differ"),
        (lambda: cgls(1.001 * op, y, niter=9, damp=0.5, **run), "operator differs"),
        (lambda: cgls(op, y, x0, niter=9, damp=0.5, **run), "starting point differs"),
        (lambda: cgls(op, y.astype("f4"), niter=9, damp=0.5, **run), "precision is float64, not float32"),
        (lambda: cgls(op, y, niter=9, damp=0.6, **run), "option damp is 0.5, not 0.6"),
        (lambda: cgls(op, y, niter=2, damp=0.5, **run), "iteration 3, beyond niter=2"),
    ]:
        with pytest.raises(CheckpointError, match=reason):
            refused()
    assert cgls(op, y, niter=4, damp=0.5, tol=1e-30, **run).resumed_from == 3
    run["checkpoint"] = folder / "with M"
    cgls(op, y, niter=3, tol=0, M=_ascending(op), **run)
    for M in (2 * _ascending(op), None):
        with pytest.raises(CheckpointError, match="preconditioner differs"):
            cgls(op, y, niter=9, tol=0, M=M, **run)


def test_other_functions_are_refused(comm, folder):
    """The data of proximal methods are in their functions."""
    op, _, _, y = problem("vstack", comm, "f8")
    x0 = _start(op, y)

    def run(f, g, niter):
        return proximal_gradient(f, g, x0, tau=0.01, niter=niter, checkpoint=folder, resume=True)

    lower = -0.1 * abs(x0)
    lower.leaves[0].local_array[:1] = -np.inf
    f, g = L2(op, y, q=x0), Box(lower)
    run(f, g, 2)
    for name, others in [
        ("f", (L2(op, -y, q=x0), g)),
        ("f", (L2(1.001 * op, y, q=x0), g)),
        ("f", (L2(op, y), g)),
        ("f", (L2(op, y, q=x0, qgrad=False), g)),
        ("g", (f, Box(-0.1 * abs(x0)))),
        ("g", (f, Box(2.0 * lower))),
        ("g", (f, Box(lower, 1.0 + abs(x0)))),
        ("g", (f, 2.0 * L1(0.1 * abs(x0)))),
    ]:
        with pytest.raises(CheckpointError, match=f"its option {name} is"):
            run(*others, 3)
    assert run(f, g, 3).resumed_from == 2  # f has been used
    assert run(L2(op, y, q=x0), g, 4).resumed_from == 3


@pytest.mark.serial
def test_a_function_of_python_is_one_in_the_fingerprint(comm):
    y = full(Layout.split((3,), 1), 1.0)

    def of(niter):
        described = fingerprint(OneFunction(L2(b=y, niter=niter)), None, y, None)
        return described["options"]["f"]["_niter"]

    assert of(3) == 3
    assert of(lambda k: 3) == of(lambda k: 9) == {"type": "function"}  # its values are not known
    assert of(abs) == {"type": "builtin_function_or_method"}


def test_what_is_given_for_each_iteration_may_be_longer():
    about = {"method": "a", "data": {"dtype": "float64", "shapes": [], "norm": 1.0, "projection": [0.0, 0.0]}}
    about |= {"operator": None, "start": None}
    saved = about | {"options": {"steps": [1.0, 2.0, 3.0]}}
    for steps, same in [
        ([1.0, 2.0, 3.0, 4.0], True),
        ([1.0, 2.0, 5.0, 4.0], True),
        ([1.0, 3.0], False),
        ([1.0], False),
    ]:
        assert (difference(saved, about | {"options": {"steps": steps}}, 2) is None) == same


@pytest.mark.parametrize("harm", ["bit", "short", "missing", "metadata", "seal", "record"])
def test_damage_is_noticed_on_every_rank(comm, folder, harm):
    op, _, _, y = problem("vstack", comm, "f8")
    cgls(op, y, niter=3, tol=0, checkpoint=folder)
    if comm.rank == 0:
        place = folder / "iteration-000000003"
        chunks = sorted(path for path in (place / "arrays.zarr" / "state" / "r").glob("c*"))
        attributes = place / "arrays.zarr" / "zarr.json"
        if harm == "bit":
            values = bytearray(chunks[-1].read_bytes())
            values[3] ^= 4
            chunks[-1].write_bytes(values)
        elif harm == "short":
            chunks[0].write_bytes(chunks[0].read_bytes()[:-1])
        elif harm == "missing":
            chunks[-1].unlink()
        elif harm == "metadata":
            (place / "arrays.zarr" / "state" / "x" / "zarr.json").write_text("{")
        elif harm == "seal":
            (place / "seal.json").unlink()
        else:
            attributes.write_text(attributes.read_text().replace('"iteration": 3', '"iteration": 2'))
    comm.barrier()
    with pytest.raises(CheckpointError, match="is damaged"):
        cgls(op, y, niter=5, tol=0, checkpoint=folder, resume=True)
    assert os.listdir(folder) == ["iteration-000000003"]


@pytest.mark.filterwarnings("ignore:.*resuming from iteration 2:RuntimeWarning")
def test_the_one_before_serves_where_the_newest_is_damaged(comm, folder):
    """Both are there where a machine broke down after the newest was named."""
    op, _, _, y = problem("vstack", comm, "f8")
    run = partial(cgls, op, y, tol=0, checkpoint=folder, resume=True)
    run(niter=2)
    if comm.rank == 0:
        shutil.copytree(folder, folder.with_name("saved"))
    comm.barrier()
    run(niter=3)
    if comm.rank == 0:
        shutil.copytree(folder.with_name("saved"), folder, dirs_exist_ok=True)
        for path in (folder / "iteration-000000003").rglob("*"):
            if path.is_file():
                os.truncate(path, path.stat().st_size // 2)
    comm.barrier()
    result = run(niter=3)
    assert result.resumed_from == 2 and os.listdir(folder) == ["iteration-000000003"]
    assert_same(result, cgls(op, y, niter=3, tol=0))


def test_another_format_cannot_be_resumed(comm, folder, monkeypatch):
    op, _, _, y = problem("vstack", comm, "f8")
    with monkeypatch.context() as context:
        context.setattr("collops.solvers.checkpoint._FORMAT", 1)
        cgls(op, y, niter=3, tol=0, checkpoint=folder)
    with pytest.raises(CheckpointError, match="format 1 of another version of collops"):
        cgls(op, y, niter=5, tol=0, checkpoint=folder, resume=True)
    assert os.listdir(folder) == ["iteration-000000003"]


def test_other_folders_are_left_alone(comm, folder):
    op, _, _, y = problem("vstack", comm, "f8")
    if comm.rank == 0:
        folder.mkdir()
        (folder / "thesis.tex").touch()
    comm.barrier()
    for place, reason in [(folder, "other files than checkpoints"), (folder / "thesis.tex", "is a file")]:
        with pytest.raises(CheckpointError, match=reason):
            cgls(op, y, niter=3, checkpoint=place)
    assert os.listdir(folder) == ["thesis.tex"]


def test_room_is_needed_for_two_or_in_a_resumed_run_for_one_more(comm, folder, monkeypatch):
    op, _, _, y = problem("vstack", comm, "f8")
    run = {"tol": 0, "checkpoint": folder}
    cgls(op, y, niter=2, **run)
    comm.barrier()
    state = zarr.open_group(str(folder / "iteration-000000002" / "arrays.zarr"), mode="r")["state"]
    needed = sum(array.nbytes for _, array in state.members(max_depth=None) if isinstance(array, zarr.Array))

    def with_room(room, **more):
        monkeypatch.setattr("collops.solvers.checkpoint_folder.free_room", lambda _: room)
        return cgls(op, y, niter=3, **run | more)

    fresh = folder.with_name("fresh")
    with pytest.raises(CheckpointError, match=r"the checkpoints need .* and .*fresh has room for"):
        with_room(2 * needed - 1, checkpoint=fresh)
    assert with_room(2 * needed, checkpoint=fresh).iterations == 3
    with pytest.raises(CheckpointError, match="has room for"):
        with_room(needed - 1, resume=True)
    assert with_room(needed, resume=True).resumed_from == 2


@pytest.mark.parametrize("moment", ["writing", "removing"])
def test_the_one_before_is_kept_until_the_next_is_whole(comm, folder, monkeypatch, moment):
    op, _, _, y = problem("vstack", comm, "f8")
    expected = cgls(op, y, niter=5, tol=0)
    run = {"tol": 0, "checkpoint": folder, "every": 3, "resume": True}
    cgls(op, y, niter=2, **run)
    replace = os.replace

    def fail(source, target):
        name = "iteration-000000003" if moment == "writing" else "iteration-000000002"
        if Path(source).name == name:
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as context, pytest.raises(CheckpointError, match="No space left"):
        context.setattr("os.replace", fail)
        cgls(op, y, niter=5, **run)
    comm.barrier()
    result = cgls(op, y, niter=5, **run)
    assert result.resumed_from == (2 if moment == "writing" else 3)
    assert_same(result, expected)
    assert os.listdir(folder) == ["iteration-000000005"]


def test_options_that_make_no_sense(comm, folder):
    op, _, _, y = problem("vstack", comm, "f8")
    for options, reason in [
        ({"resume": True}, "resume needs checkpoint"),
        ({"every": 3}, "every needs checkpoint"),
        ({"checkpoint": 3}, "path of a folder"),
        ({"checkpoint": folder, "every": 0}, "every must be"),
        ({"checkpoint": folder, "every": "3 days"}, "every must be"),
        ({"checkpoint": folder, "every": True}, "every must be"),
    ]:
        with pytest.raises(InputError, match=reason):
            cgls(op, y, **options)
    assert not folder.exists()


def test_how_often():
    assert Every.parse(7) == Every.parse("7") == Every(iterations=7)
    assert Every.parse("30s") == Every(seconds=30.0) and Every.parse("1.5 h") == Every(seconds=5400.0)
    assert Every.parse(None) == Every(seconds=600.0)


def test_time_is_that_of_whoever_is_first(comm, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("collops.solvers.checkpoint.time", SimpleNamespace(monotonic=lambda: clock[0]))
    timer = Timer(Every(seconds=10.0), Signals(), comm, 0)
    written = []
    for iteration in range(1, 13):
        clock[0] += 3.0 if comm.rank == 0 else 1.0
        written += [iteration] if timer.after(iteration)[0] else []
    assert written == [4, 8, 12]


def test_no_checkpoint_no_cost(comm, folder, monkeypatch):
    monkeypatch.setattr("collops.solvers.checkpoint.time", SimpleNamespace(monotonic=float))  # no iteration takes long
    op, _, _, y = problem("vstack", comm, "f8")
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    counts = []
    for options in ({}, {"checkpoint": folder, "every": 100}):
        with profile.count_messages() as sent:
            fista(op, y, alpha=1e-3, niter=20, tol=0, callback=None, **options)
        counts.append(sent["allreduce"])
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before
    # The ranks agree after the iterations 1, 3, 7 and 15, and describe the problem before.
    assert counts[1] - counts[0] <= 10


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_to_one_rank_stops_all(comm, folder, number):
    op, _, _, y = problem("vstack", comm, "f8")
    run = partial(fista, op, y, alpha=1e-3, niter=40, tol=0)
    expected = run()
    before = signal.getsignal(number)

    def callback(iteration, view):
        if iteration == 5 and comm.rank == comm.size - 1:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match=number.name) as caught:
        run(callback=callback, checkpoint=folder, every="1h")
    error = caught.value
    assert error.signal == number and error.path == str(folder) and error.on_all_ranks and 5 <= error.iteration < 40
    assert error.exit_code == (130 if number == signal.SIGINT else 75)
    assert signal.getsignal(number) is before
    assert len(set(comm.allgather_metadata(error.iteration))) == 1
    result = run(checkpoint=folder, resume=True)
    assert result.resumed_from == error.iteration
    assert_same(result, expected)


@pytest.mark.serial
def test_a_second_ctrl_c_does_not_wait_for_a_checkpoint():
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # the first one may be a warning of the queue
        assert signals.received == signal.SIGTERM


def test_a_long_write_is_announced_by_the_first_rank(comm, folder, capfd, monkeypatch):
    op, _, _, y = problem("vstack", comm, "f8")

    def run(name, **options):
        fista(op, y, alpha=1e-3, niter=2, tol=0, checkpoint=folder / name, **options)
        return capfd.readouterr().err

    assert "writing" not in run("short", progress=True)
    monkeypatch.setattr("collops.solvers.checkpoint._ANNOUNCED_BYTES", 100)
    lines = [line for line in run("long", progress=True).splitlines() if "writing" in line]
    assert len(lines) == (comm.rank == 0)
    if lines:
        # On the disk there are also the metadata and the checksums.
        used = sum(path.stat().st_size for path in (folder / "long").rglob("*") if path.name.startswith("c."))
        size = re.fullmatch(rf"writing a checkpoint to {folder}/long \(([\d.]+) KiB\)", lines[0])
        assert size and 0.5 * used < 1024 * float(size[1]) <= 1.1 * used
    assert "writing" not in run("quiet", progress=False)


def test_a_file_system_that_does_not_answer(comm, folder, monkeypatch):
    """A named pipe that nobody writes: opening it takes for ever."""
    op, _, _, y = problem("vstack", comm, "f8")
    released = []

    def blocked(unfinished):
        pipe = folder / "pipe"
        os.mkfifo(pipe)
        released.append(pipe)
        pipe.read_text()

    monkeypatch.setenv("COLLOPS_TIMEOUT", "8")  # rank 0 waits nine tenths of it
    monkeypatch.setattr("collops.solvers.checkpoint_folder._seal", blocked)
    begin = time.monotonic()
    with pytest.raises(CheckpointError, match=r"does not respond within 7.2 s") as caught:
        cgls(op, y, niter=3, tol=0, checkpoint=folder)
    assert caught.value.on_all_ranks and 7 < time.monotonic() - begin < 30
    assert comm.allreduce(1.0) == comm.size  # all ranks are in step
    for pipe in released:
        pipe.write_text("")
        pipe.unlink()


@pytest.mark.serial
def test_threads_have_no_signals(tmp_path):
    from collops import world

    op, _, _, y = problem("vstack", world(), "f8")
    results = []
    thread = threading.Thread(target=lambda: results.append(cgls(op, y, niter=3, checkpoint=tmp_path / "a")))
    thread.start()
    thread.join()
    assert results[0].iterations == 3


def test_the_arrays_are_ordinary(comm, folder):
    """Anything that reads Zarr reads the iterate."""
    op, _, _, y = problem("block_diag", comm, "f8")
    result = cgls(op, y, niter=3, tol=0, checkpoint=folder)
    stored = zarr.open_group(folder / "iteration-000000003" / "arrays.zarr", mode="r")
    np.testing.assert_array_equal(stored["state/x"][...], result.x.gather())
    np.testing.assert_array_equal(np.sqrt(stored["rows"][:, 1]), result.residual_norms)
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(folder)


def test_two_solvers_with_one_folder(comm, folder):
    """The second is refused at its start, and the first is not disturbed."""
    op, _, _, y = problem("vstack", comm, "f8")
    expected = cgls(op, y, niter=5, tol=0)
    errors = []

    def second(iteration, view):
        if iteration == 2:
            with pytest.raises(CheckpointError, match=r"is in use by process \d+ on .*, since") as caught:
                cgls(op, y, niter=3, tol=0, checkpoint=folder, resume=True)
            errors.append(caught.value)

    result = cgls(op, y, niter=5, tol=0, checkpoint=folder, callback=second)
    assert len(errors) == 1 and errors[0].on_all_ranks
    assert f"process {os.getpid()} " in str(errors[0]) or comm.rank > 0
    assert_same(result, expected)
    assert os.listdir(folder) == ["iteration-000000005"]


def test_a_lock_ends_with_the_solver(comm, folder):
    op, _, _, y = problem("vstack", comm, "f8")
    run = partial(cgls, op, y, tol=0, checkpoint=folder)
    run(niter=2)
    with pytest.raises(CheckpointError, match="pass resume=True"):
        run(niter=2)

    def stop(iteration, view):
        raise InputError("enough")

    with pytest.raises(InputError, match="enough"):
        run(niter=3, resume=True, callback=stop)
    comm.barrier()
    assert run(niter=3, resume=True).resumed_from == 2


def test_what_killed_runs_leave_is_removed(comm, folder):
    op, _, _, y = problem("vstack", comm, "f8")
    cgls(op, y, niter=2, tol=0, checkpoint=folder)
    comm.barrier()
    if comm.rank == 0:
        for name in (".unfinished", ".iteration-000000003-0a1b2c3d", ".iteration-000000001-removed"):
            (folder / name).mkdir()
            (folder / name / "seal.json").touch()
        for name in (".lock", ".iteration-000000003-0a1b2c3d.lock", ".collops-0a1b2c3d.lock"):
            (folder / name).touch()
    comm.barrier()
    assert cgls(op, y, niter=3, tol=0, checkpoint=folder, resume=True).resumed_from == 2
    assert os.listdir(folder) == ["iteration-000000003"]


def test_ranks_in_different_folders_are_one_error(comm, tmp_path, monkeypatch):
    if comm.size == 1:
        pytest.skip("one rank is in one folder")
    monkeypatch.setattr("collops.comm.files._SECONDS_TO_APPEAR", 0.2)
    op, _, _, y = problem("vstack", comm, "f8")
    monkeypatch.chdir(tmp_path)  # each rank has another one
    (tmp_path / "mine").mkdir()
    with pytest.raises(CheckpointError, match=r"mine is not the same folder on rank 0 on .* and on rank") as caught:
        cgls(op, y, niter=3, checkpoint="mine")
    assert caught.value.on_all_ranks
    assert os.listdir(tmp_path / "mine") == []


HOLDER = """
import os, signal, sys
import numpy as np
import collops

def wait(iteration, view):
    if iteration == 4:
        print(True, flush=True)
        signal.pause()

A = collops.Diagonal(np.arange(1.0, 9))
collops.cgls(A, collops.ones(8), niter=9, tol=0, checkpoint=sys.argv[1], every=2, callback=wait)
"""


@pytest.mark.serial
def test_a_killed_run_holds_no_lock(tmp_path):
    """A second process is refused, with the holder's name, until the first is killed; it then resumes."""
    folder = tmp_path / "checkpoints"
    A = Diagonal(np.arange(1.0, 9))
    y = from_global(np.ones(8))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "True\n"
            with pytest.raises(CheckpointError, match=f"is in use by process {holder.pid} on "):
                cgls(A, y, niter=9, tol=0, checkpoint=folder, resume=True)
        finally:
            holder.kill()
    result = cgls(A, y, niter=9, tol=0, checkpoint=folder, resume=True)
    assert result.resumed_from == 2
    assert_same(result, cgls(A, y, niter=9, tol=0))
