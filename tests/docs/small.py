"""Run the commands of the documentation small: in this process, on files that are made for them, and in no time."""

from __future__ import annotations

import functools
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from collops.cli import main
from collops.seismic.survey import Grid, Survey
from collops.seismic.waves import Propagator
from tests.docs.pages import ROOT
from tests.seismic.files import (
    diffractor_file,
    random_traces,
    small_geometry,
    small_survey,
    stacked_volume,
    velocity_volume,
)

__all__ = ["LAUNCHER", "run_small"]

LAUNCHER = r"(?:COLLOPS_\S+ )*(?:(?:mpiexec|mpirun|srun) -n \d+ )?"
# Pictures take longer than all else, and have tests of their own.
_MAX_FIGURE_BYTES = (
    "collops.apps.recipe._draw",
    "collops_bench.plots.write_plots",
)
# Compiling the steps of waves takes longer than taking them.
_PROPAGATORS = ("collops.seismic.waveform.problem.Propagator", "collops_bench.waves.Propagator")
# What makes a command small, by a pattern in it; all that fit are appended. What a page says itself stays as it is,
# but for what takes long: there the last value counts.
_LONG = {"--iterations", "--minutes", "--only", "--points", "-nx", "-ny"}
_SMALLER = {
    r"^lsm": "--iterations 2",
    r"^lsm(?!.*--survey)": "--nx 31 --nz 21 --shots 2 --receivers 9 --samples 101",
    r"--survey.*1500\+0\.6z": "--nx 31 --nz 21 --frequency 30",
    r"--survey.*model\.npy": "--frequency 30",
    r"^(fwi|rtm|lsrtm)": "--layers 0 --order 2",
    r"^(fwi|lsrtm)": "--iterations 1",
    r"^(fwi|rtm|lsrtm)(?!.*--survey)": "--nx 18 --nz 14 --shots 2 --receivers 7 --samples 28 --frequency 18",
    r"^(poststack|reflectivity)": "--iterations 2",
    r"^(poststack|reflectivity)(?!.*--volume)": "--inlines 3 --samples 60",
    r"^poststack(?!.*--volume)": "--crosslines 3",
    r"^mdd": "--iterations 2",
    r"^mdd(?!.*--down)": "--sources 5 --receivers 4 --samples 60",
    r"^solve": "--iterations 5",
    r"^solve(?!.*--matrix)": "--points 8",
    r"^jacobi": "-nx 34 -ny 34 -niter 4 -nccheck 1",
    r"^soak": "--minutes 0.001",
    r"^bench (?!plot|predict|all|published|.*--help)\w": "--quick --no-peer --json record.json",
    r"^bench$": "--help",
    r"^bench published": "--results benchmarks/results",
    r"^bench all": "--only limits --ranks 1 --quick --no-peer --limit 100",
}


def _volume(path: Path) -> None:
    stacked_volume(path, np.random.default_rng(0).normal(size=(4, 3, 60)).astype("float32"))


def _shots(path: Path) -> None:
    geometry = small_geometry()
    survey = Survey(geometry)
    survey.traces = random_traces(geometry)
    survey.save(path, Grid(31, 21, 12.5, 10.0))


def _zarr(path: Path, **arrays: np.ndarray) -> None:
    import zarr

    group = zarr.open_group(str(path), mode="w")
    for name, values in arrays.items():
        group.create_array(name, data=values)


def _stack(path: Path) -> None:
    import zarr

    group = zarr.open_group(str(path), mode="w")
    values = np.random.default_rng(0).normal(size=(4, 3, 60))
    group.create_array("data", data=values, dimension_names=("inline", "crossline", "time"))
    group.create_array("time", data=0.004 * np.arange(60), dimension_names=("time",), attributes={"units": "s"})


def _field(seed: int, traces: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(6, traces, 40))


def _matrix(path: Path) -> None:
    from scipy import io, sparse

    io.mmwrite(path, sparse.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(12, 12)))


def _results(path: Path) -> None:
    path.mkdir(parents=True)
    for record in (ROOT / "benchmarks" / "results").glob("[lcs][ick]*.json"):  # limits, CGLS, scaling
        shutil.copy(record, path)


def _right_hand_side(path: Path) -> None:
    from scipy import io

    io.mmwrite(path, np.ones((12, 1)))


_FILES: dict[str, Callable[[Path], object]] = {
    "line.sgy": small_survey,
    "line.zarr": _shots,
    "written.sgy": small_survey,
    "area.sgy": lambda path: diffractor_file(path, np.array([150.0, 220.0, 240.0])),
    "volume.sgy": velocity_volume,
    "stacking.txt": lambda path: np.savetxt(path, [[0.1, 1600.0], [0.5, 1800.0]]),
    "model.npy": lambda path: np.save(path, np.full((41, 31), 1800.0)),
    "stack.sgy": _volume,
    "stack.zarr": _stack,
    "wavelet.npy": lambda path: np.save(path, np.array([-0.2, 1.0, -0.2])),
    "model.zarr": lambda path: _zarr(path, impedance=np.full((4, 3, 60), 5.5)),
    "down.npy": lambda path: np.save(path, _field(0, 5)),
    "up.npy": lambda path: np.save(path, _field(1, 3)),
    "fields.zarr": lambda path: _zarr(path, down=_field(0, 5), up=_field(1, 3)),
    "A.mtx": _matrix,
    "b.mtx": _right_hand_side,
}


_DONE: dict[str, int] = {}


def run_small(command: str, folder: Path) -> int:
    """Run a command of ``collops`` on one rank, and return its exit code; what differs in its ranks alone runs once.

    Parameters
    ----------
    command : str
        As a page has it, launchers included.
    folder : pathlib.Path
        Where it runs.
    """
    words = re.sub(rf"^{LAUNCHER}collops | --ranks \d+", "", command).replace("/scratch/", f"{folder}/")
    if words not in _DONE:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            for name in _MAX_FIGURE_BYTES:
                patch.setattr(name, lambda *_, **__: [])
            patch.setattr("collops_bench.fft._CHUNKS", (2,))  # another number of chunks is another program to compile
            for name in _PROPAGATORS:
                patch.setattr(name, functools.partial(Propagator, kernels="numpy"))
            _DONE[words] = _run(words, folder)
    return _DONE[words]


def _run(words: str, folder: Path) -> int:
    for name, make in _FILES.items():
        if name in words and f"--write-survey {name}" not in words:
            make(folder / name)
    if re.match("report|bench (plot|predict|published)", words):
        _results(folder / "benchmarks" / "results")
        (folder / "docs").mkdir()
        for name in ("README.md", "docs/scaling.md"):
            shutil.copy(ROOT / name, folder / name)
    arguments = shlex.split(words)
    for more in (more for pattern, more in _SMALLER.items() if re.search(pattern, words)):
        for option, value in re.findall(r"(-\S+)(?: ([^-]\S*))?", more):
            if option in _LONG or option not in arguments:
                arguments += [option, value] if value else [option]
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return int(left.value.code or 0)
