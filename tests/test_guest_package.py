"""A package of another author, on `collops.extend` alone: installed, found by its entry point, and run on ranks."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import collops
from tests.docs.pages import PAGES, blocks
from tests.launch import run_ranks

pytestmark = pytest.mark.serial

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tests" / "guest_package"
PROGRAMS = {
    **{path.name: path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))},
    **{
        f"{page.name}, {n}": text
        for page in PAGES
        if "own-" in page.name
        for n, text in enumerate(blocks(page, "python"))
    },
}
SIZE, DELAY, STRENGTH = 23, 9, -0.6
OPERATOR = np.eye(SIZE) + STRENGTH * np.eye(SIZE, k=-DELAY)

CHECKS = """
import json, sys
import numpy as np
import collops
from collops.apps import recipe
from collops.cli import main
from deecho import Echo, NeighbourExchange, steepest_descent

comm, rng = collops.world(), np.random.default_rng(0)
size, delay, strength, folder = json.loads(FACTS)
dense = np.eye(size) + strength * np.eye(size, k=-delay)
x, y = rng.standard_normal((2, size))
for transport in ("auto", NeighbourExchange):
    A = Echo(size, delay, strength, comm, transport=transport)
    assert A.dottest()
    np.testing.assert_allclose((A @ collops.from_global(x, A.domain)).gather(), dense @ x)
    data = collops.from_global(y, A.range)
    np.testing.assert_allclose(A.adjoint(data).gather(), dense.T @ y)
    found = steepest_descent(A, data, niter=400, rtol=1e-12)
    assert found.status is collops.Status.CONVERGED
    np.testing.assert_allclose(found.x.gather(), np.linalg.lstsq(dense, y)[0], atol=1e-10)
again = steepest_descent(A, data, found.x, niter=400)  # from the solution
assert again.residual_norms[0] < 1e-10
assert steepest_descent(A, 0 * data).status is collops.Status.EXACT_ZERO
saved = f"{folder}/checkpoint-{comm.size}"
steepest_descent(A, data, niter=9, rtol=1e-12, checkpoint=saved)
resumed = steepest_descent(A, data, niter=400, rtol=1e-12, checkpoint=saved, resume=True)
assert resumed.resumed_from == 9 and resumed.iterations == found.iterations
np.testing.assert_array_equal(resumed.x.gather(), found.x.gather())

edges = rng.integers(0, comm.size, (comm.size, 40)), rng.integers(0, 7, (comm.size, 40))
count = (40, 9, 0)[comm.rank]
forest = collops.StarForest(comm, 7, None, *(each[comm.rank, :count] for each in edges))
other = forest.with_transport(NeighbourExchange)
for block, dtype in (((), "f4"), ((3,), "c16"), ((2, 2), "i8")):
    roots, started = (100 * rng.standard_normal((4, comm.size, 7, *block))).astype(dtype)[:, comm.rank], []
    for each in roots:  # more than there are places
        want = forest.bcast(each)
        started.append((other.start_bcast(each), want))
        assert other.reduce(want, each.copy()).tobytes() == forest.reduce(want, each.copy()).tobytes()
    for one, want in started[::-1]:
        assert one.finish().tobytes() == want.tobytes()
other.free()

recipe._draw = lambda folder, found: []  # pictures take longer than all else
common = ["--trace", f"{folder}/trace.npy", "--delay", str(delay), "--strength", str(strength), "--quiet"]
common += ["--dtype", "float64", "--exchange", "neighbours"]
for code, arguments in (
    (0, ["--out", f"{folder}/{comm.size}", "--tol", "1e-10", "--json"]),
    (3, ["--out", f"{folder}/short", "--iterations", "2"]),
    (2, ["--delay", "0"]),
):
    try:
        main(["deecho", *common, *arguments])
    except SystemExit as left:
        sys.stdout.flush()
        assert left.code == code, (arguments, left.code)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder in which pip has installed the package, without a network."""
    for name in ("mpi4py", "pip"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    folder = tmp_path_factory.mktemp("guest")
    sources = shutil.copytree(PACKAGE, folder / "sources")  # where it is built
    options = "--no-build-isolation --no-deps --no-index --quiet --disable-pip-version-check --target"
    command = [sys.executable, "-m", "pip", "install", *options.split(), str(folder / "site"), str(sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_the_face_is_imported(name):
    for node in ast.walk(ast.parse(PROGRAMS[name])):
        names: list[tuple[str, str]] = []
        if isinstance(node, ast.Import):
            names = [(each.name, "") for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "", each.name) for each in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "collops":
            names = [("collops", node.attr)]
        for module, attribute in names:
            if module.partition(".")[0] != "collops":
                continue
            top = ".".join(module.split(".")[:2])
            assert module in ("collops", "collops.errors", "collops.profile") or top == "collops.extend"
            if module == "collops":
                assert attribute in ("", *collops.__all__)
            else:
                assert hasattr(importlib.import_module(module), attribute)


def test_the_face_loads_no_guest():
    """Modules that guests import first, of which one may import another that is being loaded."""
    modules = sorted(path.stem for path in (ROOT / "src" / "collops" / "extend").glob("[!_]*.py"))
    if importlib.util.find_spec("jax") is None:
        modules.remove("jax")
    first = "import sys, collops.extend.commands"
    program = f"{first}, {', '.join(f'collops.extend.{name}' for name in modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"collops.seismic", "collops.jacobi", "collops.compat", "collops.bridges"}.isdisjoint(done.stdout.split())


def test_it_is_in_the_list_of_commands(installed):
    path = {"PYTHONPATH": f"{installed}:{ROOT / 'src'}", "COLUMNS": "120"}
    command = [sys.executable, "-m", "collops", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\n  deecho +Remove the echo from a trace by steepest descent\.\n", done.stdout)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_it_runs(installed, tmp_path, ranks):
    signal = np.sin(np.arange(SIZE))
    np.save(tmp_path / "trace.npy", OPERATOR @ signal)
    program = CHECKS.replace("FACTS", repr(json.dumps([SIZE, DELAY, STRENGTH, str(tmp_path)])))
    path = f"{installed}:{ROOT / 'src'}"
    done = run_ranks(ranks, program, {"PYTHONPATH": path, "COLLOPS_TIMEOUT": "60"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "converged"
    written = zarr.open_group(tmp_path / str(ranks) / "result.zarr", mode="r")["signal"]
    np.testing.assert_allclose(written[...], signal, atol=1e-8)
    np.testing.assert_allclose(np.loadtxt(tmp_path / str(ranks) / "signal.txt"), written[...])
    short, wrong = done.stderr.splitlines()
    assert short == "collops deecho: --tol 1e-06 was not reached: raise --iterations"
    assert wrong == "collops deecho: --delay must be at least 1, not 0"
