"""The benchmarks of arrays, solvers and migration, small and beside the peer where it is installed."""

from __future__ import annotations

import importlib.util
import re
import sys

import numpy as np
import pytest
import scipy.stats

from collops.backend import engine
from collops.errors import CollopsError
from collops_bench.arrays import dot_of_integers
from collops_bench.cgls import SERIAL
from collops_bench.page import report_page
from collops_bench.peers import PEER, load_peer, why_no_package
from collops_bench.record import Measurement, read_record, write_record
from collops_bench.registry import BENCHMARKS, Context, Options
from collops_bench.robustness import OURS, PLAIN, median_and_doubt
from collops_bench.shared import agreement, fill, largest_error
from collops_bench.starforest import stencil_rows
from collops_bench.timing import Spread
from tests.bench.records import record

PEER_INSTALLED = importlib.util.find_spec("pylops_mpi") is not None


def options_for(comm, most_ranks: int = 2) -> Options:
    """With more ranks than cores the peer's messages and compilations take far longer than all else."""
    return Options(quick=True, peer=comm.size <= most_ranks)


def measured(name: str, comm, most_ranks: int = 2) -> list[Measurement]:
    """Measure, beside the peer on so many ranks at most."""
    options = options_for(comm, most_ranks)
    there = options.peer and PEER_INSTALLED
    found = list(BENCHMARKS[name].measure(Context(comm, engine("numpy"), options)))
    for measurement in found:
        assert measurement.ours in measurement.timings
        if measurement.peer is not None:
            assert (PEER in measurement.timings) is there
            assert (PEER in measurement.missing) is not there
        assert all(one.error <= one.tolerance for one in measurement.checks)
        assert len(measurement.checks) >= there * (measurement.peer is not None)
    return found


def test_arrays(comm) -> None:
    found = measured("arrays", comm)
    assert [one.case for one in found] == ["copy", "dot", "axpby"] * 2
    for one in found[1:3]:
        assert one.figures["collops"]["of_copy"] > 0
    assert found[1].messages == ({"allreduce": 1} if comm.size > 1 else {})
    assert found[2].messages == {}


def test_cgls(comm) -> None:
    found = measured("cgls", comm)
    assert {one.case.split(" of ")[0] for one in found} == {"VStack", "BlockDiag"}
    for one in found:
        allreduces = one.messages.get("allreduce", 0)
        assert (allreduces > 0) is (comm.size > 1)
        assert allreduces <= (3 if one.case.startswith("VStack") else 2)
        assert sum(one.messages.values()) == allreduces
        assert ("PyLops, serial" in one.timings) is (comm.size == 1)


def test_robustness(comm) -> None:
    found = measured("robustness", comm)
    assert [one.case for one in found] == [
        f"CGLS iteration, VStack of {each}" for each in ("diagonals", "first derivatives", "matrices")
    ]
    for one in found:
        assert set(one.timings) == {OURS, PLAIN} and len(one.checks) == 2
        assert one.timings[OURS].clocks["difference"].rounds >= 2
        assert np.isfinite([*one.figures[OURS].values()]).all()


@pytest.mark.serial
def test_paired_differences_may_be_negative(comm, monkeypatch, tmp_path):
    """In the last round a short solve took longer than a long one: it has no time of an iteration, but counts."""
    times = {
        PLAIN: {2: np.array([1.0, 1.0, 1.0]), 7: np.array([3.0, 3.0, 3.0])},
        OURS: {2: np.array([1.0, 1.0, 1.0]), 7: np.array([2.5, 2.0, 0.5])},
    }
    monkeypatch.setattr("collops_bench.robustness._times", lambda *_, **__: times)
    written = record("robustness")
    written.measurements[:] = measured("robustness", comm)
    write_record(written, tmp_path / "one.json")
    read = read_record(tmp_path / "one.json")
    assert read.measurements == written.measurements
    for one in read.measurements:
        assert one.timings[PLAIN].wall == Spread(0.4, 0.4, 0.4, 3)
        assert one.timings[OURS].wall == Spread(0.25, 0.2, 0.3, 2)
        assert one.timings[OURS].clocks["difference"] == Spread(-0.2, -0.5, pytest.approx(-0.1), 3)
        assert one.figures[OURS]["added, percent"] == pytest.approx(-50.0)
    page = report_page({"one.json": read})
    assert page.count("-200 ms (-500 ms to -100 ms)") == len(read.measurements)
    assert "paired difference" in page and "paired difference" not in report_page({"one.json": record()})


@pytest.mark.serial
def test_a_median_lies_in_its_interval():
    """With 95 % probability it does, and in no narrower one, by the binomial distribution."""
    median, doubt = median_and_doubt(np.random.default_rng(0).permutation(100.0 * np.arange(100)))
    assert (median, doubt) == (4950.0, 1000.0)  # from number 40 to number 60
    below = scipy.stats.binom(100, 0.5).cdf
    assert below(59) - below(39) > 0.95 > below(58) - below(40)


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="PyLops' fast engine needs Numba")
def test_lsm(comm) -> None:
    # Each rank compiles the peer's kernels anew, for seconds.
    found = measured("lsm", comm, most_ranks=1)
    assert [one.case for one in found] == ["forward", "adjoint", "iteration", "streamed", "streamed"]
    line, area = found[3:]
    assert len(line.parameters["image"]) == 2 and len(area.parameters["image"]) == 3
    for one, names in ((line, ("SEG-Y", "Zarr")), (area, ("Zarr",))):
        assert set(one.timings) == {f"{way}, {name}" for way in ("resident", "streamed") for name in names}
        assert len(one.checks) == len(one.timings) - 1 and "operator bytes" in one.figures[one.ours]


@pytest.mark.serial
@pytest.mark.parametrize("size", [1, 7, 35, 36, 1000])
def test_dot_of_integers(size: int) -> None:
    assert dot_of_integers(size) == sum((i % 7 - 2) * (i % 5 - 1) for i in range(size))


def test_operators(comm) -> None:
    found = list(BENCHMARKS["operators"].measure(Context(comm, engine("numpy"), options_for(comm))))
    cases = {one.case for one in found}
    for name in ("FirstDerivative", "Laplacian", "Halo", "BlockDiag of diagonals", "MatrixMult, summa", "FFTND", "MDC"):
        assert {f"{name}, forward", f"{name}, adjoint"} <= cases
    assert {"Sliding, forward", "Sliding, adjoint"} <= cases
    for one in found:
        assert "collops" in one.timings
        assert (PEER in one.timings) is not (PEER in one.missing)
        if one.case.startswith("Sliding"):
            assert one.messages == ({"exchange": 1} if comm.size > 1 else {})
            assert len(one.checks) - 1 == (SERIAL in one.timings) == (comm.size == 1)
        else:
            assert len(one.checks) == (PEER in one.timings)
        assert all(each.error <= each.tolerance for each in one.checks)
        if one.case.startswith(("FirstDerivative", "SecondDerivative", "Laplacian", "Gradient", "Halo")):
            assert one.messages == ({"exchange": 1} if comm.size > 1 else {})


def test_toeplitz(comm) -> None:
    found = list(BENCHMARKS["toeplitz"].measure(Context(comm, engine("numpy"), options_for(comm))))
    assert {one.case for one in found} == {"BlockToeplitz, forward", "BlockToeplitz, adjoint"}
    for one in found:
        assert one.messages == ({"allreduce": 1} if comm.size > 1 and "forward" in one.case else {})
        (each,) = one.checks
        assert each.error <= each.tolerance and one.figures["collops"]["of_copy"] > 0


def test_products(comm) -> None:
    found = list(BENCHMARKS["products"].measure(Context(comm, engine("numpy"), options_for(comm))))
    others = {"FFTND": ("mpi4py_fft", "mpi4py-fft"), "27-point stencil": ("petsc4py", "PETSc")}
    assert [one.case for one in found] == [f"{name}, {way}" for name in others for way in ("forward", "adjoint")]
    for one in found:
        module, other = others[one.case.partition(",")[0]]
        assert (other in one.timings) is (options_for(comm).peer and importlib.util.find_spec(module) is not None)
        assert ("SciPy" in one.timings) is (comm.size == 1)
        assert other in one.timings or re.search("not installed: pip install|not asked for", one.missing[other])
        # The dot test, and every other program against ours.
        assert len(one.checks) == len(one.timings)
        assert all(each.error <= each.tolerance for each in one.checks)
        assert one.peer in one.timings or set(one.timings) == {"collops"}
        assert sum(one.messages.values()) == (comm.size > 1)


def test_limits(comm) -> None:
    found = list(BENCHMARKS["limits"].measure(Context(comm, engine("numpy"), Options(quick=True))))
    cases = [one.case for one in found]
    assert cases.count("copy") == 3
    assert cases.count("matrix product") == 1
    assert cases.count("allreduce") == cases.count("exchange") == (5 if comm.size > 1 else 0)
    for one in found:
        assert all(each.error <= each.tolerance for each in one.checks)
        assert all(figure > 0 for figure in one.figures[one.ours].values())


def test_scaling(comm) -> None:
    found = list(BENCHMARKS["scaling"].measure(Context(comm, engine("numpy"), Options(quick=True))))
    assert [one.case for one in found] == ["migration", "CGLS", "sparse product"]
    for one in found:
        assert all(each.error <= each.tolerance for each in one.checks)
        # What a prediction reckons with is what was sent.
        sent = sum(one.messages.values())
        assert sum(count for _, count, _ in one.parameters["messages"]) == sent
        assert (sent > 0) is (comm.size > 1)


@pytest.mark.serial
def test_a_sparse_product_counts_its_entries(comm) -> None:
    *_, sparse = BENCHMARKS["scaling"].measure(Context(comm, engine("numpy"), Options(quick=True)))
    side, _, planes = sparse.parameters["cube"]
    assert sparse.parameters["operations"] == 2 * stencil_rows(side, 0, planes).nnz


def test_free_memory_is_the_same_on_all_ranks(comm) -> None:
    room = Context(comm, engine("numpy"), Options()).free_memory()
    assert set(comm.allgather_metadata(room)) == {room}
    assert 1 << 20 < room < 1 << 50


@pytest.mark.serial
def test_errors_of_all_pieces_count(monkeypatch) -> None:
    monkeypatch.setattr("collops_bench.shared._PIECE", 4)
    vector = np.full(10, np.nan)
    assert np.isnan(largest_error(np, vector, lambda index: index))
    fill(np, vector, lambda index: index % 3, first=5)
    assert vector.tolist() == [2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    for place, wrong, largest in ((9, 3.0, 1.0), (0, 7.0, 5.0), (5, np.nan, np.nan)):
        vector[place] = wrong
        np.testing.assert_equal(largest_error(np, vector, lambda index: index % 3, first=5), largest)


def test_a_peer_that_does_not_load_is_left_out_with_the_reason(comm, monkeypatch, tmp_path):
    """A package that it needs is missing on one rank: no rank calls it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "pylops_mpi"]:
        monkeypatch.delitem(sys.modules, name)
    module = "import nothing_of_this_name\n" if comm.rank == comm.size - 1 else ""
    (tmp_path / "pylops_mpi.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    found = load_peer(Context(comm, engine("numpy"), Options()))
    sys.modules.pop("pylops_mpi", None)
    assert found == "pylops-mpi does not load: No module named 'nothing_of_this_name'"


def test_a_package_is_left_out_with_the_reason(comm):
    context = Context(comm, engine("numpy"), Options())
    missing = "nothing-of-this-name is not installed: pip install nothing-of-this-name"
    assert why_no_package(context, "nothing_of_this_name") == missing
    assert why_no_package(context, "nothing.part", package="some") == "some is not installed: pip install some"
    assert why_no_package(context, "scipy", memory="device") == "measured on GPUs only"
    alone = None if comm.size == 1 else "it has one process"
    assert why_no_package(context, "scipy", memory="host", one_process=True) == alone


def test_a_rank_with_nothing_agrees_and_a_wrong_answer_does_not(comm):
    right = np.arange(3.0 * comm.rank)
    context = Context(comm, engine("numpy"), Options())
    (found,) = agreement(context, "parts", {"ours": lambda: right, "theirs": lambda: right}, 1e-12)
    assert found.error == 0.0
    with pytest.raises(CollopsError, match=r"parts, ours against theirs: the error is 0\.5"):
        agreement(context, "parts", {"ours": lambda: np.ones(4), "theirs": lambda: np.full(4, 2.0)}, 1e-12)
