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
    "learn_wavelet": 0.2,
    "least_squares_migration": 0.4,
    "multidimensional_deconvolution": 0.1,
    "poststack_inversion": 0.7,
    "sparse_reflectivity": 0.2,
    "total_variation": 0.1,
}
pytestmark = pytest.mark.serial


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == ERRORS.keys()


@pytest.mark.parametrize("name", ERRORS)
def test_it_runs_on_two_ranks(name):
    if name.startswith("learn") and importlib.util.find_spec("collops_native") is None:
        pytest.skip("messages of JAX arrays need the native library")
    program = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    text, _, rest = program.removeprefix('"""').partition('"""')
    assert len(rest.partition("\n# %%\n")[0].splitlines()) <= 50  # without what introduces it, and its pictures
    assert len(text.splitlines()) <= 12
    result = run_ranks(2, program, {"PYTHONPATH": str(EXAMPLES.parent / "src")}, 100)
    assert result.returncode == 0, result.stderr
    errors = [float(number) for number in re.findall(r"error (\d\.\d+)", result.stdout)]
    assert errors[-1] < ERRORS[name]
    # Only one rank speaks, and the better way comes last.
    assert len(result.stdout.splitlines()) == len(errors) == len(set(errors))
    assert errors == sorted(errors, reverse=True)
