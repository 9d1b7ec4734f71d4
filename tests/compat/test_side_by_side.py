"""PyLops-MPI and this package in one process on the same data: every operator and solver, every error, and each
difference that ``docs/from-pylops-mpi.md`` lists.

``tests/gpu/test_compat.py`` runs the same cases with CuPy and NCCL.
"""

from __future__ import annotations

import copy
import importlib
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pylops
import pytest

from collops.errors import NotFiniteError
from tests.operators.problems import vector

PEER, OURS = "pylops_mpi", "collops.compat.pylops_mpi"
pytest.importorskip(PEER, reason="PyLops-MPI is not installed")
pyproximal = pytest.importorskip("pyproximal", reason="PyProximal is not installed")
MPI = pytest.importorskip("mpi4py.MPI", reason="mpi4py is not installed")

# PyLops warns about matrices and arrays whose dtypes differ, in both packages alike.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Matrix A is a complex object"),
    pytest.mark.filterwarnings("ignore:Casting complex values to real"),
]

DIMS = (17, 4)  # more rows on the first rank; PyLops-MPI's stencils need four rows on each
DTYPES = ("float32", "float64", "complex128")
COPIES = ("BROADCAST", "UNSAFE_BROADCAST")
# Where both packages compute one thing: sums in another order, and factors that one of them multiplies beforehand.
ROUNDING = 100


@dataclass
class Side:
    """One of the two packages, with the settings of a case."""

    package: str
    dtype: str = "float64"
    partition: str = "SCATTER"
    xp: Any = np
    nccl: Any = None
    base_comm: Any = None

    def __post_init__(self) -> None:
        self.pkg = importlib.import_module(self.package)
        self.base_comm = MPI.COMM_WORLD if self.base_comm is None else self.base_comm
        self.rank, self.size = self.base_comm.Get_rank(), self.base_comm.Get_size()

    def get(self, path: str) -> Any:
        """Return a class or function by the names of its module and itself, ``"utils.dottest.dottest"``."""
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(f"{self.package}.{module}"), name)

    def array(self, values: np.ndarray, sizes: Any = None, partition: str = "", mask: Any = None, axis: int = 0) -> Any:
        """Distribute `values`, which every rank has."""
        kind = self.pkg.Partition[partition or self.partition]
        options = {"base_comm": self.base_comm, "base_comm_nccl": self.nccl, "partition": kind, "axis": axis}
        if sizes is None:
            return self.pkg.DistributedArray.to_dist(self.xp.asarray(values), mask=mask, **options)
        options |= {"local_shapes": [(n,) for n in sizes], "mask": mask}
        if self.nccl is None:
            return self.pkg.DistributedArray.to_dist(self.xp.asarray(values), **options)
        # PyLops-MPI's to_dist cannot send sizes over NCCL.
        x = self.pkg.DistributedArray(values.shape, engine=self.xp.__name__, dtype=values.dtype, **options)
        start = sum(sizes[: self.rank]) if kind is self.pkg.Partition.SCATTER else 0
        x[:] = self.xp.asarray(values[start : start + x.local_shape[0]])
        return x

    def vector(self, size: int, sizes: Any = None, seed: int = 1) -> Any:
        """Return a random vector."""
        return self.array(vector(int(size), self.dtype, seed), sizes)

    def matrix(self, rows: int, columns: int, seed: int = 0) -> Any:
        """Return a local operator that differs from rank to rank, well conditioned if it is square."""
        values = vector(rows * columns, self.dtype, 10 * seed + self.rank).reshape(rows, columns)
        values += 4 * np.eye(rows, columns, dtype=self.dtype)
        return pylops.MatrixMult(self.xp.asarray(values), dtype=self.dtype)

    def stacked(self, *parts: Any) -> Any:
        return self.pkg.StackedDistributedArray(list(parts), base_comm=self.base_comm)


def values_of(x: Any) -> Any:
    """Return what is compared of a result: names of types, shapes and partitions, and arrays and numbers."""
    if hasattr(x, "distarrays"):
        return ["stacked", *map(values_of, x.distarrays)]
    if hasattr(x, "local_array"):
        shapes = [tuple(map(int, shape)) for shape in x.local_shapes]
        whole = tuple(map(int, x.global_shape))
        return [whole, shapes, x.partition.name, x.axis, x.engine, str(np.dtype(x.dtype)), on_host(x.local_array)]
    if isinstance(x, list | tuple):
        return [values_of(part) for part in x]
    if isinstance(x, bool | int | float | complex | str | type(None)):
        return [type(x).__name__, x]  # numbers are of the same Python type
    return [type(x).__module__.partition(".")[0], on_host(x)]


def on_host(x: Any) -> np.ndarray:
    return x.get() if hasattr(x, "get") else np.asarray(x)


def assert_same(actual: Any, expected: Any, rtol: float, path: str = "") -> None:
    """Assert that two results of :func:`values_of` agree; floating-point numbers up to `rtol` times the largest."""
    if isinstance(expected, list):
        assert isinstance(actual, list) and len(actual) == len(expected), (path, actual, expected)
        for number, pair in enumerate(zip(actual, expected, strict=True)):
            assert_same(*pair, rtol, f"{path}[{number}]")
    elif isinstance(expected, float | complex | np.ndarray):
        one, two = np.asarray(actual), np.asarray(expected)
        assert (one.shape, one.dtype) == (two.shape, two.dtype), path
        scale = float(np.abs(two).max(initial=0.0)) if two.dtype.kind in "fc" else 0.0
        np.testing.assert_allclose(one, two, rtol=0, atol=rtol * scale, err_msg=path)
    else:
        assert actual == expected, (path, actual, expected)


def compare(case: Callable[[Side], Any], sides: tuple[Side, Side], factor: float = ROUNDING) -> None:
    """Assert that a case has the same result by both packages."""
    expected, actual = (values_of(case(side)) for side in sides)
    # A float may be the norm of a single-precision array, which only PyLops-MPI adds up in double precision.
    assert_same(actual, expected, factor * float(np.finfo(sides[0].dtype).eps))


def both(**settings: Any) -> tuple[Side, Side]:
    return Side(PEER, **settings), Side(OURS, **settings)


# Operators: each case returns an operator and a model, whose parts are uneven

Built = tuple[Any, Any]


def rows(s: Side) -> list[int]:
    return [7 + rank % 2 for rank in range(s.size)]


def columns(s: Side) -> list[int]:
    return [6 - rank % 3 for rank in range(s.size)]


def halves(s: Side) -> list[int]:
    return [2 * rank // s.size for rank in range(s.size)]


def block_diag(s: Side, **options: Any) -> Built:
    local = [s.matrix(rows(s)[s.rank], columns(s)[s.rank])]
    op = s.pkg.MPIBlockDiag(local, base_comm=s.base_comm, **options)
    return op, s.vector(op.shape[1], columns(s))


def masked_block_diag(s: Side) -> Built:
    op, _ = block_diag(s, mask=halves(s))
    return op, s.array(vector(op.shape[1], s.dtype, 1), columns(s), mask=halves(s))


def two_blocks(s: Side) -> Built:
    op = s.pkg.MPIBlockDiag([s.matrix(2, 2), s.matrix(rows(s)[s.rank], 2, 1)], base_comm=s.base_comm)
    return op, s.vector(op.shape[1])


def vertical(s: Side) -> Built:
    op = s.pkg.MPIVStack([s.matrix(rows(s)[s.rank], 5)], base_comm=s.base_comm)
    return op, s.vector(5)


def horizontal(s: Side) -> Built:
    op = s.pkg.MPIHStack([s.matrix(5, columns(s)[s.rank])], base_comm=s.base_comm)
    return op, s.vector(op.shape[1], columns(s))


def local(s: Side) -> Built:
    values = s.xp.asarray(vector(20, s.dtype, 3).reshape(4, 5))  # equal on all ranks
    return s.pkg.MPILinearOperator(pylops.MatrixMult(values, dtype=s.dtype), base_comm=s.base_comm), s.vector(5)


def derivative(name: str, dims: Any = DIMS, **options: Any) -> Callable[[Side], Built]:
    def build(s: Side) -> Built:
        op = getattr(s.pkg, name)(dims, dtype=s.dtype, base_comm=s.base_comm, **options)
        return op, s.vector(np.prod(dims))

    return build


def even(s: Side) -> list[int]:
    """Return the parts of a model along whole rows: only then can PyLops-MPI add the results of derivatives to it."""
    return [DIMS[1] * len(part) for part in np.array_split(np.arange(DIMS[0]), s.size)]


def stacked_vertical(s: Side) -> Built:
    op, _ = derivative("MPILaplacian")(s)
    return s.pkg.MPIStackedVStack([op, 0.5 * derivative("MPIFirstDerivative")(s)[0]]), s.vector(op.shape[1], even(s))


def stacked_block_diag(s: Side) -> Built:
    op, _ = derivative("MPISecondDerivative")(s)
    blocks, other = block_diag(s)
    return s.pkg.MPIStackedBlockDiag([op, blocks]), s.stacked(s.vector(op.shape[1], even(s)), other)


def algebra(s: Side) -> Built:
    A, _ = derivative("MPISecondDerivative")(s)
    B, _ = derivative("MPIFirstDerivative", kind="forward")(s)
    return (2 * A.H @ B - B.T @ A) ** 2 + 0.5 * A.conj(), s.vector(A.shape[1], even(s))


def fredholm(s: Side, **options: Any) -> Built:
    slices = [2 + rank % 2 for rank in range(s.size)]
    G = vector(sum(slices) * 12, s.dtype, 4).reshape(-1, 3, 4)
    mine = G[sum(slices[: s.rank]) :][: slices[s.rank]]
    op = s.get("signalprocessing.MPIFredholm1")(s.xp.asarray(mine), nz=2, dtype=s.dtype, **options)
    return op, s.vector(op.shape[1])


def convolution(s: Side) -> Built:
    per_rank = 6
    hs = vector(2 * s.size * 5, s.dtype, 5).reshape(-1, 5)
    ih = 1 + 3 * np.arange(2 * s.size)
    make = s.get("signalprocessing.MPINonStationaryConvolve1D")
    return make((per_rank * s.size,), hs, ih, base_comm=s.base_comm, dtype=s.dtype), s.vector(per_rank * s.size)


def wave_equation(s: Side) -> Built:
    slices, nt = [2 + rank % 2 for rank in range(s.size)], 4 * s.size + 7
    G = vector(sum(slices) * 6, "complex128", 4).reshape(-1, 3, 2)
    mine = s.xp.asarray(G[sum(slices[: s.rank]) :][: slices[s.rank]])
    op = s.get("waveeqprocessing.MPIMDC")(mine, nt=nt, nv=2, nfreq=sum(slices), dt=0.1, dr=2.0)
    return op, s.array(vector(op.shape[1], "float64", 6) + 0j)


def matrix_product(kind: str) -> Callable[[Side], Built]:
    def build(s: Side) -> Built:
        grid = int(s.size**0.5)
        if grid**2 != s.size:
            pytest.skip("PyLops-MPI multiplies matrices on square numbers of ranks only")
        row, column = divmod(s.rank, grid)
        full = vector(24 * grid**2, s.dtype, 7).reshape(6 * grid, 4 * grid)
        part = 6 * column if kind == "block" else 6 * row
        mine = full[part:][:6] if kind == "block" else full[part:][:6, 4 * column :][:, :4]
        make = s.get("basicoperators.MPIMatrixMult")
        comms = {"base_comm": s.base_comm, "base_comm_nccl": s.nccl}
        op = make(s.xp.asarray(np.ascontiguousarray(mine)), 2 * grid, kind=kind, dtype=s.dtype, **comms)
        return op, s.vector(op.shape[1])

    return build


def halo(widths: Any) -> Callable[[Side], Built]:
    def build(s: Side) -> Built:
        dims = (4, 3 * s.size)
        options = {"proc_grid_shape": (1, s.size), "comm": s.base_comm, "dtype": s.dtype}
        return s.get("basicoperators.Halo.MPIHalo")(dims, widths, **options), s.vector(np.prod(dims))

    return build


def inner_halo(s: Side) -> Built:
    """Halos with widths that differ from rank to rank: none at the ends of the array."""
    return halo((0, 0, int(s.rank > 0), int(s.rank < s.size - 1)))(s)


def fourier(s: Side) -> Built:
    pytest.importorskip("mpi4py_fft", reason="PyLops-MPI transforms by mpi4py-fft, which is not installed")
    op = s.get("signalprocessing.MPIFFTND")(DIMS, axes=(0, 1), base_comm=s.base_comm)
    return op, s.array(vector(np.prod(DIMS), "complex128", 1))


@dataclass(frozen=True)
class Case:
    """An operator with the partitions of models that it accepts."""

    build: Callable[[Side], Built]
    partitions: tuple[str, ...] = ("SCATTER",)
    dtypes: tuple[str, ...] = DTYPES
    dot_test: bool = True  # the adjoint of a halo drops it, so its dot test may fail
    host_only: bool = False  # PyLops-MPI has no tests of it with CuPy


REPLICABLE = ("SCATTER", "BROADCAST")
OPERATORS = {
    "block diagonal": Case(block_diag),
    "masked block diagonal": Case(masked_block_diag),
    "two blocks on each rank": Case(two_blocks),
    "vertical stack": Case(vertical, COPIES),
    "horizontal stack": Case(horizontal),
    "local operator": Case(local, COPIES),
    "first derivative": Case(derivative("MPIFirstDerivative", sampling=2.0), REPLICABLE),
    "first derivative, 5 points": Case(derivative("MPIFirstDerivative", order=5, edge=True), REPLICABLE),
    "forward derivative": Case(derivative("MPIFirstDerivative", (19,), kind="forward"), REPLICABLE),
    "backward derivative": Case(derivative("MPIFirstDerivative", (11, 2, 3), kind="backward"), REPLICABLE),
    "second derivative": Case(derivative("MPISecondDerivative", sampling=0.5), REPLICABLE),
    "second derivative, edges": Case(derivative("MPISecondDerivative", edge=True), REPLICABLE),
    "second derivative, forward": Case(derivative("MPISecondDerivative", kind="forward"), REPLICABLE),
    "Laplacian": Case(derivative("MPILaplacian", weights=(1, 3), sampling=(0.5, 2.0))),
    "gradient": Case(derivative("MPIGradient")),
    "stacked vertical stack": Case(stacked_vertical),
    "stacked block diagonal": Case(stacked_block_diag),
    "algebra": Case(algebra, dtypes=("float32", "float64")),
    "Fredholm integral": Case(fredholm, COPIES),
    "Fredholm integral, transposed": Case(lambda s: fredholm(s, saveGt=True, usematmul=False), COPIES),
    "convolution": Case(convolution, dtypes=("float32", "float64"), host_only=True),
    "multi-dimensional convolution": Case(wave_equation, COPIES, ("complex128",)),
    "SUMMA": Case(matrix_product("summa")),
    "matrix product by blocks": Case(matrix_product("block")),
    "halo": Case(halo(1), dot_test=False, host_only=True),
    "halo with zeros": Case(halo((1, 2)), dot_test=False, host_only=True),
    "halo without ends": Case(inner_halo, dot_test=False, host_only=True),
    "Fourier transform": Case(fourier, dtypes=("complex128",), host_only=True),
}
CASES = [(name, case.partitions[0], dtype) for name, case in OPERATORS.items() for dtype in case.dtypes]
CASES += [(name, other, case.dtypes[-1]) for name, case in OPERATORS.items() for other in case.partitions[1:]]


def applied(case: Case) -> Callable[[Side], Any]:
    """Return what a case compares: shapes, products with the operator and its adjoint, and the dot test."""

    def run(s: Side) -> Any:
        op, model = case.build(s)
        data = op.matvec(model)
        back = op.rmatvec(data)
        passed = s.get("utils.dottest.dottest")(op, model, data, raiseerror=False, rtol=1e-4)
        extents = [np.ravel(extent).tolist() for extent in (op.shape, op.dims, op.dimsd)]
        return [*extents, bool(passed) or not case.dot_test, data, back, (op.H @ data)]

    return run


@pytest.mark.parametrize(("name", "partition", "dtype"), CASES, ids=lambda part: part)
def test_operators(comm, name, partition, dtype) -> None:
    compare(applied(OPERATORS[name]), both(dtype=dtype, partition=partition))


# Arrays: each case returns results of their methods


def parts(s: Side, mask: Any = None, dtype: str = "", partition: str = "") -> Any:
    values = vector(7 * 5, dtype or s.dtype, 1).reshape(7, 5)
    return s.array(values, mask=mask, partition=partition)


def masked(s: Side) -> Any:
    return s.array(vector(4 * s.size, s.dtype, 2), mask=halves(s))


def stack(s: Side) -> Any:
    x = s.vector(7)
    return s.stacked(x, s.stacked(s.array(vector(9, s.dtype, 3)), x.copy()))


def assigned(s: Side) -> Any:
    x, both_parts = parts(s), stack(s)
    x[1:] = 2.5
    both_parts[0] = 3.0
    both_parts[1] = both_parts[1] + both_parts[1]
    return [x, x[:1], both_parts, x.local_array]


def in_place(s: Side) -> Any:
    x, y = parts(s), stack(s)
    x += parts(s)
    x -= 3 * parts(s)
    y += stack(s)
    y -= 3 * stack(s)
    return [x.iadd(parts(s)), y.iadd(stack(s))]


def on_half_of_the_ranks(s: Side) -> Any:
    """Arrays, an operator and a solver on two subcommunicators that work at the same time."""
    group = s.base_comm.Split(color=s.rank % 2, key=s.rank)
    sub = replace(s, base_comm=group)
    op, model = block_diag(sub)
    data = op @ model
    second = derivative("MPISecondDerivative")(sub)
    x = s.pkg.cgls(op, data, model.zeros_like(), niter=3, tol=0.0)[0]
    return [model, data, op.H @ data, second[0] @ second[1], model.dot(model), model.norm(1), model.asarray(), x]


NORMS = (None, 0, 1, 2, 3, np.inf, -np.inf)
ARRAYS: dict[str, Callable[[Side], Any]] = {
    "attributes": lambda s: [
        [x.ndim, x.rank, x.size, x.mask, x.base_comm.Get_size(), [list(map(int, shape)) for shape in x.local_shapes]]
        for x in (parts(s), masked(s))
    ],
    "attributes of stacks": lambda s: [
        [x.narrays, x.engine, x.rank, x.size, list(map(int, x.global_shape)), x.base_comm.Get_size(), len(x[:])]
        for x in (stack(s), s.stacked(parts(s), parts(s)), s.stacked(parts(s), s.stacked(parts(s), parts(s))))
    ],
    "gathered": lambda s: [x.asarray() for x in (parts(s), masked(s), stack(s))] + [masked(s).asarray(masked=True)],
    "arithmetic": lambda s: [
        [x + x, x - 2 * x, x * x, -x, 2 * x, x * 3.0, x.conj(), x.copy(), x.add(x), x.multiply(x)]
        for x in (parts(s), masked(s), stack(s))
    ],
    "zeros": lambda s: [parts(s).zeros_like(), stack(s)[1].zeros_like()],
    "numbers added": lambda s: [parts(s) + 1.5, masked(s) - 1.5],
    "empty": lambda s: [[x.engine, list(map(int, x.global_shape)), x.mask] for x in (masked(s).empty_like(),)],
    "in place": in_place,
    "assigned": assigned,
    "shapes": lambda s: [
        parts(s).ravel(),
        parts(s).ravel(order="F"),
        parts(s).ravel().reshape(parts(s).local_shape),
        parts(s).redistribute(1),
        parts(s).redistribute(1).redistribute(0),
    ],
    "ghost cells": lambda s: [
        parts(s, partition="SCATTER").add_ghost_cells(*cells) for cells in ((1,), (None, 1), (1, 1))
    ],
    "inner products": lambda s: [x.dot(x, vdot=vdot) for x in (parts(s), stack(s)) for vdot in (False, True)],
    "norms": lambda s: [x.norm(order) for x in (parts(s), masked(s), stack(s)) for order in NORMS],
    "norms along an axis": lambda s: [
        parts(s, partition="SCATTER").norm(order, axis=axis).astype(float) for order in NORMS[1:] for axis in (0, 1)
    ],
    "subcommunicators": on_half_of_the_ranks,
}
ARRAY_CASES = [(name, "SCATTER", dtype) for name in ARRAYS for dtype in DTYPES]
ARRAY_CASES += [(name, copies, "complex128") for name in ARRAYS if name != "subcommunicators" for copies in COPIES]


@pytest.mark.parametrize(("name", "partition", "dtype"), ARRAY_CASES, ids=lambda part: part)
def test_arrays(comm, name, partition, dtype) -> None:
    compare(ARRAYS[name], both(dtype=dtype, partition=partition))


def test_inner_products_of_masked_arrays(comm) -> None:
    compare(lambda s: [masked(s).dot(masked(s)), masked(s).dot(masked(s), vdot=True)], both(dtype="complex128"))


@pytest.mark.parametrize("name", ["SCATTER", *COPIES])
def test_partitions_of_the_real_package(name) -> None:
    theirs, mine = both()
    foreign = theirs.pkg.Partition[name]
    for x in (
        mine.pkg.DistributedArray(5, partition=foreign),
        mine.pkg.DistributedArray.to_dist(np.ones(5), partition=foreign),
    ):
        assert x.partition is mine.pkg.Partition[name]
    with pytest.raises(ValueError, match="Should be either"):
        mine.pkg.DistributedArray(5, partition=MPI.COMM_WORLD)


def test_integers(comm) -> None:
    def case(s: Side) -> Any:
        x = s.array(np.arange(9))
        return [x + x, 3 * x, x.dot(x), x.norm(), x.norm(1), s.stacked(x, x).dot(s.stacked(x, x))]

    compare(case, both())


def test_each_rank_chooses_its_ghost_cells(comm) -> None:
    compare(lambda s: s.vector(4 * s.size).add_ghost_cells(s.rank % 3, (s.rank + 1) % 3), both())


def test_copies_by_the_standard_library(comm) -> None:
    def case(s: Side) -> Any:
        x, stacked, op = parts(s), stack(s), block_diag(s)
        copies = [pickle.loads(pickle.dumps(x)), copy.deepcopy(x), copy.copy(x), copy.deepcopy(stacked)]
        copies += [copies[0] + x, copies[3] + stacked, copy.deepcopy(op[0]) @ op[1]]
        copies[1][:] = copies[3][0] = 0.0
        return [x, stacked, *copies]

    compare(case, both())


def test_numbers_of_numpy_keep_single_precision(comm) -> None:
    number = np.sqrt(2.0)
    compare(
        lambda s: [[number * x, x * number, x + number, x - number] for x in (parts(s),)] + [number * stack(s)],
        both(dtype="float32"),
    )


def test_only_the_first_rank_needs_values_of_an_assignment(comm) -> None:
    def case(s: Side) -> Any:
        x = s.array(np.arange(7), partition="BROADCAST")
        x.local_array[6] = s.rank  # elements that are not assigned to remain
        x[:] = x.local_array + 1 if s.rank == 0 else None
        x.local_array[6] = s.rank
        x[2] = 5 + s.rank
        x[[0, 3]] = np.array([s.rank + 10, 20])
        return x

    compare(case, both())


def test_types_of_sums(comm) -> None:
    theirs, mine = both()
    single, double, complex_, integers = ("float32", "float64", "complex128", "int64")
    for one, two in ((single, double), (double, complex_), (integers, double)):
        for s, expected in ((theirs, one), (mine, two)):
            x, y = parts(s, dtype=one), parts(s, dtype=two)
            assert {str((x + y).dtype), str((x - y).dtype), str((x * y).dtype)} == {expected}
    assert parts(theirs, dtype=integers).__mul__(0.5).dtype == integers  # PyLops-MPI drops the fractions
    assert (parts(mine, dtype=integers) * 0.5).dtype == double
    for s in (theirs, mine):
        x = parts(s, dtype=single)
        x += parts(s, dtype=double)
        assert x.dtype == single
    x = parts(mine)
    with pytest.raises(TypeError, match="Cannot cast"):
        x += parts(mine, dtype=complex_)


def test_norms_of_fractional_order() -> None:
    theirs, mine = (s.array(np.array([-1.0, 4.0, -9.0])) for s in both(base_comm=MPI.COMM_SELF))
    with np.errstate(invalid="ignore"):
        assert np.isnan(theirs.norm(0.5))
    assert mine.norm(0.5) == pytest.approx(36.0)


def test_ghost_cells_of_copies(comm) -> None:
    theirs, mine = (s.vector(2 * s.size).add_ghost_cells(1, 1) for s in both(partition="BROADCAST"))
    assert len(theirs) == 2 * comm.size + (comm.rank > 0) + (comm.rank < comm.size - 1)
    assert len(mine) == 2 * comm.size


def test_masks_in_stacked_arrays(comm) -> None:
    mask = [rank % 2 for rank in range(comm.size)]
    theirs, mine = (s.stacked(s.array(np.ones(comm.size), mask=mask), s.array(np.ones(3))) for s in both())
    theirs.norm()
    if comm.size > 1:
        with pytest.raises(ValueError, match="must share one mask"):
            mine.norm()


# Classes that users derive


def derived_operators(s: Side) -> Any:
    class Tripled(s.pkg.MPIBlockDiag):
        def _matvec(self, x: Any) -> Any:
            return 3 * super()._matvec(x)

        def _rmatvec(self, x: Any) -> Any:
            return 3 * super()._rmatvec(x)

    class Doubled(s.pkg.MPILinearOperator):
        def matvec(self, x: Any) -> Any:
            return 2 * super().matvec(x)

    op = Tripled([s.matrix(4, 3)])
    x, copies = s.vector(3 * s.size), s.array(vector(3, s.dtype, 1), partition="BROADCAST")
    doubled = Doubled(pylops.Identity(3, dtype=s.dtype))
    y = op @ x
    found = [y, op.H @ y, (op.H @ op) @ x, (2 * op) @ x, (-op + op * 3) @ x, op.conj() @ x, op.shape]
    found += [[tuple(map(int, shape)) for shape in (*op.local_shapes_m, *op.local_shapes_n)]]
    found += [s.pkg.MPIStackedVStack([op, op]) @ x, bool(s.get("utils.dottest.dottest")(op, x, y))]
    return [*found, s.pkg.cgls(op, y, 0 * x, niter=2, tol=0.0), (doubled * 2) @ copies, (doubled @ doubled) @ copies]


def derived_solver(s: Side) -> Any:
    class Counted(s.pkg.CGLS):
        steps = 0

        def step(self, x: Any, show: bool = False) -> Any:
            self.steps += 1
            return super().step(x, show)

    op, x = block_diag(s)
    solver = Counted(op)
    return [solver.solve(op @ x, 0 * x, niter=3, tol=0.0), solver.steps]


def derived_prox(s: Side) -> Any:
    class Halved(s.get("proximal.MPIProxOperator")):
        def prox(self, x: Any, tau: float) -> Any:
            return 0.5 * super().prox(x, tau)

    class Shifted(s.get("proximal.MPIL2")):
        def grad(self, x: Any) -> Any:
            return super().grad(x) + x

    op, x = block_diag(s)
    f = Shifted(Op=op, b=op @ x, x0=0 * x)
    method = s.get("proximal.optimization.primal.ProximalGradient")
    return [method(f, Halved(pyproximal.L1(0.1)), 0 * x, tau=0.01, niter=4)]


def test_methods_of_derived_classes_are_called(comm) -> None:
    for case in (derived_operators, derived_solver, derived_prox):
        compare(case, both(), CONDITION)


def test_methods_of_an_object_are_called(comm) -> None:
    for s in both():
        op, x = block_diag(s)
        calls: list[Any] = []
        y, matvec = op @ x, op.matvec
        op.matvec = lambda v, matvec=matvec, calls=calls: calls.append(v) or matvec(v)
        s.pkg.cgls(op, y, 0 * x, niter=3, tol=0.0)
        assert len(calls) >= 3


def test_widths_of_halos(comm) -> None:
    def case(s: Side) -> Any:
        halos = [s.pkg.MPIHalo((4 * s.size, 5), widths, proc_grid_shape=(s.size, 1)) for widths in (1, (1, 1))]
        return [[tuple(map(int, part)) for part in (op.halo, op.local_dims, op.local_extent)] for op in halos]

    compare(case, both())


def test_a_power_of_zero_is_the_identity(comm) -> None:
    def case(s: Side) -> Any:
        op, _ = derivative("MPISecondDerivative")(s)
        x = s.vector(op.shape[1], even(s))
        return [op**0 @ x, (op**0).H @ x]

    compare(case, both())


def test_powers_of_stacked_operators(comm) -> None:
    theirs, mine = both()
    op, x = stacked_block_diag(theirs)
    assert_same(values_of((op.H @ op) ** 2 @ x), values_of(x), 0.0)  # PyLops-MPI returns the model
    op, x = stacked_block_diag(mine)
    normal = op.H @ op
    assert_same(values_of(normal**2 @ x), values_of(normal @ (normal @ x)), 1e-12)


# Solvers: each case returns its results, with the iterates that the callback has seen


def seen(solve: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    iterates: list[Any] = []
    results = solve(*arguments, callback=lambda x, *_: iterates.append(x.copy()), **options)
    return [results, iterates]


def least_squares(s: Side, build: Callable[[Side], Built], **options: Any) -> Any:
    op, truth = build(s)
    return seen(s.pkg.cgls, op, op @ truth, 0.0 * truth, **options)  # zeros_like loses the mask there


def normal_equations(s: Side, build: Callable[[Side], Built], **options: Any) -> Any:
    op, truth = build(s)
    return seen(s.pkg.cg, op.H @ op, op.H @ (op @ truth), truth.zeros_like(), **options)


def sparse(s: Side, name: str, start: float = 0.0, **options: Any) -> Any:
    op, truth = block_diag(s)
    x0 = truth.zeros_like() + start
    return seen(getattr(s.pkg, name), op, op @ truth, x0, **{"niter": 7, "alpha": 1e-2, "tol": 0.0, **options})


def estimated_step(s: Side, name: str) -> Any:
    np.random.seed(3)  # noqa: NPY002 - both packages draw from this generator
    s.xp.random.seed(3)
    return sparse(s, name, alpha=None, eigsdict={"niter": 20, "tol": 0.0})


def eigenvalue(s: Side) -> Any:
    np.random.seed(5)  # noqa: NPY002
    s.xp.random.seed(5)
    op, model = block_diag(s)
    value, eigenvector, iterations = s.get("optimization.eigs.power_iteration")(
        op.H @ op, model.empty_like(), niter=15, tol=0.0, dtype=s.dtype, backend=s.xp.__name__
    )
    return [complex(value), eigenvector, iterations]


def step_by_step(s: Side, name: str) -> Any:
    op, truth = block_diag(s)
    data, options = op @ truth, {"alpha": 1e-2} if "ISTA" in name else {}
    if name == "CG":
        op, data = op.H @ op, op.H @ data
    solver = getattr(s.pkg, name)(op)
    x = solver.setup(data, truth.zeros_like(), niter=4, tol=0.0, **options)
    steps, state = [], (x, x.copy()) if name == "FISTA" else (x,)
    for _ in range(2):
        results = solver.step(*state)
        results = results if isinstance(results, tuple) else (results,)
        state = results[: len(state)]
        steps.append([*(part.copy() for part in state), *results[len(state) :]])
    x = solver.run(state[0], 4) if name != "FISTA" else state[0]  # FISTA.run starts again there
    solver.finalize()
    return [steps, x, solver.iiter, solver.cost]


def damped(s: Side) -> Any:
    return least_squares(s, block_diag, niter=5, damp=0.3, tol=0.0)


SOLVERS: dict[str, Callable[[Side], Any]] = {
    "cgls": lambda s: least_squares(s, block_diag, niter=3, tol=0.0),
    "cgls with damping": damped,
    "cgls to a tolerance": lambda s: least_squares(s, block_diag, niter=30, tol=50.0),
    "cgls of a replicated model": lambda s: least_squares(
        replace(s, partition="BROADCAST"), vertical, niter=3, tol=0.0
    ),
    "cgls of a stacked operator": lambda s: least_squares(s, stacked_block_diag, niter=6, tol=0.0),
    "cgls with regularization": lambda s: least_squares(s, stacked_vertical, niter=6, tol=0.0),
    "cgls with a mask": lambda s: least_squares(s, masked_block_diag, niter=3, tol=0.0),
    "cg": lambda s: normal_equations(s, block_diag, niter=3, tol=0.0),
    "cg to a tolerance": lambda s: normal_equations(s, block_diag, niter=30, tol=50.0),
    "ista": lambda s: sparse(s, "ista", eps=0.5),
    "fista": lambda s: sparse(s, "fista", eps=0.5),
    "ista, hard": lambda s: sparse(s, "ista", eps=0.5, threshkind="hard", start=1.0),
    "fista, half": lambda s: sparse(s, "fista", eps=0.5, threshkind="half", start=1.0),
    "ista, decaying": lambda s: sparse(s, "ista", eps=0.5, decay=s.xp.linspace(1, 0.5, 7)),
    "ista to a tolerance": lambda s: sparse(s, "ista", eps=0.5, tol=5e-1),
    "ista, transformed": lambda s: sparse(s, "ista", eps=0.5, SOp=block_rotation(s)),
    "ista, estimated step": lambda s: estimated_step(s, "ista"),
    "fista, estimated step": lambda s: estimated_step(s, "fista"),
    "power iteration": eigenvalue,
    **{f"{name}, step by step": lambda s, name=name: step_by_step(s, name) for name in ("CG", "CGLS", "ISTA", "FISTA")},
}


def block_rotation(s: Side) -> Any:
    n = columns(s)[s.rank]
    matrix = np.linalg.qr(vector(n * n, s.dtype, 9 + s.rank).reshape(n, n))[0]
    return s.pkg.MPIBlockDiag([pylops.MatrixMult(s.xp.asarray(matrix), dtype=s.dtype)])


# Rounding grows by the conditions of the operators: squares of 10 here.
CONDITION = 100 * ROUNDING


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", SOLVERS)
def test_solvers(comm, name, dtype) -> None:
    compare(SOLVERS[name], both(dtype=dtype), CONDITION)


# Proximal operators and methods


def prox(s: Side, name: str) -> Any:
    return s.get(f"proximal.{name}")


def local_prox(s: Side) -> Any:
    f, x = prox(s, "MPIProxOperator")(pyproximal.L1(0.3)), s.vector(11)
    y = s.stacked(x, s.vector(9, seed=3))
    moved = f.precomposition(2.0, s.vector(11, seed=2))
    scaled = f.postcomposition(3.0)
    # PyLops-MPI's NCCL has no booleans, which the value of a box is.
    box = [prox(s, "MPIProxOperator")(pyproximal.Box(-2.0, 2.0))(x)] if s.nccl is None else []
    return [
        *(g(x) for g in (f, scaled, moved)),
        *(g.prox(x, 0.5) for g in (f, scaled, moved)),
        [f(y), f.prox(y, 0.5), f.proxdual(x, 0.5), f.proxdual(y, 0.5)],
        *box,
    ]


def quadratic(s: Side) -> Any:
    x, b, q = (s.vector(11, seed=seed) for seed in (1, 2, 3))
    L2 = prox(s, "MPIL2")
    results = []
    for f in (L2(), L2(b=b, sigma=3.0), L2(b=b, q=q, alpha=0.5), L2(q=q, qgrad=False)):
        results.append([f(x), f.grad(x), f.prox(x.copy(), 0.5)])
    return results


def misfit(s: Side, solver: str = "cgls") -> Built:
    op, truth = block_diag(s)
    options = {"sigma": 2.0, "x0": truth.zeros_like(), "niter": 4, "kwargs_solver": {"tol": 0.0}}
    return prox(s, "MPIL2")(op, op @ truth, solver=solver, **options), truth


def misfit_prox(s: Side, solver: str) -> Any:
    f, x = misfit(s, solver)
    return [f(2 * x), f.grad(2 * x), f.prox(2 * x, 0.1), f.prox(3 * x, 0.1)]


def lengths(s: Side) -> Any:
    f, x = prox(s, "MPIL21")(ndim=2, sigma=0.7), s.stacked(s.vector(11, seed=1), s.vector(11, seed=2))
    return [f(x), f.prox(x, 0.5), f.proxdual(x, 0.5), f.sum_squared(x)]


def sparse_misfit(s: Side) -> tuple[Any, ...]:
    f, x = misfit(s)
    return f, prox(s, "MPIProxOperator")(pyproximal.L1(0.3)), x


def proximal_gradient(s: Side, **options: Any) -> Any:
    f, g, x = sparse_misfit(s)
    return seen(prox(s, "optimization.ProximalGradient"), f, g, x.zeros_like(), tau=1e-3, niter=6, **options)


def identity(s: Side, x: Any) -> Any:
    return s.pkg.MPIBlockDiag([pylops.Identity(int(x.local_shape[0]), dtype=s.dtype)])


def admm(s: Side, **options: Any) -> Any:
    f, g, x = sparse_misfit(s)
    options |= {"tau": 0.5, "niter": 3, "kwargs_solver": {"niter": 4, "tol": 0.0}}
    return seen(prox(s, "optimization.ADMML2"), g, f.Op, f.b, identity(s, x), x.zeros_like(), **options)


def primal_dual(s: Side, **options: Any) -> Any:
    f, g, x = sparse_misfit(s)
    zero = x.zeros_like()
    return seen(
        prox(s, "optimization.PrimalDual"), f, g, identity(s, x), zero, zero.copy(), 0.9, 0.9, niter=3, **options
    )


PROXIMAL: dict[str, Callable[[Side], Any]] = {
    "L1 of PyProximal": local_prox,
    "L2": quadratic,
    "L2 with an operator": lambda s: misfit_prox(s, "cgls"),
    "L2 with an operator, cg": lambda s: misfit_prox(s, "cg"),
    "L21": lengths,
    "proximal gradient": proximal_gradient,
    "proximal gradient, Vandenberghe": lambda s: proximal_gradient(s, acceleration="vandenberghe"),
    "proximal gradient, FISTA": lambda s: proximal_gradient(s, acceleration="fista"),
    "proximal gradient, under-relaxed": lambda s: proximal_gradient(s, eta=0.5),
    "ADMM": admm,
    "primal-dual": primal_dual,
    "primal-dual, both": lambda s: primal_dual(s, returny=True, gfirst=False, callbacky=True),
}


@pytest.mark.parametrize("name", PROXIMAL)
def test_proximal(comm, name) -> None:
    # Inner solves take a fixed number of steps, by recurrences of CG here and CGLS there, with different rounding.
    compare(PROXIMAL[name], both(), 1000 * CONDITION)


# Errors: the exception's type, and the words by which programs and PyLops-MPI's tests recognise it


def of(s: Side, name: str) -> Any:
    return s.pkg.Partition[name]


def mixed_engines(s: Side) -> Any:
    other = s.vector(5)
    other._engine = "another"  # as PyLops-MPI's own test does on machines without GPUs
    return s.stacked(s.vector(5), other)


def own(s: Side, shape: Any = None, dims: Any = None, dimsd: Any = None, **methods: Any) -> Any:
    """Return an operator of a user's class."""
    return type("Own", (s.pkg.MPILinearOperator,), methods)(shape=shape, dims=dims, dimsd=dimsd, dtype=np.float64)


def changed(s: Side, name: str, value: Any) -> None:
    setattr(own(s, (4, 6), (2, 3), (4,)), name, value)


def first(s: Side, **options: Any) -> Any:
    return derivative("MPIFirstDerivative", **options)(s)[0]


def nonstationary(s: Side, taps: int = 5, ih: Any = (1, 4)) -> Any:
    return s.get("signalprocessing.MPINonStationaryConvolve1D")((6 * s.size,), np.ones((len(ih), taps)), np.array(ih))


def monitored(s: Side, name: str) -> Any:
    op, x = block_diag(s)
    return getattr(s.pkg, name)(op, op @ x, x.zeros_like(), niter=9, alpha=1e5, monitorres=True, tol=0.0)


def unstarted(s: Side, name: str) -> Any:
    op, x = block_diag(s)
    solver = getattr(s.pkg, name)(op)
    options = {"alpha": 1e-2, "decay": np.ones(3)} if "ISTA" in name else {}
    return solver.run(solver.setup(op @ x, x.zeros_like(), **options))


def not_square(s: Side) -> Any:
    return block_diag(s)[0] ** 2


Failing = tuple[type[Exception], str, Callable[[Side], Any]]
ERRORS: dict[str, Failing] = {
    "mark": (
        RuntimeError,
        "mark() called outside of a benchmarked region",
        lambda s: s.get("utils.benchmark.mark")("A"),
    ),
    "axis": (IndexError, "Axis 2 out of range", lambda s: s.pkg.DistributedArray((5, 5), axis=2)),
    "NCCL": (ValueError, "NCCL Communicator only works", lambda s: s.pkg.DistributedArray(5, base_comm_nccl=object())),
    "local array": (
        ValueError,
        "local_array has shape",
        lambda s: s.pkg.DistributedArray(5 * s.size, local_array=np.ones(4)),
    ),
    "number of shapes": (
        ValueError,
        "Length of local shapes is not equal to number of processes",
        lambda s: s.pkg.DistributedArray(5, local_shapes=[(5,)] * (s.size + 1)),
    ),
    "shapes of copies": (
        ValueError,
        "Local shape is not equal to global shape",
        lambda s: s.pkg.DistributedArray(5, partition=of(s, "BROADCAST"), local_shapes=[(4,)] * s.size),
    ),
    "shapes of parts": (
        ValueError,
        "Local shapes don't align with the global shape",
        lambda s: s.pkg.DistributedArray((5 * s.size, 3), local_shapes=[(5, 4)] * s.size),
    ),
    "sum of partitions": (
        ValueError,
        "Partition of both the arrays must be same",
        lambda s: s.vector(5) + s.array(np.ones(5), partition="BROADCAST"),
    ),
    "product of partitions": (
        ValueError,
        "Partition of both the arrays must be same",
        lambda s: s.vector(5).dot(s.array(np.ones(5), partition="BROADCAST")),
    ),
    "sum of shapes": (ValueError, "Local Array Shape Mismatch", lambda s: s.vector(5 * s.size) + s.vector(6 * s.size)),
    "sum in place": (ValueError, "Local Array Shape Mismatch", lambda s: s.vector(5).iadd(s.vector(5 + s.size))),
    "order of a norm": (ValueError, "norm-fro not possible for vectors", lambda s: s.vector(5).norm("fro")),
    "axis of a norm": (ValueError, "axis=1 is out of range", lambda s: s.vector(5).norm(axis=1)),
    "another size": (ValueError, "cannot reshape", lambda s: s.vector(6 * s.size).reshape((4, 2))),
    "engines": (ValueError, "Stacked arrays have mismatching engines", mixed_engines),
    "numbers of parts": (
        ValueError,
        "Stacked arrays must be composed",
        lambda s: stack(s) + s.stacked(s.vector(7)),
    ),
    "shapes in stacks": (
        ValueError,
        "Stacked arrays 0 have different global shape",
        lambda s: s.stacked(s.vector(7)).dot(s.stacked(s.vector(8))),
    ),
    "model": (ValueError, "dimension mismatch", lambda s: first(s).matvec(s.vector(5))),
    "data": (ValueError, "dimension mismatch", lambda s: first(s).rmatvec(s.vector(5))),
    "stacked model": (ValueError, "dimension mismatch", lambda s: stacked_block_diag(s)[0].matvec(stack(s))),
    "product": (ValueError, "shape mismatch", lambda s: first(s) @ derivative("MPILaplacian", (5, 5))(s)[0]),
    "sum": (ValueError, "shape mismatch", lambda s: first(s) + derivative("MPILaplacian", (5, 5))(s)[0]),
    "sum with a number": (ValueError, "both operands have to be a MPILinearOperator", lambda s: first(s) + 2.0),
    "@ with a number": (ValueError, "Scalar not allowed, use * instead", lambda s: first(s) @ 2.0),
    "power": (ValueError, "square LinearOperator expected", not_square),
    "exponent": (ValueError, "non-negative integer expected as p", lambda s: first(s) ** 0.5),
    "no shape": (AttributeError, "object has no attribute 'shape'", lambda s: own(s).shape),
    "no dims": (AttributeError, "object has no attributes 'dims' or 'shape'", lambda s: own(s).dims),
    "no dimsd": (AttributeError, "object has no attributes 'dimsd' or 'shape'", lambda s: own(s).dimsd),
    "shape": (ValueError, "Invalid shape; must be 2-d tuple", lambda s: own(s, shape=(4, 6, 2))),
    "shape and dims": (ValueError, "New shape incompatible with dims", lambda s: changed(s, "shape", (4, 5))),
    "shape and dimsd": (ValueError, "New shape incompatible with dimsd", lambda s: changed(s, "shape", (5, 6))),
    "dims": (ValueError, "dims incompatible with shape[1]", lambda s: changed(s, "dims", (5,))),
    "dimsd": (ValueError, "dimsd incompatible with shape[0]", lambda s: changed(s, "dimsd", (5,))),
    "columns": (
        ValueError,
        "Operators have different number of columns",
        lambda s: s.pkg.MPIVStack([s.matrix(2, 3), s.matrix(2, 4)]),
    ),
    "rows": (
        ValueError,
        "Operators have different number of rows",
        lambda s: s.pkg.MPIHStack([s.matrix(3, 2), s.matrix(4, 2)]),
    ),
    "columns of a stack": (
        ValueError,
        "Operators have different number of columns",
        lambda s: s.pkg.MPIStackedVStack([first(s), derivative("MPILaplacian", (5, 5))(s)[0]]),
    ),
    "model of a block diagonal": (
        ValueError,
        "x should have partition=Partition.SCATTER",
        lambda s: block_diag(s)[0] @ s.array(np.ones(sum(columns(s))), partition="BROADCAST"),
    ),
    "model of a vertical stack": (
        ValueError,
        "x should have partition=Partition.BROADCAST,Partition.UNSAFE_BROADCAST",
        lambda s: vertical(s)[0] @ s.vector(5),
    ),
    "data of a vertical stack": (
        ValueError,
        "x should have partition=Partition.SCATTER",
        lambda s: vertical(s)[0].H @ s.array(np.ones(sum(rows(s))), partition="BROADCAST"),
    ),
    "model of a Laplacian": (
        ValueError,
        "x should have partition=Partition.SCATTER",
        lambda s: derivative("MPILaplacian")(s)[0] @ s.array(np.ones(np.prod(DIMS)), partition="BROADCAST"),
    ),
    "model of a Fredholm integral": (
        ValueError,
        "x should have partition=Partition.BROADCAST,Partition.UNSAFE_BROADCAST",
        lambda s: (op := fredholm(s)[0]) @ s.vector(op.shape[1]),
    ),
    "model of a halo": (
        ValueError,
        "Partition.SCATTER",
        lambda s: (op := halo(1)(s)[0]) @ s.array(np.ones(op.shape[1]), partition="BROADCAST"),
    ),
    "kind of a derivative": (NotImplementedError, "'kind' must be 'forward'", lambda s: first(s, kind="up")),
    "order of a derivative": (NotImplementedError, "'order' must be '3, or '5'", lambda s: first(s, order=4)),
    "kind of a second derivative": (
        NotImplementedError,
        "'kind' must be 'forward'",
        derivative("MPISecondDerivative", kind="up"),
    ),
    "axes of a Laplacian": (
        ValueError,
        "axes, weights, and sampling have different size",
        derivative("MPILaplacian", weights=(1,)),
    ),
    "even filters": (ValueError, "filters hs must have odd length", lambda s: nonstationary(s, taps=4)),
    "irregular filters": (ValueError, "must be regularly sampled", lambda s: nonstationary(s, ih=(1, 2, 4))),
    "filters outside": (ValueError, "must be larger than 0 and ", lambda s: nonstationary(s, ih=(1, 4, 100)[::2])),
    "even nt": (
        ValueError,
        "nt must be odd number",
        lambda s: s.get("waveeqprocessing.MPIMDC")(np.ones((2, 3, 2), "complex128"), nt=8, nv=1, nfreq=2),
    ),
    "kind of a product": (
        NotImplementedError,
        "kind must be summa or block",
        lambda s: s.get("basicoperators.MPIMatrixMult")(np.ones((2, 2)), 2, kind="cannon"),
    ),
    "grid of a halo": (
        ValueError,
        "does not match comm size",
        lambda s: s.get("basicoperators.Halo.MPIHalo")((8,), 1, proc_grid_shape=(s.size + 1,)),
    ),
    "widths of a halo": (
        ValueError,
        "Invalid halo length",
        lambda s: s.get("basicoperators.Halo.MPIHalo")((16 * s.size,), (1, 2, 3), proc_grid_shape=(s.size,)),
    ),
    "negative halo": (
        ValueError,
        "non-negative",
        lambda s: s.get("basicoperators.Halo.MPIHalo")((16 * s.size,), (-1, 1), proc_grid_shape=(s.size,)),
    ),
    "shape of an operator in the dot test": (
        AssertionError,
        "nr and nc do not match operator shape",
        lambda s: s.get("utils.dottest.dottest")(first(s), s.vector(68), s.vector(68), nr=3),
    ),
    "failing dot test": (
        AssertionError,
        "Dot test failed",
        lambda s: s.get("utils.dottest.dottest")(
            own(s, shape=(5, 5), _matvec=lambda _, x: 2 * x, _rmatvec=lambda _, x: x), s.vector(5), s.vector(5)
        ),
    ),
    **{
        f"threshold of {name}": (
            ValueError,
            "threshkind must be hard, soft, half, got foo",
            # x0 has the place of another argument: this must not be noticed first
            lambda s, name=name: getattr(s.pkg, name)(block_diag(s)[0], s.vector(5), 10, threshkind="foo"),
        )
        for name in ("ista", "fista")
    },
    **{
        f"step of {name}": (
            ValueError,
            f"{name.upper()} stopped at iteration 1 due to residual increasing",
            lambda s, name=name: monitored(s, name),
        )
        for name in ("ista", "fista")
    },
    **{
        f"niter of {name}": (ValueError, "niter must not be None", lambda s, name=name: unstarted(s, name))
        for name in ("CG", "CGLS")
    },
    "length of vectors": (
        ValueError,
        "Expected 3 DistributedArray",
        lambda s: prox(s, "MPIL21")(ndim=3).prox(s.stacked(s.vector(5), s.vector(5)), 0.1),
    ),
    "L2 without x0": (ValueError, "x0 must be passed", lambda s: prox(s, "MPIL2")(first(s), s.vector(68))),
    "solver of L2": (ValueError, "Available options are 'cg' or 'cgls'", lambda s: prox(s, "MPIL2")(solver="lsqr")),
    "tau": (ValueError, "tau must be positive", lambda s: prox(s, "MPIL2")().prox(s.vector(5), 0.0)),
    "tau of a local operator": (
        ValueError,
        "tau must be positive",
        lambda s: prox(s, "MPIProxOperator")(pyproximal.L1()).prox(s.vector(5), -1.0),
    ),
    "acceleration": (
        NotImplementedError,
        "Acceleration should be None, vandenberghe or fista",
        lambda s: proximal_gradient(s, acceleration="nesterov"),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(comm, name) -> None:
    kind, words, case = ERRORS[name]
    for side in both():
        with pytest.raises(kind, match=re.escape(words)):
            case(side)


# Differences, which docs/from-pylops-mpi.md lists


@pytest.mark.parametrize("partition", COPIES)
@pytest.mark.parametrize("shape", [(17,), (2, 5), (7, 3, 2)])
def test_masked_inner_products_of_copies(comm, partition, shape) -> None:
    one, two = (vector(np.prod(shape), "complex128", seed).reshape(shape) for seed in (1, 2))

    def case(s: Side) -> Any:
        x, y = (s.array(values, mask=halves(s), partition=partition) for values in (one, two))
        along = s.array(one, mask=halves(s), partition=partition, axis=len(shape) - 1)
        pairs = [(x, y), (y, x), (along, along), (s.stacked(x, y), s.stacked(y, y))]
        return [u.dot(v, vdot=vdot) for u, v in pairs for vdot in (False, True)] + [x.norm()]

    compare(case, both())
    s = both()[1]
    mine = [part for rank, part in enumerate(np.array_split(one, s.size)) if halves(s)[rank] == halves(s)[s.rank]]
    expected = np.concatenate(mine).ravel()
    assert case(s)[5] == pytest.approx(np.vdot(expected, expected))


def test_arrays_with_one_mask_share_a_communicator(comm) -> None:
    def made(base: Any, mask: list[int]) -> Any:
        return mine.pkg.DistributedArray(comm.size, base_comm=base, mask=mask)

    theirs, mine = both()
    base = MPI.COMM_WORLD.Dup()
    first = made(base, halves(mine)).sub_comm
    expected = theirs.pkg.DistributedArray(comm.size, base_comm=base, mask=halves(mine)).sub_comm
    assert MPI.Comm.Compare(first, expected) in (MPI.IDENT, MPI.CONGRUENT)
    for _ in range(2100):  # MPICH has 2048 communicators
        x = made(base, halves(mine))
        assert x.sub_comm == x.copy().sub_comm == first
    other = made(base, [7] * comm.size).sub_comm
    assert other != first
    assert made(None, halves(mine)).sub_comm not in (first, other)
    first.Free()
    again = made(base, halves(mine)).sub_comm
    assert again == made(base, halves(mine)).sub_comm != MPI.COMM_NULL
    base.Free()
    assert again == other == MPI.COMM_NULL


def test_norms_along_an_axis(comm) -> None:
    values = vector((comm.size + 2) * 6, "float64", 1).reshape(-1, 3, 2)
    expected = np.linalg.norm(values, axis=0)
    theirs, mine = (s.array(values) for s in both())
    np.testing.assert_allclose(mine.norm(axis=0), expected)
    np.testing.assert_allclose(theirs.norm(axis=0), expected.ravel())  # without the shape
    one, none = (s.vector(9).norm(axis=0) for s in both())
    assert (np.shape(one), np.shape(none)) == ((1,), ()) and none == pytest.approx(one[0])
    expected = np.linalg.norm(values, axis=-1)
    np.testing.assert_allclose(mine.norm(axis=-1), expected)
    theirs, mine = (s.array(values, partition="BROADCAST") for s in both())
    np.testing.assert_allclose(mine.norm(axis=2), expected)
    np.testing.assert_allclose(theirs.norm(axis=2), np.concatenate([expected] * comm.size))  # once for each rank


def test_norms_in_single_precision() -> None:
    values = vector(1001, "float32", 1)
    theirs, mine = (s.array(values).norm(1) for s in both())
    expected = np.abs(values.astype("float64")).sum()
    assert theirs == pytest.approx(expected, rel=1e-14)
    assert mine == pytest.approx(expected, rel=1e-6)


def test_damping_from_a_start() -> None:
    def squared_gradient(s: Side, niter: int) -> Any:
        op, truth = block_diag(s)
        y = op @ truth
        x = s.pkg.cgls(op, y, 2.0 * truth, niter=niter, damp=3.0, tol=0.0)[0]
        return x.asarray(), (op.H @ (y - op @ x) - 9.0 * x).norm()

    (theirs, first_there), (mine, first_here) = (squared_gradient(s, 1) for s in both())
    assert np.abs(theirs - mine).max() > 1e-3  # it starts along another vector than the gradient
    assert first_here < first_there
    mine, gradient = squared_gradient(both()[1], 30)
    assert gradient < 1e-10 * first_here


def test_infinite_numbers() -> None:
    def from_infinite_data(s: Side, name: str, by_steps: bool = False) -> Any:
        op, x = block_diag(s)
        y = op @ x
        y[0] = np.inf
        options = {"niter": 3, "tol": 0.0} | ({"alpha": 1e-2} if "ista" in name else {})
        if not by_steps:
            return getattr(s.pkg, name)(op, y, x.zeros_like(), **options)[-1]
        solver = getattr(s.pkg, name.upper())(op)
        solver.run(solver.setup(y, x.zeros_like(), **options))
        return solver.cost

    theirs, mine = both()
    with np.errstate(all="ignore"):
        for name in ("cgls", "ista", "fista"):
            assert not np.isfinite(from_infinite_data(theirs, name)[-1])
            for by_steps in (False, True):
                with pytest.raises(NotFiniteError):
                    from_infinite_data(mine, name, by_steps)


@pytest.mark.parametrize(("dtype", "alpha"), [("float64", 1e5), ("complex128", 1e5), ("float32", 1e30)])
@pytest.mark.parametrize("name", ["ista", "fista"])
def test_steps_that_are_too_long(name, dtype, alpha) -> None:
    def diverging(s: Side, by_steps: bool = False, **options: Any) -> Any:
        op, x = block_diag(s)
        options |= {"niter": 100, "alpha": alpha, "tol": 0.0}
        if not by_steps:
            return getattr(s.pkg, name)(op, op @ x, x.zeros_like(), **options)[1:]
        solver = getattr(s.pkg, name.upper())(op)
        solver.run(solver.setup(op @ x, x.zeros_like(), **options))
        return solver.iiter, solver.cost

    theirs, mine = both(dtype=dtype)
    with np.errstate(all="ignore"):
        for s, by_steps in ((theirs, False), (mine, False), (mine, True)):
            iterations, cost = diverging(s, by_steps)
            assert len(cost) == iterations < 100
            assert not np.isfinite(cost[-1])
            with pytest.raises(ValueError, match=f"{name.upper()} stopped at iteration 1 due to residual increasing"):
                diverging(s, by_steps, monitorres=True)


def test_residuals_that_increase_in_the_last_step(comm) -> None:
    def last(s: Side, name: str, niter: int) -> Any:
        op, x = block_diag(s)
        options = {"niter": niter, "alpha": 10.0, "tol": 0.0, "monitorres": True}
        return getattr(s.pkg, name)(op, op @ x, x.zeros_like(), **options)[1]

    theirs, mine = both()
    for name in ("ista", "fista"):
        assert last(theirs, name, 1) == 1  # it looks at the residual before each step only
        with pytest.raises(ValueError, match="residual increasing"):
            last(mine, name, 1)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_dtypes_of_multiples(dtype) -> None:
    (theirs, found_there), (mine, found_here) = (
        ((2.0 * op).dtype, ((2.0 * op) @ x).dtype) for op, x in map(block_diag, both(dtype=dtype))
    )
    assert mine == found_here == found_there == dtype
    assert theirs == np.result_type(dtype, "float64")


def test_multiples_of_proximal_operators() -> None:
    values = np.array([1.0, -2.0, 0.5])

    def twice(s: Side, sigma: Any) -> Any:
        return prox(s, "MPIProxOperator")(pyproximal.L1(0.5)).postcomposition(sigma)

    theirs, mine = both()
    x = mine.array(np.tile(values, mine.size))
    expected = np.sign(values) * np.maximum(np.abs(values) - 2 * 0.1 * 0.5, 0)
    plain = prox(mine, "MPIProxOperator")(pyproximal.L1(0.5))
    for f in (twice(mine, 2.0), twice(mine, 2), twice(mine, np.float32(2)), 2 * plain, plain * 2.0):
        np.testing.assert_allclose(f.prox(x, 0.1).local_array, expected)
    y = theirs.array(np.tile(values, theirs.size))
    np.testing.assert_allclose(twice(theirs, 2.0).prox(y, 0.1).local_array, expected)
    shifted = plain.precomposition(np.float32(2), np.float32(1))  # of 2 x + 1
    np.testing.assert_allclose(shifted(x), 0.5 * np.abs(2 * x.asarray() + 1).sum())
    for sigma in (2, np.float32(2)):
        with pytest.raises(NotImplementedError, match="sigma must be of type float"):
            twice(theirs, sigma)
    with pytest.raises(TypeError):
        2.0 * prox(theirs, "MPIProxOperator")(pyproximal.L1(0.5))


def test_admm_with_g_first() -> None:
    weights, tau = np.array([1.0, 2.0, 3.0]), 0.5

    def minimised(s: Side) -> Any:
        op = s.pkg.MPIBlockDiag([pylops.Diagonal(weights)])
        x = s.array(np.tile(np.array([1.0, -2.0, 0.5]), s.size))
        options = {"tau": tau, "niter": 4, "gfirst": True, "kwargs_solver": {"niter": 3, "tol": 0.0}}
        g = prox(s, "MPIProxOperator")(pyproximal.L1(0.3))
        return prox(s, "optimization.ADMML2")(g, op, op @ x, identity(s, x), 0.5 * x, **options)[0].local_array

    def reference(old: bool) -> np.ndarray:
        """Boyd et al. 2011, 3.1.1 with z first; with `old` the dual variable follows the x before."""
        x = np.array([0.5, -1.0, 0.25])
        data, u = weights * 2 * x, 0 * x
        for _ in range(4):
            z = np.sign(x + u) * np.maximum(np.abs(x + u) - tau * 0.3, 0)
            before, x = x, (weights * data + (z - u) / tau) / (weights**2 + 1 / tau)
            u = u + (before if old else x) - z
        return x

    theirs, mine = both()
    np.testing.assert_allclose(minimised(mine), reference(old=False), rtol=1e-10)
    np.testing.assert_allclose(minimised(theirs), reference(old=True), rtol=1e-10)


def per_rank(s: Side) -> tuple[int, int]:
    """Return widths that differ between neighbours."""
    return (0, 1) if s.rank == 0 else (2, 2)


REFUSED_HALOS: dict[str, tuple[str, Callable[[Side], tuple[Any, Any, Any]]]] = {
    "wider than each block": ("exceeds local block size", lambda s: ((2 * s.size,), 3, (s.size,))),
    "wider than the last block": ("exceeds local block size", lambda s: ((2 * s.size - 1,), 2, (s.size,))),
    "wider along the second axis": ("exceeds local block size", lambda s: ((9, 2 * s.size), (1, 1, 3, 3), None)),
    "different on both sides": ("does not match neighbor", lambda s: ((16 * s.size,), (1, 2), (s.size,))),
    "different on the first axis": ("does not match neighbor", lambda s: ((9 * s.size, 4), (2, 0, 1, 1), (s.size, 1))),
    "different on two ranks": ("does not match neighbor", lambda s: ((4 * s.size,), per_rank(s), (s.size,))),
    "both": ("exceeds local block size", lambda s: ((2 * s.size,), (1, 3), (s.size,))),
}


@pytest.mark.parametrize("name", REFUSED_HALOS)
def test_halos_that_are_refused(comm, name) -> None:
    words, arguments = REFUSED_HALOS[name]
    for s in both():
        if comm.size == 1:  # no neighbour exchanges these halos
            assert s.pkg.MPIHalo(*arguments(s)).local_dims == arguments(s)[0]
        else:
            with pytest.raises(ValueError, match=words):
                s.pkg.MPIHalo(*arguments(s))


def test_halos_that_are_accepted(comm) -> None:
    def case(s: Side) -> Any:
        found = []
        for dims, widths, grid in (
            ((3, 2 * s.size), (5, 5, 2, 2), None),  # wide along the axis that is not split
            ((2 * s.size, 3), (1, 1, 0, 4), (s.size, 1)),  # different on both sides along that axis
            ((2 * s.size,), (4 * (s.rank == 0), 0), (s.size,)),  # wide at the end of the array
        ):
            op = s.pkg.MPIHalo(dims, widths, grid)
            shapes = [tuple(map(int, part)) for part in (op.halo, op.local_dims, op.local_extent)]
            found += [shapes, op @ s.vector(np.prod(dims))]
        return found

    compare(case, both())


def test_a_halo_that_is_invalid_on_one_rank(comm) -> None:
    # PyLops-MPI's other ranks wait without end.
    for widths, words in (((-1, 1), "non-negative"), ((1, 2, 3), "Invalid halo length")):
        with pytest.raises(ValueError, match=words):
            both()[1].pkg.MPIHalo((4 * comm.size,), widths if comm.rank == comm.size - 1 else 1, (comm.size,))
