"""Every programming model of hosts against NumPy, bit for bit, on any number of ranks and process grids."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from collops import profile
from collops.backend import engine
from collops.errors import InputError, LayoutError
from collops.jacobi import MODELS, Grid, Problem, make, obstacle, run
from collops.jacobi.measure import STRETCH
from collops.jacobi.numpy_sweeps import Sweeps
from collops.jacobi.one_process import OneProcess
from collops.jacobi.timeline import spans_of
from collops.profile import count_messages
from tests.jacobi.model import relaxed

HOST = [
    name
    for name, model in MODELS.items()
    if "host" in model.memory and name != "single" and not issubclass(model.variant, OneProcess)
]


def process_grids(size):
    """All process grids of so many ranks."""
    return [(down, size // down) for down in range(1, size + 1) if size % down == 0]


def compare(variant, want):
    """This rank's points against its part of the whole grid."""
    np.testing.assert_array_equal(variant.values, want[variant.grid.layout.slices(variant.comm.rank)])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("nx", "ny"), [(9, 12), (37, 31), (300, 7)])
@pytest.mark.parametrize("name", HOST)
def test_equals_numpy_bit_for_bit(comm, name, nx, ny, dtype):
    nx, ny = max(nx, comm.size + 1), max(ny, comm.size + 3)  # every rank has points, in any process grid
    problem = Problem(nx=nx, ny=ny, iterations=7, check=1, dtype=dtype)
    want, norms = relaxed(problem, 7)
    for process_grid in process_grids(comm.size):
        variant = make(name, problem, comm, engine("numpy"), process_grid)
        result = run(variant)
        compare(variant, want)
        assert result.iterations == 7
        tolerance = 1e-4 if dtype == "float32" else 1e-12
        np.testing.assert_allclose([result.norms[i] for i in range(7)], norms, rtol=tolerance)
        variant.free()


@pytest.mark.parametrize("name", ["mpi", "mpi_overlap"])
def test_ranks_without_points(comm, name):
    """More ranks than rows: halos come from the ranks that have the rows."""
    problem = Problem(nx=6, ny=3, iterations=5)
    want, _ = relaxed(problem, 5)
    variant = make(name, problem, comm, engine("numpy"), (comm.size, 1))
    run(variant)
    compare(variant, want)
    wide = Problem(nx=3, ny=8, iterations=5)
    variant = make(name, wide, comm, engine("numpy"), (1, comm.size))
    run(variant)
    compare(variant, relaxed(wide, 5)[0])


def test_one_sided_variants_need_points(comm):
    if comm.size == 1:
        pytest.skip("a world of one has all points")
    with pytest.raises(LayoutError, match="without any"):
        make("shared", Problem(nx=6, ny=3), comm, engine("numpy"))


def test_single(comm):
    alone = comm.split(comm.rank)
    problem = Problem(nx=33, ny=20, iterations=6)
    variant = make("single", problem, alone, engine("numpy"))
    run(variant)
    compare(variant, relaxed(problem, 6)[0])


@pytest.mark.parametrize("name", ["mpi_overlap", "shared"])
def test_without_numba(comm, name):
    """Hosts without Numba give the same bits, from a few rows at a time."""
    problem = Problem(nx=700, ny=20 * comm.size + 2, iterations=4)
    want, norms = relaxed(problem, 4)
    for process_grid in process_grids(comm.size):
        variant = make(name, problem, comm, engine("numpy"), process_grid)
        variant.sweeps = Sweeps(variant.grid, rows_at_once=3)
        result = run(variant)
        compare(variant, want)
        np.testing.assert_allclose(list(result.norms.values()), norms, rtol=1e-4)
        variant.free()


def test_only_checked_norms_are_computed(comm):
    problem = Problem(nx=80, ny=10 * comm.size + 90, iterations=2 * STRETCH + 30, check=7)
    variant = make("mpi", problem, comm, engine("numpy"))
    seen = []
    result = run(variant, lambda iteration, norm: seen.append((iteration, norm)))
    assert list(result.norms) == list(range(0, problem.iterations, 7))
    assert seen == list(result.norms.items())
    _, norms = relaxed(problem, problem.iterations)
    np.testing.assert_allclose(list(result.norms.values()), norms[::7], rtol=1e-3)
    assert result.reached is None


def test_stops_after_the_tolerance(comm):
    problem = Problem(nx=12, ny=comm.size + 8, iterations=10 * STRETCH, tolerance=1e-3)
    _, norms = relaxed(problem, problem.iterations)
    first = next(number for number, norm in enumerate(norms) if norm <= 1e-3)
    result = run(make("mpi_overlap", problem, comm, engine("numpy")))
    assert result.reached == first
    assert first < result.iterations <= (first // STRETCH + 2) * STRETCH


def test_messages_of_an_iteration(comm):
    """One exchange a sweep and one sum of norms a stretch, nothing else."""
    variant = make("mpi", Problem(nx=30, ny=4 * comm.size + 2), comm, engine("numpy"))
    norms = np.zeros(10)
    with count_messages() as counts:
        variant.advance(10, norms)
    if comm.size == 1:
        assert counts.counts() == {}
        return
    assert counts.counts() == {"halo": 10}
    assert counts.nbytes == 10 * 2 * 30 * 4


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("mpi", {"sweep": 3, "halo": 3}),
        ("mpi_overlap", {"boundary": 3, "halo": 6, "inner": 3}),
        ("shared", {"wait": 3, "sweep": 3, "put": 3}),
    ],
)
def test_timeline(comm, name, pieces):
    """Every sweep has its pieces of work, one after the other since the start."""
    variant = make(name, Problem(nx=30, ny=4 * comm.size + 2), comm, engine("numpy"))
    variant.advance(2, np.zeros(2))
    with profile.record() as recording:
        variant.advance(3, np.zeros(3))
    spans = spans_of(recording, engine("numpy"))
    variant.free()
    assert Counter(span.label for span in spans) == pieces
    assert {span.lane for span in spans} == {0}
    moments = [moment for span in spans for moment in (span.begin, span.end)]
    assert moments == sorted(moments)
    assert moments[0] >= 0


def test_obstacles(comm):
    assert obstacle("mpi", comm, engine("numpy")) is None
    assert "cupy" in obstacle("peer", comm, engine("numpy"))
    for name in ("single", "copies", "threads_managed"):
        assert (obstacle(name, comm, engine("numpy")) is None) == (comm.size == 1)
    with pytest.raises(InputError, match="no variant"):
        obstacle("fastest", comm, engine("numpy"))
    with pytest.raises(InputError, match="process grid"):
        Grid(Problem(nx=9, ny=9), comm.size, comm.rank, (comm.size, 2))


@pytest.mark.serial
@pytest.mark.parametrize(
    "wrong",
    [{"nx": 2}, {"ny": 0}, {"iterations": 0}, {"check": -1}, {"tolerance": float("nan")}, {"dtype": "float16"}],
)
def test_invalid_problems_raise(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Problem(**wrong)
