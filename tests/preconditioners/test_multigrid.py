"""Smoothed aggregation: the cycle against its definition, iterations on any number of ranks, and refusals."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.csgraph
import scipy.sparse.linalg
import scipy.spatial

import collops
from collops.array import Layout, kernels
from collops.comm import alone
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import CSRMatrix
from collops.operators.csr import pieces
from collops.operators.csr.products import merged_rows
from collops.preconditioners import chebyshev, jacobi, multigrid, smoother
from collops.preconditioners.aggregates import aggregate, graph_of
from collops.preconditioners.prolongation import filtered, tentative
from collops.preconditioners.spectrum import largest_eigenvalue
from collops.preconditioners.weak import has_signs_of_m_matrix, separated
from collops.solvers import Status, cg

from .matrices import poisson

multigrid_module = importlib.import_module("collops.preconditioners.multigrid")  # the package has the function


def line(n) -> sp.csr_array:
    return sp.csr_array(sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)))


def plane(n, weak=1.0) -> sp.csr_array:
    one = sp.eye_array(n)
    return sp.csr_array(weak * sp.kron(line(n), one) + sp.kron(one, line(n)))


def cube_of_27_points(n) -> sp.csr_array:
    near = sp.diags_array([1.0, 1.0, 1.0], offsets=[-1, 0, 1], shape=(n, n))
    return sp.csr_array(27 * sp.eye_array(n**3) - sp.kron(sp.kron(near, near), near))


def cube(n, *conductances) -> sp.csr_array:
    """Differences in three directions, of different conductance."""
    one = sp.eye_array(n)
    x, y, z = (
        sp.kron(line(n), sp.eye_array(n * n)),
        sp.kron(sp.kron(one, line(n)), one),
        sp.kron(sp.eye_array(n * n), line(n)),
    )
    return sp.csr_array(conductances[0] * x + conductances[1] * y + conductances[2] * z)


def rotated_plane(n, weak, angle) -> sp.csr_array:
    """Bilinear finite elements for a weak direction at an angle to the axes."""
    stiffness, mass = line(n), sp.diags_array([1 / 6, 2 / 3, 1 / 6], offsets=[-1, 0, 1], shape=(n, n))
    slope = sp.diags_array([-0.5, 0.5], offsets=[-1, 1], shape=(n, n))
    c, s = np.cos(angle), np.sin(angle)
    matrix = (c * c + weak * s * s) * sp.kron(mass, stiffness) + (s * s + weak * c * c) * sp.kron(stiffness, mass)
    return sp.csr_array(matrix - 2 * (1 - weak) * c * s * sp.kron(slope, slope))


def network(n, links, conductance) -> sp.csr_array:
    """The Laplacian of a graph, grounded weakly."""
    i, j = links.T
    weights = sp.coo_array((conductance, (i, j)), shape=(n, n))
    weights = weights + weights.T
    return sp.csr_array(sp.diags_array(weights.sum(axis=1) + 1e-6) - weights)


def jumps(n, ratio=1e6) -> sp.csr_array:
    """Diffusion through a checkerboard of two materials, by finite volumes."""
    i, j = np.indices((n, n))
    material = np.where((i // 8 + j // 8) % 2, ratio, 1.0)
    numbers = np.arange(n * n).reshape(n, n)
    pairs = [(numbers[1:], numbers[:-1]), (numbers[:, 1:], numbers[:, :-1])]
    links = np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in pairs])
    inside = material.ravel()[links]
    edge = np.zeros((n, n))
    for border in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
        edge[border] += 2 * material[border]
    return sp.csr_array(network(n * n, links, 2 / (1 / inside).sum(axis=1)) + sp.diags_array(edge.ravel()))


def random_network(n) -> sp.csr_array:
    rng = np.random.default_rng(0)
    points = rng.random((n, 2))
    near = scipy.spatial.cKDTree(points).query_pairs(2.2 / np.sqrt(n), output_type="ndarray")
    return network(n, near, rng.random(len(near)))


def expander(n) -> sp.csr_array:
    """A graph with random connections, in which all nodes are near to each other."""
    ends = np.random.default_rng(0).integers(0, n, (3 * n // 2, 2))
    ends = ends[ends[:, 0] != ends[:, 1]]
    return network(n, ends, np.ones(len(ends)))


def mesh(n) -> sp.csr_array:
    """Linear finite elements on triangles between random points."""
    points = np.random.default_rng(0).random((n, 2))
    corners = scipy.spatial.Delaunay(points).simplices
    edges = points[np.roll(corners, -1, axis=1)] - points[np.roll(corners, 1, axis=1)]
    areas = abs(edges[:, 0, 0] * edges[:, 1, 1] - edges[:, 0, 1] * edges[:, 1, 0]) / 2
    entries = np.einsum("eik,ejk->eij", edges, edges) / (4 * areas[:, None, None])
    i, j = np.repeat(corners, 3, axis=1).ravel(), np.tile(corners, (1, 3)).ravel()
    free = np.flatnonzero(points[:, 0] > 0.05)
    return sp.csr_array(sp.csr_array((entries.ravel(), (i, j)))[free][:, free])


def elasticity(n) -> tuple[sp.csr_array, np.ndarray]:
    """Plane stress on squares with bilinear displacements, clamped on one side, and the rigid motions."""
    stiffness = np.zeros((8, 8))
    material = np.array([[1, 0.3, 0], [0.3, 1, 0], [0, 0, 0.35]]) / 0.91
    for x in (-(3**-0.5), 3**-0.5):
        for y in (-(3**-0.5), 3**-0.5):
            dx, dy = np.array([y - 1, 1 - y, 1 + y, -1 - y]) / 2, np.array([x - 1, -1 - x, 1 + x, 1 - x]) / 2
            strain = np.zeros((3, 8))
            strain[0, ::2], strain[1, 1::2], strain[2, ::2], strain[2, 1::2] = dx, dy, dy, dx
            stiffness += strain.T @ material @ strain / 4
    points = np.arange((n + 1) ** 2).reshape(n + 1, n + 1)
    corners = np.stack([points[:-1, :-1], points[:-1, 1:], points[1:, 1:], points[1:, :-1]], axis=-1).reshape(-1, 4)
    unknowns = np.stack([2 * corners, 2 * corners + 1], axis=-1).reshape(-1, 8)
    i, j = np.repeat(unknowns, 8, axis=1).ravel(), np.tile(unknowns, (1, 8)).ravel()
    matrix = sp.csr_array((np.tile(stiffness.ravel(), len(unknowns)), (i, j)))
    free = np.setdiff1d(points, points[:, 0])
    rows = np.stack([2 * free, 2 * free + 1], axis=-1).ravel()
    y, x = np.divmod(free, n + 1)
    motions = np.zeros((len(rows), 3))
    motions[::2, 0] = motions[1::2, 1] = 1
    motions[::2, 2], motions[1::2, 2] = 0.5 - y / n, x / n - 0.5
    return sp.csr_array(matrix[rows][:, rows]), motions


def split(matrix, comm, block=1) -> CSRMatrix:
    """Give the second rank nothing, and the others unequal shares of points."""
    weights = np.array([3.0, 0.0, 2.0, 4.0][: comm.size])
    ends = block * np.round(np.cumsum(weights) / weights.sum() * (matrix.shape[0] // block)).astype(int)
    rows = Layout.split(matrix.shape[0], comm.size, sizes=np.diff(ends, prepend=0).tolist())
    return CSRMatrix.from_global(matrix, comm=comm, rows=rows)


# The matrix, and the maximum of the iterations of CG to 1e-8, and of the operator complexity.
PROBLEMS = {
    "line": (lambda: line(2000), 11, 1.4),
    "plane": (lambda: plane(40), 9, 1.4),
    "anisotropic plane": (lambda: plane(40, 1e-3), 10, 1.35),
    "slightly anisotropic plane": (lambda: plane(40, 0.2), 11, 1.35),
    "rotated plane": (lambda: rotated_plane(32, 1e-3, np.pi / 6), 17, 1.3),
    "cube": (lambda: poisson(12), 8, 1.4),
    "weak axis": (lambda: cube(12, 1, 1, 0.01), 9, 1.3),
    "weak axes": (lambda: cube(12, 0.01, 1, 1e-4), 10, 1.4),
    "complex cube": (lambda: poisson(12, dtype="c16"), 10, 1.4),
    "cube of 27 points": (lambda: cube_of_27_points(12), 7, 1.1),
    "jumps": (lambda: jumps(48), 11, 1.4),
    "network": (lambda: random_network(1500), 11, 1.1),
    "expander": (lambda: expander(1000), 15, 1.45),
    "mesh": (lambda: mesh(1500), 36, 1.45),
    "isolated rows": (
        lambda: sp.block_diag([sp.eye_array(200), plane(30), 3 * sp.eye_array(100)], format="csr"),
        10,
        1.4,
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_iterations_are_few_and_the_same_on_any_number_of_ranks(comm, name):
    make, most, complexity = PROBLEMS[name]
    matrix = sp.csr_array(make())
    right = np.random.default_rng(1).standard_normal(matrix.shape[0]).astype(matrix.dtype)

    def solved(comm):
        A = split(matrix, comm)
        M = multigrid(A)
        assert M.dottest()
        return M, cg(A, collops.from_global(right, A.rows, comm=comm), niter=60, rtol=1e-8, M=M)

    M, result = solved(comm)
    assert result.status is Status.CONVERGED and result.iterations <= most
    residual = matrix @ result.x.gather() - right
    assert np.linalg.norm(residual) <= 1.1e-8 * np.linalg.norm(right)
    assert M.operator_complexity <= complexity < 1.5 and len(M.rows) > 1
    of_one_rank, result_of_one_rank = solved(alone())
    assert (M.rows, M.entries) == (of_one_rank.rows, of_one_rank.entries)
    assert result.iterations == result_of_one_rank.iterations


@pytest.fixture
def loops(monkeypatch):
    """Compiled loops for small matrices too, in two threads."""
    pytest.importorskip("numba")
    monkeypatch.setattr(kernels, "LONG", 1)
    monkeypatch.setattr(pieces, "_ENTRIES", 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")


@pytest.mark.parametrize("name", ["plane", "anisotropic plane", "jumps", "cube of 27 points", "elasticity"])
def test_loops_compute_the_same_as_scipy(comm, monkeypatch, request, name):
    monkeypatch.setattr(multigrid_module, "_DENSE", 60)
    matrix, vectors = elasticity(15) if name == "elasticity" else (PROBLEMS[name][0](), None)
    block = 1 if vectors is None else 2
    A = split(matrix, comm, block)
    (own,) = A.rows.slices(comm.rank)
    vectors = None if vectors is None else vectors[own]
    M = multigrid(A, vectors, block=block)
    x = collops.random(A.rows, seed=1, comm=comm)
    expected = (M @ x).gather()
    request.getfixturevalue("loops")
    for single, tolerance in ((False, 1e-9), (True, 1e-4)):
        L = multigrid(A, vectors, block=block, single_precision=single)
        assert (L.rows, L.entries) == (M.rows, M.entries)
        assert A.nnz == 0 or isinstance(L._levels[0].smoother._passes_for(x), smoother._Loops)
        np.testing.assert_allclose((L @ x).gather(), expected, rtol=tolerance, atol=tolerance * abs(expected).max())
        assert L.dottest()


class BlockByDefinition:
    """A block of a matrix with the pass that kernels of devices have, by NumPy."""

    def __init__(self, matrix):
        self.matrix, self.filled = matrix, np.diff(matrix.indptr) > 0

    def combine(self, x, y, before, out, factors, weights):
        a, b, c, d = factors
        value = -c * (self.matrix @ x) + (d * y if d else 0)
        value = (value if weights is None else weights * value) + (a * x if a else 0) + (b * before if b else 0)
        out[self.filled] = value[self.filled]


def test_steps_by_one_pass(comm, monkeypatch):
    """The steps of devices, with blocks on the host, against operations on vectors."""
    A = split(plane(12, 0.3), comm)
    plain, passes = (smoother.Smoother(A, 2, (0.4, 2.0), A.dtype, A.diagonal()) for _ in range(2))
    x, y = (collops.random(A.rows, seed=seed, comm=comm) for seed in (1, 2))
    passes._passes[x.engine, x.dtype] = smoother._Launches(A, passes._first_step._local, passes._length)
    with monkeypatch.context() as patched:
        patched.setattr(A, "_parts", lambda engine, dtype: tuple(map(BlockByDefinition, A.blocks)))
        found = [passes.start(y, x.copy()), passes.improve(y, x.copy()), passes.residual(y, x, x.copy())]
    expected = [plain.start(y, x.copy()), plain.improve(y, x.copy()), y - A @ x]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.gather(), other.gather(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["i4", "f4"])
def test_integers_and_single_precision(comm, dtype):
    A, B = split(plane(30), comm), split(plane(30).astype(dtype), comm)
    M = multigrid(B)
    assert M.dtype == np.dtype("f8" if dtype == "i4" else dtype)
    x = collops.random(A.rows, seed=1, comm=comm)
    np.testing.assert_allclose((M @ x).gather(), (multigrid(A) @ x).gather(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("compiled", [False, True])
def test_data_of_other_types(comm, request, compiled):
    if compiled:
        request.getfixturevalue("loops")
    A = split(plane(30), comm)
    M = multigrid(A)
    x, y = (collops.random(A.rows, seed=seed, comm=comm) for seed in (1, 2))
    images = [(M @ each).gather() for each in (x, y)]
    np.testing.assert_allclose((M @ (x + 1j * y)).gather(), images[0] + 1j * images[1], rtol=1e-11, atol=1e-11)
    single = M @ x.astype("f4")
    assert single.dtype == np.float64
    np.testing.assert_allclose(single.gather(), images[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_weak_entries_are_separated(comm, monkeypatch, request, compiled):
    """Their part of the coarse matrix is made with the prolongation before it is smoothed."""
    monkeypatch.setattr(multigrid_module, "_DENSE", 60)
    if compiled:
        request.getfixturevalue("loops")
    matrix = plane(20, 0.1)
    matrix.setdiag(matrix.diagonal() + np.random.default_rng(0).random(400))
    A = split(matrix, comm)
    level, following = multigrid(A)._levels[:2]
    entries = matrix.toarray()
    weak = np.where((entries < 0) & (entries > -0.25), entries, 0)
    weak -= np.diag(weak.sum(axis=1))
    columns = CSRMatrix._from_rows(*level.aggregation.tentative, A.rows, following.matrix.rows, comm)
    P, T = dense(level.prolongation), dense(columns)
    assert level.aggregation.separates and abs(P - T).max() > 0.1
    np.testing.assert_allclose(dense(following.matrix), P.T @ (entries - weak) @ P + T.T @ weak @ T, atol=1e-13)


def test_roots_line_up_across_weak_entries(comm):
    """Aggregates of lines begin in the same places as those of the lines nearby, and coarse rows have fewer entries."""
    A = split(plane(40, 1e-3), comm)
    rows = merged_rows(A)
    graph = graph_of(A, rows, 1)
    parts = separated(A, rows, graph, 0.25)
    assert parts is not None
    neighbours = []
    for weak in (None, parts.weak.matrix):
        labels, _ = aggregate(graph, 0.25, weak=weak)
        grid = comm.allgatherv(labels).reshape(40, 40)
        pairs = np.stack([grid[1:].ravel(), grid[:-1].ravel()])
        neighbours.append(np.unique(pairs, axis=1).shape[1])
    assert neighbours[1] < 0.85 * neighbours[0]


def test_iterations_do_not_grow_with_the_size(comm):
    iterations = []
    for n in (11, 20):
        A = split(cube_of_27_points(n), comm)
        result = cg(A, collops.random(A.range, seed=1, comm=comm), niter=60, rtol=1e-8, M=multigrid(A))
        assert result.status is Status.CONVERGED
        iterations.append(result.iterations)
    assert iterations[1] <= iterations[0] + 1


@pytest.mark.parametrize("directions", ["crossed", "fractures"])
def test_pairs_do_not_use_up_the_complexity_of_coarser_levels(comm, directions):
    """Points of two unknowns, which strong entries connect only to each other: one has lines in x, the other in y.

    Or one has both, and the other neither, as a medium of dual porosity.
    """
    iterations = []
    for n in (26, 48):
        one, first, second = sp.eye_array(n), np.diag([1.0, 0.0]), np.diag([0.0, 1.0])
        along, across = sp.kron(one, line(n)), sp.kron(line(n), one)
        if directions == "crossed":
            weak = 0.1 * sp.kron(along, first) + 0.1 * sp.kron(across, second)
        else:
            weak = 0.05 * sp.kron(along + across, first) + 1e-3 * sp.kron(sp.eye_array(n * n), second)
        matrix = sp.csr_array(weak + sp.kron(sp.eye_array(n * n), np.array([[1.0, -1.0], [-1.0, 1.0]])))
        matrix.eliminate_zeros()
        A = split(matrix, comm)
        M = multigrid(A)
        assert M.rows[1] == n * n and M.operator_complexity < 1.9
        result = cg(A, collops.random(A.rows, seed=1, comm=comm), niter=60, rtol=1e-8, M=M)
        assert result.status is Status.CONVERGED
        iterations.append(result.iterations)
    assert iterations[1] <= iterations[0] + 1 <= 11


def test_elasticity_needs_its_rotations(comm, monkeypatch):
    """On three levels; the coarse ones are on one rank."""
    monkeypatch.setattr(multigrid_module, "_DENSE", 60)
    matrix, motions = elasticity(24)
    A = split(matrix, comm, block=2)
    (own,) = A.rows.slices(comm.rank)
    y = collops.random(A.range, seed=1, comm=comm)
    M = multigrid(A, motions[own], block=2)
    without, result = (cg(A, y, niter=200, rtol=1e-8, M=each) for each in (multigrid(A, block=2), M))
    assert (
        len(M.rows) == 3
        and M.operator_complexity < 1.35
        and M._levels[0].prolongation.columns.sizes[0][1:] == (0,) * (comm.size - 1)
    )
    assert result.status is Status.CONVERGED and result.iterations <= 13 < without.iterations
    expected = scipy.sparse.linalg.spsolve(sp.csc_array(matrix), y.gather())
    np.testing.assert_allclose(result.x.gather(), expected, atol=1e-6 * abs(expected).max())


def test_aggregates_with_fewer_unknowns_than_vectors(comm):
    """Pairs have three vectors, of which they can represent two; the coarse matrix has more rows than are inverted."""
    pair = sp.csr_array([[2.0, -1.0], [-1.0, 2.0]])
    matrix = sp.csr_array(sp.block_diag([plane(30), *[pair] * 200], format="csr"))
    position = np.linspace(-1, 1, matrix.shape[0])
    A = split(matrix, comm)
    (own,) = A.rows.slices(comm.rank)
    M = multigrid(A, np.stack([position**0, position, position**2], axis=1)[own])
    assert M.rows[1] > 600
    result = cg(A, collops.random(A.range, seed=1, comm=comm), niter=60, rtol=1e-8, M=M)
    assert result.status is Status.CONVERGED and result.iterations <= 20


def test_normal_equations_of_a_tomography(comm):
    """Rays connect distant cells, which aggregates of neighbours ignore: regularisation makes multigrid useful."""
    n, rays = 30, 100
    ends, along = np.random.default_rng(0).random((2, rays, 1)), np.linspace(0, 1, 4 * n)
    depths = ends[0] * (1 - along) + ends[1] * along
    cells = np.minimum((depths * n).astype(int), n - 1) * n + np.minimum((along * n).astype(int), n - 1)
    lengths = sp.csr_array((np.full(cells.size, 0.25), (np.repeat(np.arange(rays), 4 * n), cells.ravel())))
    A = split(sp.csr_array(lengths.T @ lengths + 10 * plane(n)), comm)
    y = collops.random(A.range, seed=1, comm=comm)
    with_multigrid, with_jacobi = (cg(A, y, niter=200, rtol=1e-8, M=each) for each in (multigrid(A), jacobi(A)))
    assert with_multigrid.status is Status.CONVERGED
    assert with_multigrid.iterations <= 22 and 3 * with_multigrid.iterations < with_jacobi.iterations


def test_a_matrix_without_rows(comm):
    A = CSRMatrix.from_global(sp.csr_array((0, 0)), comm=comm)
    M = multigrid(A)
    assert M.rows == [0] and (M @ collops.zeros(A.rows, comm=comm)).shape == (0,)


def test_singular_systems(comm):
    """A box whose sides are insulated: the solution is known but for a constant."""
    side = line(30).tolil()
    side[0, 0] = side[-1, -1] = 1
    one = sp.eye_array(30)
    matrix = sp.csr_array(sp.kron(side, one) + sp.kron(one, side))
    expected = np.random.default_rng(0).standard_normal(900)
    A = split(matrix, comm)
    result = cg(A, collops.from_global(matrix @ expected, A.rows, comm=comm), niter=60, rtol=1e-10, M=multigrid(A))
    assert result.status is Status.CONVERGED and result.iterations <= 14
    assert (multigrid(A) @ collops.ones(A.rows, comm=comm)).norm() < 100  # the null space is left out
    difference = result.x.gather() - expected
    np.testing.assert_allclose(difference, difference.mean(), atol=1e-7)


def dense(op) -> np.ndarray:
    units = np.eye(op.shape[1])
    return np.stack([(op @ collops.from_global(unit, op.domain, comm=op.comm)).gather() for unit in units], axis=1)


@pytest.mark.parametrize(("dtype", "cycle"), [("f8", "W"), ("c16", "V")])
def test_the_cycle_is_its_definition(comm, monkeypatch, dtype, cycle):
    """Smoothing, one or two coarse corrections, and smoothing: one factor of the error's operator for each."""
    monkeypatch.setattr(multigrid_module, "_DENSE", 20)
    monkeypatch.setattr(multigrid_module, "_CHEAP", 0.5)
    phases = np.exp(1j * np.arange(144)) if dtype == "c16" else np.ones(144)
    matrix = (phases[:, None] * plane(12).toarray() * phases.conj()).astype(dtype)
    A = split(sp.csr_array(matrix), comm)
    (own,) = A.rows.slices(comm.rank)
    M = multigrid(A, phases[own, None].astype(dtype), degree=2, cycle=cycle)
    assert M.visits == ([1, 2, 2] if cycle == "W" else [1, 1, 1])

    def error_operator(depth, whole):
        """Return the matrix that multiplies the error in a visit of a level."""
        one = np.eye(len(whole))
        if depth == len(M._levels):
            return 0 * one
        level, _, prolongation, _ = M._levels[depth]
        bounds = multigrid_module._bounds(largest_eigenvalue(level, jacobi(level)))
        S, P = dense(chebyshev(level, 2, bounds, M=jacobi(level))), dense(prolongation)
        coarse = P.conj().T @ whole @ P
        error = np.linalg.matrix_power(error_operator(depth + 1, coarse), M._repeats[depth])
        correction = P @ (np.eye(len(coarse)) - error) @ np.linalg.solve(coarse, P.conj().T)
        return (one - S @ whole) @ (one - correction @ whole) @ (one - S @ whole)

    np.testing.assert_allclose(np.eye(144) - dense(M) @ matrix, error_operator(0, matrix), atol=1e-12)
    P = dense(M._levels[0].prolongation)
    np.testing.assert_allclose(P.sum(axis=1)[78], phases[78])  # inside, its columns add up to the near null space


@pytest.mark.parametrize("compiled", [False, True])
def test_weak_entries_are_lumped_unless_the_diagonal_becomes_small(comm, request, compiled):
    """A small diagonal would give the filtered matrix a large eigenvalue, and the prolongation no smoothing."""
    if compiled:
        request.getfixturevalue("loops")
    matrix = plane(8, 0.01).toarray()
    matrix[0, 20] = matrix[20, 0] = 5.0  # with which all other entries of rows 0 and 20 are weak
    matrix[0, 30:45] = matrix[30:45, 0] = -0.1
    A = split(sp.csr_array(matrix), comm)
    rows = merged_rows(A)
    kept = CSRMatrix._from_rows(*filtered(A, rows, graph_of(A, rows, 1), 0.25), A.rows, A.columns, comm)
    expected = np.where(abs(matrix) >= 0.25 * abs(matrix - np.diag(matrix.diagonal())).max(axis=1)[:, None], matrix, 0)
    expected += np.diag((matrix - expected).sum(axis=1))
    assert (expected.diagonal()[[0, 20]] < 0.1).all()
    expected[[0, 20]] = matrix[[0, 20]]
    np.testing.assert_allclose(dense(kept), expected, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "compiled"),
    [("anisotropic plane", True), ("elasticity", True), ("elasticity", False), ("complex cube", False)],
)
def test_refreshed_is_a_new_multigrid(comm, monkeypatch, request, name, compiled):
    """The first call finds the patterns of products, and the second one only values."""
    monkeypatch.setattr(multigrid_module, "_DENSE", 60)
    if compiled:
        request.getfixturevalue("loops")
    matrix, vectors = elasticity(16) if name == "elasticity" else (PROBLEMS[name][0](), None)
    block = 1 if vectors is None else 2
    (own,) = split(matrix, comm, block).rows.slices(comm.rank)
    options = {"near_null_space": None if vectors is None else vectors[own], "block": block}
    M = multigrid(split(matrix, comm, block), **options)
    x = collops.random(M.domain, seed=1, comm=comm, dtype=matrix.dtype)
    before = (M @ x).gather()
    for factor in (1, 3):
        changed = factor * matrix
        changed.setdiag(factor * matrix.diagonal() + np.linspace(0, 1e-3, matrix.shape[0]))  # keeps entries of 0
        A = split(changed, comm, block)
        M.refresh(A)
        expected = multigrid(A, **options)
        assert M.rows == expected.rows and len(M.rows) > 2
        image = (expected @ x).gather()
        np.testing.assert_allclose((M @ x).gather(), image, rtol=0, atol=1e-12 * abs(image).max())
        assert abs(image - before).max() > 1e-4 * abs(image).max()
    assert M.convergence_factor() == pytest.approx(expected.convergence_factor(), rel=1e-6)


def test_refresh_adapts_to_weak_entries(comm, monkeypatch):
    """Other entries become weak: the patterns of prolongations and coarse matrices change with the filter."""
    monkeypatch.setattr(multigrid_module, "_DENSE", 60)
    A, B = (split(plane(24, weak), comm) for weak in (1.0, 0.1))
    M = multigrid(A)
    M.refresh(A)
    entries = M.entries
    M.refresh(B)
    y = collops.random(A.rows, seed=1, comm=comm)
    result = cg(B, y, niter=60, rtol=1e-8, M=M)
    assert M.entries[0] == entries[0] and M.entries[1] < entries[1] and result.status is Status.CONVERGED
    np.testing.assert_allclose(
        result.x.gather(), scipy.sparse.linalg.spsolve(plane(24, 0.1).tocsc(), y.gather()), atol=1e-5
    )


def test_refresh_does_not_separate_entries_of_both_signs(comm, monkeypatch):
    """Without the weak negative entries, the other part of the matrix need not be positive."""
    monkeypatch.setattr(multigrid_module, "_DENSE", 60)
    matrix = plane(20, 0.1)
    M = multigrid(split(matrix, comm))
    assert M._levels[0].aggregation.separates
    changed = matrix.tolil()
    for i in range(0, 380, 40):
        changed[range(i, i + 20), range(i + 20, i + 40)] = changed[range(i + 20, i + 40), range(i, i + 20)] = 0.1
    M.refresh(split(sp.csr_array(changed), comm))
    level, following = M._levels[:2]
    P = dense(level.prolongation)
    np.testing.assert_allclose(dense(following.matrix), P.T @ changed.toarray() @ P, atol=1e-13)
    M.refresh(split(matrix, comm))
    expected, x = multigrid(split(matrix, comm)), collops.random(M.domain, seed=1, comm=comm)
    np.testing.assert_allclose((M @ x).gather(), (expected @ x).gather(), atol=1e-12)


def test_signs_are_asked_outside_of_the_diagonal(comm):
    """Rows of zeros do not count for positive entries in other rows."""
    matrix = sp.block_diag([plane(12), sp.csr_array((50, 50))], format="lil")
    assert has_signs_of_m_matrix(split(sp.csr_array(matrix), comm))
    matrix[3, 70] = matrix[70, 3] = 0.1
    assert not has_signs_of_m_matrix(split(sp.csr_array(matrix), comm))


@pytest.mark.parametrize("compiled", [False, True])
def test_rounding_does_not_make_entries_at_the_threshold_weak(comm, request, compiled):
    if compiled:
        request.getfixturevalue("loops")
    matrix = plane(30, 0.25)
    rounded = sp.csr_array(sp.tril(matrix) + (1 - 1e-15) * sp.triu(matrix, 1))  # so that (i, j) and (j, i) differ
    expected, M = (multigrid(split(each, comm)) for each in (matrix, rounded))
    assert (M.rows, M.entries) == (expected.rows, expected.entries)
    x = collops.random(M.domain, seed=1, comm=comm)
    np.testing.assert_allclose((M @ x).gather(), (expected @ x).gather(), rtol=1e-11, atol=1e-11)


def test_errors_of_refresh(comm):
    A = split(plane(30), comm)
    M = multigrid(A)
    x = collops.random(A.rows, seed=1, comm=comm)
    before = (M @ x).gather()
    with_entry = plane(30).tolil()
    with_entry[0, 7] = with_entry[7, 0] = -0.1  # on the first rank alone
    with pytest.raises(InputError, match="in other positions"):
        M.refresh(split(sp.csr_array(with_entry), comm))
    with pytest.raises(InputError, match="refresh needs a matrix of float64, not float32"):
        M.refresh(split(plane(30).astype("f4"), comm))
    with pytest.raises(LayoutError, match="refresh needs a matrix with the rows"):
        M.refresh(split(plane(20), comm))
    unsymmetric = plane(30)
    unsymmetric.data[1] *= 2
    with pytest.raises(InputError, match="Hermitian matrix"):
        M.refresh(split(unsymmetric, comm))
    np.testing.assert_array_equal((M @ x).gather(), before)


@pytest.mark.parametrize("scale", [1e-300, 1e250])
def test_units_of_the_matrix_change_nothing(comm, scale):
    """The squares of its entries under- or overflow."""
    plain, scaled = multigrid(split(plane(30), comm)), multigrid(split(sp.csr_array(scale * plane(30)), comm))
    x = collops.random(plain.domain, seed=1, comm=comm)
    expected = (plain @ x).gather()
    np.testing.assert_allclose(scale * (scaled @ x).gather(), expected, rtol=0, atol=1e-10 * abs(expected).max())
    unsymmetric = sp.csr_array(scale * (plane(30) + sp.diags_array([0.1], offsets=[1], shape=(900, 900))))
    with pytest.raises(InputError, match="Hermitian matrix"):
        multigrid(split(unsymmetric, comm))


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_matrices_out_of_range_are_refused(comm, dtype):
    """Comparisons with NaN are false, and products of large matrices are NaN: neither shows a Hermitian matrix."""
    for value in (np.nan, np.inf):
        matrix = plane(12).astype(dtype)
        matrix[0, 0] = value  # on the first rank alone
        with pytest.raises(InputError, match="a matrix with finite entries"):
            multigrid(split(matrix, comm))
    unsymmetric = sp.csr_array(plane(12) + sp.diags_array([0.1], offsets=[1], shape=(144, 144))).astype(dtype)
    for large in (2e307 * unsymmetric, 1e306 * plane(12).astype(dtype)):
        with pytest.raises(InputError, match=f"too large for multigrid in {np.dtype(dtype)}: scale the matrix"):
            multigrid(split(sp.csr_array(large), comm))


def test_tentative_prolongations_contain_the_vectors(comm):
    A = split(sp.csr_array(sp.kron(plane(15), np.ones((2, 2)))), comm, block=2)
    (own,) = A.rows.slices(comm.rank)
    vectors = np.random.default_rng(0).standard_normal((450, 3))
    labels, count = aggregate(graph_of(A, merged_rows(A), 2), 0.25)
    counts = [int(number) for number in comm.allgather(np.array(count))]
    rows, columns, coarse = tentative(A, labels, counts, vectors[own], 2)
    prolongation = CSRMatrix._from_rows(*rows, A.rows, columns, comm)
    P, factors = dense(prolongation), comm.allgatherv(coarse.reshape(-1)).reshape(-1, 3)
    np.testing.assert_allclose(P.T @ P, np.eye(3 * sum(counts)), atol=1e-14)
    np.testing.assert_allclose(P @ factors, vectors, atol=1e-13)


@pytest.mark.parametrize("block", [1, 2])
def test_aggregates(comm, block):
    """They are connected and cover all nodes with neighbours; roots are more than two connections apart."""
    matrix = sp.block_diag([sp.kron(plane(15), np.ones((block, block))), sp.eye_array(2 * block)], format="csr")
    A = split(sp.csr_array(matrix), comm, block)
    labels, count = aggregate(graph_of(A, merged_rows(A), block), 0.25)
    labels = comm.allgatherv(labels)
    total = int(comm.allreduce(np.array(count)))
    np.testing.assert_array_equal(np.unique(labels), np.arange(-1, total))
    np.testing.assert_array_equal(np.flatnonzero(labels < 0), [225, 226])
    pattern = sp.csr_array(plane(15))
    for number in range(total):
        nodes = np.flatnonzero(labels == number)
        parts, _ = scipy.sparse.csgraph.connected_components(pattern[nodes][:, nodes])
        assert parts == 1 and len(nodes) >= 3
    assert 225 / 13 <= total <= 225 / 5


def test_jax(comm, jax_double):
    A = split(plane(28), comm)
    M = multigrid(A)
    x = collops.random(A.rows, seed=1, comm=comm)
    image = M @ collops.from_global(x.gather(), A.rows, engine="jax", comm=comm)
    np.testing.assert_allclose(image.gather(), (M @ x).gather(), rtol=1e-12, atol=1e-12)


def test_single_precision_with_jax(comm, jax_double):
    """Vectors remain in double precision, and so do products with a matrix in single precision."""
    rows = sp.csr_array(plane(28) * np.pi)
    A = split(rows, comm)
    x, traced = (collops.random(A.rows, seed=1, comm=comm, engine=engine) for engine in ("numpy", "jax"))
    exact, rounded = ((multigrid(A, single_precision=single) @ traced).gather() for single in (False, True))
    assert rounded.dtype == np.float64
    assert 1e-9 < np.linalg.norm(rounded - exact) / np.linalg.norm(exact) < 1e-6
    single = A.astype("f4")
    product = single @ traced
    assert product.dtype == np.float64
    assert single._parts(traced.engine, product.dtype)[0]._entries[-1].dtype == np.float32  # as they are read
    np.testing.assert_allclose(product.gather(), rows.astype("f4").astype("f8") @ x.gather(), rtol=1e-13, atol=1e-13)


def test_the_report(comm):
    A = split(plane(26), comm)
    M = multigrid(A)
    one = np.eye(26**2)
    factor = abs(np.linalg.eigvals(one - dense(M) @ plane(26).toarray())).max()
    assert 0.95 * factor <= M.convergence_factor() <= factor * (1 + 1e-6)
    *levels, complexities, convergence = M.report().splitlines()[1:]
    assert [int(line.split()[1].replace(",", "")) for line in levels] == M.rows
    assert f"{M.operator_complexity:.3f}" in complexities and f"{M.convergence_factor():.2f}" in convergence


def test_errors(comm, monkeypatch):
    A = split(plane(12), comm)
    with monkeypatch.context() as patch:
        # On one rank alone.
        patch.setattr(multigrid_module, "available_memory", lambda ranks: 1e12 if comm.rank else 1e4)
        with pytest.raises(InputError, match=r"multigrid needs about .* KiB of memory"):
            multigrid(A)
    upwind = sp.csr_array(plane(30) + sp.diags_array([-0.1, 0.1], offsets=[-1, 0], shape=(900, 900)))
    with pytest.raises(InputError, match="Hermitian matrix; for unsymmetric systems"):
        multigrid(split(upwind, comm))
    with pytest.raises(InputError, match=r"near_null_space must be an array of numbers of shape"):
        multigrid(A, np.ones(3))
    with pytest.raises(InputError, match="not finite"):
        multigrid(A, np.full((A.rows.local_size(comm.rank), 1), np.nan if comm.rank == 0 else 1.0))
    with pytest.raises(InputError, match="must be real"):
        multigrid(A, np.ones((A.rows.local_size(comm.rank), 1)) * 1j)
    with pytest.raises(LayoutError, match="must be a multiple of block=5"):
        multigrid(A, block=5)
    with pytest.raises(InputError, match="cycle must be 'V' or 'W', not 'K'"):
        multigrid(A, cycle="K")
    with pytest.raises(InputError, match="threshold must be at most 1"):
        multigrid(A, threshold=2)
    with pytest.raises(InputError, match="too large or too small for single precision"):
        multigrid(split(1e200 * plane(30), comm), single_precision=True)
    with pytest.raises(InputError, match="the diagonal has negative entries"):
        multigrid(split(sp.csr_array(-plane(12)), comm))
    with pytest.raises(InputError, match="degree"):
        multigrid(A, degree=-1)
    with pytest.raises(UnsupportedTypeError, match="CSRMatrix"):
        multigrid(A.H)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="diagonal"):
        multigrid(split(sp.csr_array(plane(30) - sp.diags_array(np.where(np.arange(900) == 7, 4.0, 0))), comm))
