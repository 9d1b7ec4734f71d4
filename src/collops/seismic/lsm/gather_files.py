"""The files of common-image gathers: SEG-Y, and picks of residual moveout as text."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.extend.applications import local_stage
from collops.seismic.lsm.moveout import write_picks
from collops.seismic.lsm.options import MOVEOUT_RESULTS
from collops.seismic.survey.segy import gather_traces

if TYPE_CHECKING:
    from collops import Communicator
    from collops.seismic.lsm.amplitudes import Amplitudes
    from collops.seismic.lsm.problem import Problem
    from collops.seismic.lsm.quality import Gathers, Quality
    from collops.seismic.segy import Traces


def gather_files(
    problem: Problem, quality: Quality, avo: Amplitudes | None, depth: str, revision: int
) -> dict[str, Traces]:
    """Return the SEG-Y files of gathers by name, for a survey with headers; `depth` describes their samples."""
    survey = problem.survey
    offsets, angles = quality.offsets, quality.angles

    def traces(title: str, values: np.ndarray, classes: np.ndarray) -> Traces:
        assert survey.headers is not None
        where = quality.columns, classes, problem.image_grid, survey.headers, survey.comm.rank, revision
        return gather_traces(title, values, *where)

    kinds = [
        ("offset_gathers", "COMMON-IMAGE GATHERS", offsets, offsets.values),
        ("angle_gathers", "COMMON-IMAGE GATHERS", angles, angles.values),
    ]
    if avo is not None:
        kinds.append(("avo_gathers", "GATHERS OF THE REFLECTIVITY AT EACH ANGLE", angles, avo.gathers))
    files = {}
    for name, title, gathers, values in kinds:
        quantity, _, unit = gathers.axis.upper().partition(", ")
        middles = " ".join(f"{middle:g}" for middle in np.round(gathers.classes, 2))
        text = f"{title}, {depth}. {quantity} IN BYTES 37-40, ROUNDED TO {unit}: {middles}"
        files[name] = traces(text, values, gathers.classes)
    for name, values in ({} if avo is None else avo.parts).items():
        text = f"{name.replace('_', ' ').upper()}: R = INTERCEPT + GRADIENT * SIN(ANGLE)**2, {depth}"
        files[name] = traces(text, values[:, None], np.zeros(1))
    return files


def pick_files(quality: Quality | None) -> dict[str, Any]:
    """Return the exporters of the picks of residual moveout, by name."""
    if quality is None:
        return {}

    def export(gathers: Gathers, path: Path, comm: Communicator, _history: Any) -> Path:
        column, row = gathers.picks[:, :2].astype(int).T
        places = (quality.x,) if quality.y is None else (quality.x, quality.y)
        parts = (quality.columns + 1)[column], *(place[column] for place in places), quality.z[row]
        rows = np.stack([*parts, *gathers.picks[:, 2:].T], axis=1)
        title = f"residual moveout of gathers by {gathers.axis}; {quality.doubt or 'picks'}"
        with local_stage(comm):
            if comm.rank == 0:
                write_picks(path, rows, title)
        return path

    parts = zip(MOVEOUT_RESULTS, (quality.offsets, quality.angles), strict=True)
    return {name: partial(export, gathers) for name, gathers in parts}
