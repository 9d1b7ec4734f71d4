"""All example and tutorial scripts of PyLops-MPI, run unchanged by both packages: their variables agree.

The scripts come from PyLops-MPI's source distribution, which pip fetches. Two scripts use a square number of ranks,
and leave the others out; PyLops-MPI waits for these without end, so that on two ranks they are compared with NumPy.
Tutorials, and the longest example, are made smaller, unless the environment's COLLOPS_FULL_TUTORIALS is 1.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collops.compat.pylops_mpi.__main__ import main
from tests.compat.source import source
from tests.launch import mpiexec

pytestmark = [pytest.mark.serial, pytest.mark.timeout(14400)]

RANKS = 2
EXAMPLES = (
    *("plot_cgls", "plot_derivative", "plot_distributed_array", "plot_halo", "plot_mdc", "plot_mpilinop"),
    *("plot_nonstatconv", "plot_prox", "plot_proxsolver", "plot_stacked_array", "plot_stacking"),
)
ON_SQUARES = ("plot_matrixmult", "plot_summamatrixmult")
FOURIER = "plot_ffts"
_COARSE_MODEL = {
    "[::3]": "[::8]",
    "[:, ::3]": "[::4, ::8]",
    "[:, 200, :]": "[:, 50, :]",
    "[:, :, 220]": "[:, :, 100]",
}
SMALLER = {
    "benchmarking": {},
    "lsm": {
        "niter=100": "niter=4",
        "nx, nz = 81, 60": "nx, nz = 31, 60",
        "nr = 11": "nr = 4",
        "ns = 10\n": "ns = 2\n",
        'engine="numba"': 'engine="numpy"',  # it is compiled longer than it runs
    },
    "mdd": {
        '"nx": 121': '"nx": 21',
        '"ny": 201': '"ny": 25',
        '"nt": 800': '"nt": 200',
        '"nfmax": 400': '"nfmax": 60',
        "niter=50": "niter=5",
    },
    # Its filters need 16 samples along y, and 91 along x.
    "poststack": {
        **_COARSE_MODEL,
        'model["z"]': 'model["z"][::4]',
        "ny_i = 20": "ny_i = 16",
        "niter=100": "niter=3",
        "niter=40": "niter=2",
        "niter=20": "niter=2",
    },
    "reflectivity": {
        **_COARSE_MODEL,
        "model['z']": "model['z'][::4]",
        "ny_i = 20": "ny_i = 3",
        "niter=200": "niter=4",
    },
    "plot_proxsolver": {"niter=400": "niter=10", "niter=5": "niter=2", "iter_lim=5": "iter_lim=2"},
}
TUTORIALS = ("benchmarking", "lsm", "mdd", "poststack", "reflectivity")
FULL = os.environ.get("COLLOPS_FULL_TUTORIALS") == "1"
# These demand the rounding of PyLops-MPI.
NOT_OURS = ("test_derivative",)
LOOSER = {
    # Vectors are in extended precision, but the peer's scalars in double.
    "plot_cgls": 1e-6,
    # The kernel is in double precision, the data in single, in which the peer transforms them.
    "mdd": 1e-4,
    # So many iterations make rounding visible.
    **({"lsm": 1e-2, "poststack": 1e-2, "reflectivity": 1e-4} if FULL else {}),
}

Left = dict[str, Any]
Replay = Callable[[str], list[Left]]


@pytest.fixture(scope="module")
def scripts(request, tmp_path_factory) -> dict[str, Path]:
    """Every script by its name, in a folder that holds the data that they read."""
    folder = source(request.config, tmp_path_factory.mktemp("scripts"))
    found = {path.stem: path for kind in ("examples", "tutorials") for path in folder.glob(f"{kind}/*.py")}
    assert set(found) == {*EXAMPLES, *ON_SQUARES, FOURIER, *TUTORIALS}
    for name, changes in SMALLER.items() if not FULL else ():
        text = found[name].read_text()
        for large, small in changes.items():
            assert large in text, (name, large)
            text = text.replace(large, small)
        found[name].write_text(text)
    return found


def replayed(scripts: dict[str, Path], folder: Path, runs: dict[str, tuple[str, ...]], ranks: int) -> dict[str, Replay]:
    """Run scripts by packages, all in one start; return for each package the variables of a script on each rank."""

    def left_by(package: str) -> Replay:
        return lambda name: [pickle.loads((folder / package / f"{name}.{rank}").read_bytes()) for rank in range(ranks)]

    left = {package: left_by(package) for package in runs}
    if (folder / "complete").exists():
        return left
    words = []
    for package, names in runs.items():
        (folder / package).mkdir()
        words += [package, *(str(scripts[name]) for name in names)]
    environment = {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    # With more ranks than cores, waiting ranks yield to the others: PyLops-MPI's scripts take half the time.
    environment |= {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
    worker = Path(__file__).with_name("replay.py")
    done = subprocess.run(
        [mpiexec(), "-n", str(ranks), sys.executable, str(worker), str(folder), *words],
        env={**os.environ, **environment, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        text=True,
        timeout=7200 if FULL else 900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (folder / "complete").touch()
    return left


@pytest.fixture(scope="module")
def both(scripts, tmp_path_factory) -> dict[str, Replay]:
    """Run by the first worker of pytest-xdist that needs it; the others wait for what it leaves."""
    names = EXAMPLES + TUTORIALS
    runs = {"pylops_mpi": names, "collops": (*names, FOURIER, *ON_SQUARES)}
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "replayed"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return replayed(scripts, folder, runs, RANKS)


def assert_same(ours: Any, theirs: Any, where: str, looser: float | None) -> None:
    """Assert that the variables of a script agree: layouts exactly, numbers to rounding."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict) and ours.keys() == theirs.keys(), where
        for name, value in theirs.items():
            assert_same(ours[name], value, f"{where}.{name}", looser)
    elif isinstance(theirs, list | str):
        assert ours == theirs, where
    else:
        expected, actual = np.asarray(theirs), np.asarray(ours)
        assert actual.shape == expected.shape, where
        single = expected.dtype in (np.float32, np.complex64)
        tolerance = max(looser or 0.0, 1e-5 if single else 1e-8)
        scale = float(np.abs(expected).max(initial=0.0)) if expected.ndim else max(1.0, abs(float(np.abs(expected))))
        with np.errstate(invalid="ignore"):
            difference = np.abs(np.subtract(actual, expected, dtype=np.result_type(actual, expected, np.float32)))
        if not (difference <= tolerance * scale).all():  # many times faster if all agree
            np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale, err_msg=where)


@pytest.mark.parametrize("name", EXAMPLES + TUTORIALS)
def test_scripts_compute_the_same(both, name) -> None:
    for rank, (ours, theirs) in enumerate(zip(both["collops"](name), both["pylops_mpi"](name), strict=True)):
        names = sorted(theirs.keys() - {"seconds"})
        assert names, "a script that leaves nothing cannot fail"
        assert ours.keys() >= set(names)
        for variable in names:
            assert_same(ours[variable], theirs[variable], f"{variable} on rank {rank}", LOOSER.get(name))


def test_products_of_matrices_on_a_square_of_ranks(scripts, tmp_path) -> None:
    left = replayed(scripts, tmp_path, {"pylops_mpi": ON_SQUARES, "collops": ON_SQUARES}, 4)
    for name in ON_SQUARES:
        for rank in range(4):
            mine, peers = (left[package](name)[rank] for package in ("collops", "pylops_mpi"))
            for variable in peers.keys() - {"seconds"}:
                assert_same(mine[variable], peers[variable], f"{name}: {variable} on rank {rank}", None)


@pytest.mark.parametrize(
    ("name", "matrix", "model", "product", "back"),
    [("plot_matrixmult", "A", "X", "y", "xadj"), ("plot_summamatrixmult", "A_data", "x_data", "y_dist", "xadj_dist")],
)
def test_products_where_ranks_are_left_out(both, name, matrix, model, product, back) -> None:
    for left in both["collops"](name)[: 1 if name == "plot_matrixmult" else RANKS]:
        A, X = left[matrix], left[model]
        np.testing.assert_allclose(left[product]["local"], (A @ X).ravel(), rtol=1e-6)
        np.testing.assert_allclose(left[back]["local"], (A.T @ A @ X).ravel(), rtol=1e-6)
        assert "y1" in left


def test_fourier_transforms(both) -> None:
    # The peer needs mpi4py-fft, which is compiled at installation; compare with NumPy.
    for left in both["collops"](FOURIER):
        d = left["d"]
        np.testing.assert_allclose(left["D_3d"], np.fft.fftn(d), atol=1e-9 * np.abs(left["D_3d"]).max())
        np.testing.assert_allclose(left["dinv"], d, atol=1e-10 * np.abs(d).max())


def test_the_tests_of_pylops_mpi(request, tmp_path) -> None:
    folder = source(request.config, tmp_path)
    (folder / "tests" / "conftest.py").write_text("from collops.compat.pylops_mpi import install\n\ninstall()\n")
    command = [
        mpiexec(),
        "-n",
        "2",
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-k",
        f"not ({' or '.join(NOT_OURS)})",
        "tests",
    ]
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert done.stdout.count(" passed") == 2, done.stdout[-4000:]


def test_modules_are_run_as_scripts(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "import pylops_mpi\n"
        "from pylops_mpi.DistributedArray import Partition, local_split\n"
        "from pylops_mpi.utils._nccl import initialize_nccl_comm\n"
        "from beside import word\n"
        "assert pylops_mpi.__name__ == 'collops.compat.pylops_mpi', pylops_mpi\n"
        "assert isinstance(pylops_mpi.DistributedArray, type)\n"
        "print(word, sys.argv[1:], __name__)\n"
    )
    (tmp_path / "beside.py").write_text("word = 'found'\n")
    command = [sys.executable, "-m", "collops.compat.pylops_mpi", str(script), "an", "argument"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "found ['an', 'argument'] __main__\n"
    with pytest.raises(SystemExit, match=r"there is no script nowhere\.py"):
        main(["nowhere.py"])


def test_an_error_on_one_rank_ends_all(tmp_path) -> None:
    # The peer waits without end.
    script = tmp_path / "script.py"
    script.write_text(
        "import pylops_mpi\n"
        "from mpi4py import MPI\n"
        "if MPI.COMM_WORLD.Get_rank() == 1:\n"
        "    raise KeyError('only here')\n"
        "pylops_mpi.DistributedArray(5).norm()\n"
    )
    command = [mpiexec(), "-n", "2", sys.executable, "-m", "collops.compat.pylops_mpi", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0 and "only here" in done.stderr
