"""Sparse systems: the mesh, the job from end to end, and what a user gets wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg
import zarr
from scipy.io import mmwrite

from collops.apps import solve
from collops.apps.recipe import Solution, run_job
from collops.apps.solve import Options, draw, poisson
from collops.errors import InputError
from tests.apps.jobs import Listener


def run(options: Options, comm):
    return run_job(solve.run, dataclasses.replace(options, overwrite=True), comm, Listener())


def written(comm, path, matrix):
    if comm.rank == 0:
        mmwrite(path, matrix)
    comm.barrier()
    return str(path)


@pytest.mark.serial
def test_mesh_is_a_poisson_problem():
    mesh = poisson(340, 3)
    A = mesh.matrix
    assert abs(A - A.T).max() < 1e-12
    assert np.linalg.eigvalsh(A.toarray()).min() > 0
    # The energy of sin(pi x) sin(pi y) sin(pi z) is 3 pi^2 / 8; linear elements come close from above.
    energy = mesh.solution @ (A @ mesh.solution)
    assert 1 < energy / (3 * np.pi**2 / 8) < 1.2
    again, other = poisson(340, 3), poisson(340, 4)
    assert again.points.tobytes() == mesh.points.tobytes() != other.points.tobytes()


@pytest.mark.serial
def test_pictures_are_drawn_for_any_system(tmp_path):
    tall = tmp_path / "tall.mtx"
    mmwrite(tall, sp.coo_array(np.eye(9, 4)))
    (tmp_path / "out").mkdir()
    for options in (Options(points=60), Options(matrix=str(tall))):
        system = solve._system(options, 3, "rows")
        path = draw(tmp_path / "out", system)
        assert path.name == "image.png"
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.serial
@pytest.mark.parametrize(
    ("symmetry", "field", "method"),
    [
        ("symmetric", "real", "cg"),
        ("symmetric", "pattern", "cg"),
        ("hermitian", "complex", "cg"),
        ("symmetric", "complex", "lsqr"),
        ("skew-symmetric", "integer", "lsqr"),
        ("general", "real", "lsqr"),
    ],
)
def test_kinds_of_files_choose_the_method(tmp_path, symmetry, field, method):
    A = np.array([[3.0, 1.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 0.0]])  # its last row is empty
    if field == "complex":
        A = A * (1 + 2j)
    if symmetry != "general":
        A = {"hermitian": A + A.conj().T, "symmetric": A + A.T, "skew-symmetric": A - A.T}[symmetry]
    if field == "pattern":
        A = (A != 0).astype(float)
    path = tmp_path / "a.mtx"
    mmwrite(path, sp.coo_array(A.astype(int) if field == "integer" else A), field=field, symmetry=symmetry)
    options = Options(matrix=str(path))
    system = solve._system(options, 2, "rows")
    np.testing.assert_array_equal(system.matrix.toarray(), A)
    facts = solve._facts(system, "rows")
    assert facts["complex"] is (field == "complex")
    assert solve._method(options, facts) == method


@pytest.mark.parametrize("A", [np.diag([1.0, -1.0, 2.0, 3.0]), np.kron(np.eye(2), [[1.0, 2.0], [2.0, 1.0]])])
def test_indefinite_matrices_are_not_for_conjugate_gradients(comm, folder, A):
    """Without a method they are solved; with CG, whose residual grows, a warning says so."""
    path, out = written(comm, folder / "a.mtx", sp.coo_array(A)), str(folder / "out")
    assert run(Options(matrix=path, out=out), comm).numbers["relative_error"] < 1e-5
    wide = written(comm, folder / "b.mtx", np.diag(A).reshape(2, 2))
    with pytest.raises(InputError, match="but the matrix has 4 rows"):
        run(Options(matrix=path, rhs=wide, out=out), comm)
    data = written(comm, folder / "c.mtx", np.array([[1.0], [-1.5], [0.1], [0.2]]))
    for iterations, warned in ((3, False), (50, True)):
        options, listener = Options(matrix=path, rhs=data, out=out, method="cg", iterations=iterations), Listener()
        numbers = run_job(solve.run, dataclasses.replace(options, overwrite=True), comm, listener).numbers
        assert numbers["iterations"] == iterations and (numbers["residual_reduction"] > 1 or not warned)
        assert any("may not be positive definite" in each for each in listener.warnings) == warned


def test_mesh_is_solved(comm, folder):
    outcome = run(Options(points=120, out=str(folder / "out"), tol=1e-10, partition="rows", profile=True), comm)
    numbers = outcome.numbers
    assert numbers["method"] == "cg" and numbers["status"] == "converged"
    assert numbers["relative_error"] < 1e-8
    assert sum(numbers["rows_by_rank"]) == numbers["rows"] == 125
    assert (numbers["cut"] > 0) is (comm.size > 1)
    assert numbers["messages_per_iteration"] == (3 if comm.size > 1 else 0)
    if comm.rank == 0:
        assert [path.name for path in outcome.files] == ["result.zarr"]
        result = zarr.open_group(str(folder / "out" / "result.zarr"), mode="r")
        truth = poisson(120, 0).solution
        np.testing.assert_allclose(np.asarray(result["solution"]), truth, atol=1e-7)
        assert np.bincount(np.asarray(result["rank"]), minlength=comm.size).tolist() == numbers["rows_by_rank"]


@pytest.mark.parametrize("method", ["cg", "cgls", "lsqr"])
def test_methods_agree_on_a_file(comm, folder, method):
    n = 40
    A = sp.coo_array(sp.diags_array([-1.0, 3.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)))
    truth = np.cos(np.arange(n))
    path = written(comm, folder / "a.mtx", A)
    data = written(comm, folder / "b.mtx", (A @ truth)[:, None])
    options = Options(
        matrix=path, rhs=data, method=method, partition="rows", tol=1e-12, out=str(folder / "out"), iterations=200
    )
    numbers = run(options, comm).numbers
    assert numbers["relative_error"] is None
    if comm.rank == 0:
        found = np.asarray(zarr.open_group(str(folder / "out" / "result.zarr"), mode="r")["solution"])
        np.testing.assert_allclose(found, truth, atol=1e-8)


@pytest.mark.parametrize(
    ("precondition", "method"),
    [
        ("none", "cg"),
        ("jacobi", "cg"),
        ("chebyshev", "cg"),
        ("two-level", "cg"),
        ("multigrid", "cg"),
        ("block-jacobi", "lsqr"),
        ("jacobi", "cgls"),
    ],
)
def test_preconditioners_solve_the_mesh(comm, folder, precondition, method):
    options = Options(points=340, precondition=precondition, method=method, partition="rows", out=str(folder / "out"))
    numbers = run(dataclasses.replace(options, tol=1e-8, iterations=400), comm).numbers
    assert numbers["status"] in ("converged", "compatible") and numbers["relative_error"] < 1e-5
    assert numbers["precondition"] == precondition
    factor = numbers["residual_reduction"] ** (1 / numbers["iterations"])
    assert numbers["convergence_factor"] == pytest.approx(factor)
    if method == "cg" and precondition in ("none", "jacobi"):
        A = poisson(340, 0).matrix.toarray()
        scale = np.sqrt(np.diag(A)) if precondition == "jacobi" else np.ones(len(A))
        assert numbers["condition_number"] == pytest.approx(np.linalg.cond(A / scale / scale[:, None]), rel=0.05)


def five_points(n):
    line, one = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)), sp.eye_array(n)
    return sp.coo_array(sp.kron(line, one) + sp.kron(one, line))


@pytest.mark.parametrize("precondition", ["multigrid", "auto"])
def test_multigrid_solves_an_m_matrix(comm, folder, precondition):
    """As SciPy does, in few iterations; the report has the levels if asked for. A second run resumes the first."""
    A = five_points(30)
    path = written(comm, folder / "a.mtx", A)
    data = written(comm, folder / "b.mtx", np.cos(np.arange(900))[:, None])
    options = Options(
        matrix=path,
        rhs=data,
        precondition=precondition,
        partition="rows",
        tol=1e-10,
        levels=True,
        out=str(folder / "out"),
    )
    plain = run(dataclasses.replace(options, precondition="none", levels=False), comm)
    assert plain.numbers["levels"] is None and not any("level" in label for label, _ in plain.rows)
    checkpoint = str(folder / "checkpoint")
    run(dataclasses.replace(options, iterations=3, tol=None, checkpoint=checkpoint), comm)
    outcome = run(dataclasses.replace(options, checkpoint=checkpoint, resume=True), comm)
    numbers, table = outcome.numbers, dict(outcome.rows)
    assert (numbers["precondition"], numbers["status"], numbers["resumed_from"]) == ("multigrid", "converged", 3)
    assert numbers["iterations"] < 15 < plain.numbers["iterations"]
    (rows, entries), (coarse_rows, coarse_entries) = numbers["levels"]
    assert (rows, entries) == (900, A.nnz) and 50 < coarse_rows < 300
    assert table["multigrid"] == f"2 levels, {1 + coarse_entries / entries:.3g} times the entries of the matrix"
    assert table["level 1"] == f"{coarse_rows} rows, {coarse_entries} entries"
    if comm.rank == 0:
        result = zarr.open_group(str(folder / "out" / "result.zarr"), mode="r")
        expected = scipy.sparse.linalg.spsolve(A.tocsc(), np.cos(np.arange(900)))
        np.testing.assert_allclose(np.asarray(result["solution"]), expected, atol=1e-7)
        assert result.attrs["levels"] == [[rows, entries], [coarse_rows, coarse_entries]]


def test_other_matrices_are_not_for_multigrid(comm, folder):
    """Without symmetry, with a positive entry, complex, singular in a row, or indefinite."""
    base = five_points(4).toarray()
    matrices = {name: base.astype(complex if name == "complex" else float) for name in ("upper", "positive", "complex")}
    matrices["upper"][0, 1] = -0.5
    matrices["positive"][0, 5] = matrices["positive"][5, 0] = 0.1
    matrices["complex"][0, 1], matrices["complex"][1, 0] = -1 + 0.5j, -1 - 0.5j
    matrices["empty row"] = np.diag([1.0, 0.0, 2.0])
    matrices["indefinite"] = np.array([[1.0, -2.0], [-2.0, 1.0]])
    for name, matrix in matrices.items():
        path = written(comm, folder / f"{name}.mtx", sp.coo_array(matrix))
        numbers = run(
            Options(matrix=path, precondition="auto", partition="rows", out=str(folder / "out")), comm
        ).numbers
        assert numbers["precondition"] == "none" and numbers["levels"] is None, name
    with pytest.raises(InputError, match="multigrid needs a symmetric matrix"):
        run(Options(matrix=str(folder / "upper.mtx"), precondition="multigrid", out=str(folder / "out")), comm)
    with pytest.raises(InputError, match="--levels needs --precondition multigrid or auto"):
        Options(levels=True).check()


@pytest.mark.serial
def test_a_solution_to_rounding_needs_a_residual_or_a_gradient_within_the_tolerance():
    residuals = np.array([1.0, 0.5])
    solution = Solution(None, residuals, "least_squares_to_rounding", "eager", None, {"iteration": np.ones(1)}, None)
    for residual, gradient, reached in ((0.5, 1e-7, True), (1e-7, 0.5, True), (0.5, 1e-5, False)):
        message = solve._shortfall(Options(tol=1e-6), "lsqr", solution, residual, gradient)
        assert (message is None) is reached


def test_least_squares_and_metis(comm, folder):
    rng = np.random.default_rng(0)
    tall = sp.coo_array(rng.standard_normal((30, 12)) * (rng.random((30, 12)) < 0.5) + np.eye(30, 12))
    path = written(comm, folder / "tall.mtx", tall)
    numbers = run(Options(matrix=path, tol=1e-12, out=str(folder / "out")), comm).numbers
    assert numbers["method"] == "lsqr" and numbers["cut"] is None
    assert numbers["relative_error"] < 1e-8
    pytest.importorskip("pymetis")
    outcome = run(Options(points=100, partition="metis", tol=1e-10, out=str(folder / "out")), comm)
    assert outcome.numbers["relative_error"] < 1e-8
    assert outcome.numbers["partition"] == "metis"


def test_the_error_of_a_complex_solution(comm, folder):
    rows = np.diag(np.linspace(2, 3, 8)) + 1j * (np.eye(8, k=1) - np.eye(8, k=-1))  # Hermitian
    path = written(comm, folder / "a.mtx", sp.coo_array(rows))
    found = run(Options(matrix=path, iterations=1, out=str(folder / "out")), comm).numbers
    assert found["method"] == "cg"
    # One step of steepest descent towards ones.
    b = rows @ np.ones(8)
    x = b * (np.vdot(b, b) / np.vdot(b, rows @ b))
    assert found["relative_error"] == pytest.approx(np.linalg.norm(x - 1) / np.sqrt(8), rel=1e-9)


def test_a_complex_right_hand_side_of_a_real_matrix(comm, folder):
    A = sp.diags_array([-1.0, 3.0, -1.0], offsets=[-1, 0, 1], shape=(9, 9))
    truth = np.arange(9) + 1j * np.cos(np.arange(9))
    path, data = written(comm, folder / "a.mtx", A.tocoo()), written(comm, folder / "b.mtx", (A @ truth)[:, None])
    found = run(Options(matrix=path, rhs=data, partition="rows", tol=1e-12, out=str(folder / "out")), comm).numbers
    assert (found["method"], found["status"]) == ("cg", "converged")
    if comm.rank == 0:
        result = zarr.open_group(str(folder / "out" / "result.zarr"), mode="r")
        np.testing.assert_allclose(np.asarray(result["solution"]), truth, atol=1e-9)


def test_unusable_systems_raise(comm, folder):
    skew = written(comm, folder / "skew.mtx", sp.coo_array(np.array([[1.0, 2.0], [0.0, 1.0]])))
    with pytest.raises(InputError, match="needs a symmetric matrix"):
        run(Options(matrix=skew, method="cg", out=str(folder / "out")), comm)
    with pytest.raises(InputError, match="two-level needs a symmetric matrix"):
        run(Options(matrix=skew, precondition="two-level", out=str(folder / "out")), comm)
    tall = written(comm, folder / "tall.mtx", sp.coo_array(np.eye(3, 2)))
    with pytest.raises(InputError, match="jacobi needs a square matrix"):
        run(Options(matrix=tall, precondition="jacobi", out=str(folder / "out")), comm)
    data = written(comm, folder / "b.mtx", np.ones((3, 1)))
    with pytest.raises(InputError, match="but the matrix has 2 rows"):
        run(Options(matrix=skew, rhs=data, out=str(folder / "out")), comm)
    nan = written(comm, folder / "nan.mtx", sp.coo_array(np.diag([1.0, np.nan])))
    wrong = written(comm, folder / "c.mtx", np.array([[1.0], [np.inf]]))
    for path, given in ((nan, {}), (wrong, {"matrix": skew, "rhs": wrong})):
        with pytest.raises(InputError, match=f"{Path(path).name} has infinite values or NaN"):
            run(Options(**({"matrix": path} | given), out=str(folder / "out")), comm)
    if comm.rank == 0:  # it would fill the memory as an array
        (folder / "b.mtx").write_text("%%MatrixMarket matrix coordinate real general\n999999 999999 1\n1 1 1.0\n")
    comm.barrier()
    with pytest.raises(InputError, match=r"has the shape \(999999, 999999\), but the matrix has 2 rows"):
        run(Options(matrix=skew, rhs=data, out=str(folder / "out")), comm)
    with pytest.raises(InputError, match="does not exist"):
        Options(matrix="nothing.mtx").check()
    with pytest.raises(InputError, match="--points is for synthetic data"):
        Options(matrix=skew, points=100).check()
    with pytest.raises(InputError, match="--rhs needs a matrix from a file"):
        Options(rhs=data).check()
    with pytest.raises(InputError, match="--noise is for synthetic data"):
        Options(matrix=skew, rhs=data, noise=0.1).check()
