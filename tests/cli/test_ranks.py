"""The commands on ranks that a launcher has started: all of them in one start, which takes longest."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.apps.jobs import COMMON_KEYS, PROFILE_KEYS
from tests.cli.commands import SMALL as MIGRATION
from tests.cli.commands import Result, assert_one_line, numbers_of, several_under_mpiexec
from tests.cli.test_jobs import SMALL
from tests.seismic.files import set_samples, small_survey, stacked_volume

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed"),
]

JOBS: dict[str, list[object]] = {"lsm": [*MIGRATION], **SMALL}
RESULT = {"lsm": "image", "mdd": "response", "poststack": "impedance", "reflectivity": "reflectivity"}
FEW_PARTS = {
    "mdd": (["--fmax", "4"], "2 frequencies for 3 ranks: 1"),  # the first of which, 0 Hz, has no amplitude
    "poststack": (["--inlines", "1"], "1 inlines for 3 ranks: 2"),
    "reflectivity": (["--inlines", "1"], "1 traces for 3 ranks: 2"),
}
WRONG = {
    "the last rank alone reads a bad trace": (
        ["lsm", "--survey", "bad.sgy", "--velocity", "1500+0.6z"],
        ["shot 3, trace 5, sample 1", "nan"],
    ),
    "an empty survey": (["lsm", "--survey", "empty.sgy", "--velocity", "1500+0.6z"], ["is empty"]),
    "other ranks than the launcher's": (["lsm", *MIGRATION, "--ranks", 2], ["--ranks 2", "omit --ranks"]),
    "the last rank alone reads a bad sample": (
        ["reflectivity", "--volume", "volume.sgy"],
        ["inline 106, crossline 22, sample 1"],
    ),
}


def test_three_ranks(tmp_path, here):
    _write_bad_files(tmp_path)
    same = [[name, *small, "--dtype", "float64", "--json", "--quiet", "--profile"] for name, small in JOBS.items()]
    idle = [[name, *SMALL[name], *arguments, "--json", "--quiet"] for name, (arguments, _) in FEW_PARTS.items()]
    wrong = [arguments for arguments, _ in WRONG.values()]
    ours = [[*arguments, "--out", f"three-{arguments[0]}"] for arguments in same]
    results = several_under_mpiexec(3, [*wrong, *ours, *idle], tmp_path)

    for (arguments, parts), result in zip(WRONG.values(), results, strict=False):
        assert_one_line(result, *parts, command=str(arguments[0]))
    for arguments, result in zip(same, results[len(wrong) :], strict=False):
        _assert_same(tmp_path, here(*arguments, "--out", f"one-{arguments[0]}"), result, str(arguments[0]))
    for (name, (_, said)), result in zip(FEW_PARTS.items(), results[len(wrong) + len(same) :], strict=True):
        numbers_of(result)
        assert result.stderr == f"collops {name}: warning: {said} of the ranks are idle\n"


def _write_bad_files(folder: Path) -> None:
    set_samples(small_survey(folder / "bad.sgy"), 14, np.nan)
    (folder / "empty.sgy").touch()
    values = np.random.default_rng(0).normal(size=(4, 3, 60)).astype(np.float32)
    values[3, 2, 0] = np.nan
    stacked_volume(folder / "volume.sgy", values)


def _assert_same(folder: Path, alone: Result, together: Result, name: str) -> None:
    one, three = numbers_of(alone), numbers_of(together)
    assert (one["ranks"], one["transport"], one["messages_per_iteration"]) == (1, "serial", 0)
    assert (three["ranks"], three["transport"]) == (3, "mpi")
    assert one.keys() == three.keys() >= COMMON_KEYS | PROFILE_KEYS
    assert three["relative_error"] == pytest.approx(one["relative_error"], rel=1e-6)
    found, expected = (_values(folder / f"{ranks}-{name}" / "result.zarr", name) for ranks in ("three", "one"))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8 * np.abs(expected).max())


def _values(path: Path, name: str) -> Any:
    return zarr.open_group(str(path), mode="r")[RESULT[name]][...]
