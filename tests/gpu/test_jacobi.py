"""The programming models of devices against plain NumPy, bit for bit, and against what the host does."""

from __future__ import annotations

import time

import numpy as np
import pytest

from collops import profile
from collops.backend import engine
from collops.jacobi import MODELS, Problem, make, obstacle, run
from collops.jacobi.job import Options, run_job
from collops.jacobi.measure import Reference
from collops.jacobi.one_process import OneProcess
from collops.jacobi.timeline import HOST, record_spans, shares_of, spans_of
from tests.apps.jobs import Listener
from tests.jacobi.model import relaxed
from tests.jacobi.test_variants import compare, process_grids

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
DEVICE = [name for name, model in MODELS.items() if "device" in model.memory and name != "single"]
ONE_PROCESS = [name for name in DEVICE if issubclass(MODELS[name].variant, OneProcess)]


def made(name, problem, comm, *arguments):
    reason = obstacle(name, comm, engine("cupy"))
    if reason is not None:
        pytest.skip(reason)
    return make(name, problem, comm, engine("cupy"), *arguments)


def check(variant, want, result, norms):
    got = cupy.asnumpy(variant.values)
    np.testing.assert_array_equal(got, want[variant.grid.layout.slices(variant.comm.rank)])
    np.testing.assert_allclose(list(result.norms.values()), norms[:: variant.problem.check], rtol=1e-4)
    variant.free()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("nx", "ny"), [(9, 23), (261, 69), (1030, 41)])
@pytest.mark.parametrize("name", DEVICE)
def test_equals_numpy_bit_for_bit(comm, name, nx, ny, dtype):
    problem = Problem(nx=nx, ny=ny, iterations=11, dtype=dtype)
    want, norms = relaxed(problem, 11)
    for process_grid in process_grids(comm.size):
        variant = made(name, problem, comm, process_grid)
        check(variant, want, run(variant), norms)


@pytest.mark.parametrize("name", DEVICE)
def test_many_sweeps_and_few_checks(comm, name):
    """Several stretches of odd length, so that both grids come first in one. Far from edges values are subnormal."""
    problem = Problem(nx=317, ny=83, iterations=231, check=4)
    want, norms = relaxed(problem, 231)
    assert np.count_nonzero((want != 0) & (np.abs(want) < np.finfo(want.dtype).tiny)) > 1000
    variant = made(name, problem, comm)
    check(variant, want, run(variant), norms)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_single(comm, dtype):
    problem = Problem(nx=517, ny=130, iterations=9, dtype=dtype)
    want, norms = relaxed(problem, 9)
    variant = make("single", problem, comm.split(comm.rank), engine("cupy"))
    check(variant, want, run(variant), norms)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ONE_PROCESS)
def test_one_process_with_a_gpu_several_times(comm, name, dtype):
    """Blocks of uneven sizes, also of one row, in the memory of one GPU, with streams and threads of their own."""
    here, alone = cupy.cuda.Device().id, comm.split(comm.rank)
    for nx, ny, iterations in ((517, 132, 41), (317, 132, 231), (140, 5, 7)):
        problem = Problem(nx=nx, ny=ny, iterations=iterations, check=4, dtype=dtype)
        want, norms = relaxed(problem, iterations)
        for parts in (1, 2, 3):
            variant = make(name, problem, alone, engine("cupy"), devices=[here] * parts)
            check(variant, want, run(variant), norms)


@pytest.mark.parametrize("name", ONE_PROCESS)
def test_one_process_with_all_gpus(comm, name):
    """Large blocks, whose sweeps overlap in time, on all GPUs that the process sees, twice each."""
    if comm.size > 1:
        pytest.skip("one process for all GPUs")
    problem = Problem(nx=4000, ny=4003, iterations=120)
    reference = Reference(problem, comm, engine("cupy"))
    devices = [*range(cupy.cuda.runtime.getDeviceCount())] * 2
    variant = make(name, problem, comm, engine("cupy"), devices=devices)
    result = run(variant)
    assert reference.difference(variant).points == 0
    assert result.norms == pytest.approx(reference.run.norms, rel=1e-4)
    variant.free()


def test_command_compares_all_models_by_default(comm, tmp_path_factory):
    """``collops jacobi --compare``: after 1000 iterations no point of any model differs from one rank."""
    folder = comm.allgather_metadata(str(tmp_path_factory.mktemp("jacobi")))[0]
    outcome = run_job(Options(compare=True, engine="cupy", out=f"{folder}/out"), comm, Listener(), print)
    if comm.rank == 0:
        names = [measured.name for measured in outcome.variants]
        assert {"nccl", "peer", "persistent", "blocked"} <= {*names}
        assert {measured.difference.points for measured in outcome.variants} == {0}
        assert {measured.iterations for measured in outcome.variants} == {1000}


@pytest.mark.parametrize("name", ["staged", "mpi", "mpi_overlap", "nccl", "nccl_overlap", "nccl_graphs", "blocked"])
def test_ranks_without_points(comm, name):
    problem = Problem(nx=6, ny=3, iterations=5)
    want, norms = relaxed(problem, 5)
    variant = made(name, problem, comm, (comm.size, 1))
    check(variant, want, run(variant), norms)


@pytest.mark.parametrize("name", ["nccl", "nccl_overlap", "nccl_graphs"])
def test_short_rows_of_nccl_go_by_nccl(comm, name, monkeypatch):
    """Not by stores into the memory of other GPUs, as other exchanges of this size do."""
    problem = Problem(nx=40, ny=37, iterations=5)
    want, norms = relaxed(problem, 5)
    variant = made(name, problem, comm)
    short = variant.comm.transport_of(cupy.empty(0)).short
    if short is None:
        pytest.skip("all messages go by NCCL here")
    monkeypatch.setattr(short, "exchange", None)
    check(variant, want, run(variant), norms)


@pytest.mark.parametrize("name", ["single", "nccl_overlap", "persistent", "nccl_graphs"])
def test_timeline(comm, name):
    problem = Problem(nx=200, ny=100, iterations=4)
    engine_used = engine("cupy")
    if name == "single":
        comm = comm.split(comm.rank)
    variant = made(name, problem, comm)
    with profile.record() as recording:
        variant.advance(4, cupy.zeros(4))
    spans = spans_of(recording, engine_used)
    assert spans
    assert all(0 <= span.begin <= span.end for span in spans)
    assert {span.lane for span in spans} == ({0, 1, HOST} if name == "nccl_overlap" else {0, HOST})
    variant.free()


@pytest.mark.parametrize("name", ["single", "mpi", "nccl", "nccl_overlap", "nccl_graphs", "persistent"])
def test_shares_of_an_iteration(comm, name):
    """Sweeps take what the same sweeps take by another clock; what the timed run took longer is a gap."""
    if name == "single":
        comm = comm.split(comm.rank)
    variant = made(name, Problem(nx=4096, ny=4096), comm)
    count, norms = 20, cupy.zeros(20)
    shares = shares_of(record_spans(variant, count, ahead=True), count)
    assert min(shares) >= 0
    whole = shares.sweeps + shares.exposed + shares.gaps
    seconds = []
    for _ in range(5):
        variant.record(count)
        cupy.cuda.Device().synchronize()
        comm.barrier()
        begin = time.perf_counter()
        variant.advance(count, norms)
        cupy.cuda.Device().synchronize()
        seconds.append((time.perf_counter() - begin) / count)
    run_time = min(seconds)
    assert shares.sweeps <= 1.2 * run_time  # held back and launched at once, work is not slower
    if name in ("single", "nccl_graphs", "persistent"):  # nothing but sweeps, by their marks
        assert shares.exposed == 0
        assert shares.sweeps == pytest.approx(run_time, rel=0.5)
    assert shares_of([], count, 1e-3).gaps == pytest.approx(1e-3)
    longer = shares_of(record_spans(variant, count, ahead=True), count, 2 * whole)
    assert longer.sweeps + longer.exposed + longer.gaps >= 1.99 * whole
    variant.free()


def test_a_delay_of_the_host_is_a_gap_of_the_device(comm):
    """While the host launches ahead, the device is not slowed down; the run itself shows the gap.

    A device that is ahead waits for its neighbours in messages instead. In every iteration there is one that is not:
    the gaps of all ranks together are at least as long as the delay, less the sweep and the messages.
    """
    variant = made("nccl", Problem(nx=512, ny=512), comm)
    turns = variant.turns

    def slow():
        time.sleep(2e-4)
        return turns()

    variant.turns = slow
    spans = record_spans(variant, 20, ahead=True)
    held, launched = shares_of(spans, 20), shares_of(record_spans(variant, 20), 20)
    assert held.gaps < 1e-4
    assert held.exposed < 1e-4
    assert launched.sweeps < 1e-4
    assert launched.sweeps + launched.exposed + launched.gaps > 1.9e-4  # an iteration is not shorter than the delay
    assert sum(comm.allgather_metadata(launched.gaps)) > 1e-4
    assert shares_of(spans, 20, 1e-3).gaps > 8e-4
    variant.free()


def test_more_than_two_to_the_31_points(comm):
    """Addresses beyond 32 bits: the last row of a grid of 9 GiB a copy is where it belongs."""
    free, _ = cupy.cuda.runtime.memGetInfo()
    if free < 40 << 30:
        pytest.skip("needs 40 GiB of free memory")
    alone = comm.split(comm.rank)
    if comm.rank == 0:
        problem = Problem(nx=1 << 16, ny=(1 << 15) + 200, iterations=3)
        variant = make("single", problem, alone, engine("cupy"))
        run(variant)
        rows = slice(problem.ny - 6, problem.ny - 2)
        # Near the last rows, a narrow grid with the same boundary values does the same.
        small = np.zeros((8, 64), "float32")
        small[:, 0] = problem.boundary(problem.ny - 10, problem.ny - 2)
        for _ in range(3):
            new = small.copy()
            around = ((small[1:-1, :-2] + small[1:-1, 2:]) + small[2:, 1:-1]) + small[:-2, 1:-1]
            new[1:-1, 1:-1] = np.float32(0.25) * around
            small = new
        got = cupy.asnumpy(variant.values[rows, :8])
        np.testing.assert_array_equal(got[0], small[4, :8])
    comm.barrier()


def test_compare_helper_sees_a_difference(comm):
    """A wrong bit must not pass."""
    problem = Problem(nx=40, ny=30, iterations=3)
    want, _ = relaxed(problem, 3)
    variant = make("mpi", problem, comm, engine("numpy"))
    run(variant)
    compare(variant, want)
    variant.values[0, 3] = np.nextafter(variant.values[0, 3], np.float32(9))
    with pytest.raises(AssertionError):
        compare(variant, want)
