"""The examples run, are short enough to read, and find what they look for."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.launch import run_ranks

EXAMPLES = Path(__file__).parents[1] / "examples"
# The largest error that each may end with, as printed in its last line.
ERRORS = {
    "deepwave_migration": 0.5,
    "devito_migration": 0.5,
    "elastic_inversion": 0.9,
    "full_waveform_inversion": 0.75,
    "learn_wavelet": 0.2,
    "least_squares_migration": 0.4,
    "multidimensional_deconvolution": 0.1,
    "poststack_inversion": 0.7,
    "recorded_shots": 0.5,
    "sources_in_real_time": 0.01,
    "sparse_reflectivity": 0.2,
    "total_variation": 0.1,
    "ultrasound_tomography": 0.5,
}
# All of them in one run: importing takes longer than what they compute.
PROGRAM = f"""
import runpy
import sys
import collops
del sys.argv[1:]  # those of the test
comm = collops.world()
for name in {{names}}:
    comm.barrier()
    if comm.rank == 0:
        print("==", name, flush=True)
    runpy.run_path(f"{EXAMPLES}/{{{{name}}}}.py", run_name="__main__")
"""
pytestmark = pytest.mark.serial


def needs_what_is_missing(name: str) -> bool:
    package = {"learn": "collops_native", "devito": "devito", "deepwave": "deepwave"}.get(name.partition("_")[0])
    return package is not None and importlib.util.find_spec(package) is None


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    """What each example prints on two ranks."""
    names = [name for name in ERRORS if not needs_what_is_missing(name)]
    result = run_ranks(2, PROGRAM.format(names=names), {"PYTHONPATH": str(EXAMPLES.parent / "src")}, 110)
    assert result.returncode == 0, result.stderr
    parts = (part.splitlines() for part in result.stdout.split("== ")[1:])
    return {name: lines for name, *lines in parts}


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == ERRORS.keys()


@pytest.mark.parametrize("name", ERRORS)
def test_it_is_short(name):
    program = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    text, _, rest = program.removeprefix('"""').partition('"""')
    assert len(rest.partition("\n# %%\n")[0].splitlines()) <= 50  # without what introduces it, and its pictures
    assert len(text.splitlines()) <= 12


@pytest.mark.parametrize("name", ERRORS)
def test_it_finds_what_it_looks_for(name, said):
    if needs_what_is_missing(name):
        pytest.skip("needs the native library of JAX arrays, Devito or deepwave, which is not installed")
    errors = [float(re.search(r"error (\d\.\d+)", line)[1]) for line in said[name]]
    assert errors[-1] < ERRORS[name]
    # Only one rank speaks, and the better way comes last.
    assert len(errors) == len(set(errors))
    assert errors == sorted(errors, reverse=True)
