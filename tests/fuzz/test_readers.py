"""Readers of damaged files: the documented error on every rank, or what is still there; never a hang or a crash."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from numcodecs import GZip
from scipy import io, sparse

import collops
from collops import errors
from collops.seismic.survey import Geometry, Grid, Survey
from tests.fuzz.cases import Case, parsed
from tests.fuzz.damage import damaged, victim
from tests.fuzz.runner import Transports

CASES = int(os.environ.get("COLLOPS_FUZZ_CASES", "600")) // 60
SEED = int(os.environ.get("COLLOPS_FUZZ_SEED", "0"))


@pytest.fixture
def folder(comm):
    with tempfile.TemporaryDirectory(prefix="collops-fuzz-") as mine:
        yield Path(mine if comm.control is None else comm.control.bcast(mine))
        comm.barrier()


def array_store(path):
    x = collops.random((6, 4))
    collops.save(path, {"x": x, "pair": collops.StackedArray([x, collops.ones(5)])})


def checkpoint(path):
    collops.cgls(collops.FirstDerivative(40), collops.random(40), niter=3, tol=0, checkpoint=path, every=1)


def survey(path):
    pytest.importorskip("segyio")
    from tests.seismic.files import write_survey

    if collops.world().rank == 0:
        sources = np.stack([np.linspace(100, 300, 2), np.full(2, 6.0)])
        receivers = np.stack([np.linspace(0, 400, 3), np.full(3, 2.5)])
        write_survey(path, Geometry(sources, [receivers] * 2, 20, 0.004), [np.ones((3, 20), np.float32)] * 2, {})


def survey_store(path):
    station = np.stack([np.linspace(0, 400, 3), np.full(3, 2.5)])
    survey = Survey(Geometry(station[:, :2], [station] * 2, 20, 0.004))
    survey.traces = [np.ones((3, 20), np.float32) for _ in survey.shots]
    survey.save(path, Grid(2, 2, 1.0, 1.0))


def packed_store(path, names, axes, coordinates=()):
    """Write arrays of integers with a mark of missing ones, compressed by a codec that sees damage."""
    if collops.world().rank == 0:
        group = zarr.open_group(str(path), mode="w", zarr_format=2)
        values = np.random.default_rng(0).integers(-300, 300, (4, 3, 20)).astype(np.int16)
        arrays = {name: (values, axes, {"scale_factor": 0.1, "_FillValue": -999}) for name in names}
        arrays |= {name: (numbers, (name,), {"units": "ms"}) for name, numbers in coordinates}
        for name, (data, dimensions, attributes) in arrays.items():
            array = group.create_array(name, data=data, chunks=(2, *data.shape[1:]), compressors=[GZip()])
            array.attrs.update(attributes, _ARRAY_DIMENSIONS=list(dimensions))


def volume_store(path):
    coordinates = {"inline": 10 + np.arange(4), "crossline": np.arange(3), "time": 4 * np.arange(20)}
    packed_store(path, ["data"], tuple(coordinates), coordinates.items())


def fields_store(path):
    packed_store(path, ["down", "up"], ("source", "receiver", "time"))


def read_volume(path):
    from collops.seismic.volume import files

    files.check_array_file(path, files.DATA_NAMES)
    reader = files.open_volume(Path(path), None, files.DATA_NAMES)
    return files.read_values(reader, slice(0, 2), path)


def read_fields(path):
    from collops.seismic.mdd.fields import RecordedFields

    fields = RecordedFields(SimpleNamespace(down=path, up=path, interval=4.0, spacing=10.0))
    return fields.power(slice(0, 2)), fields.upgoing(slice(0, 2))


def section(path):
    pytest.importorskip("segyio")
    from tests.seismic.files import write_traces

    if collops.world().rank == 0:
        headers = {"INLINE_3D": np.ones(4, int), "CDP_X": 10 * np.arange(4), "CDP_Y": np.zeros(4, int)}
        write_traces(path, np.full((4, 20), 2000, np.float32), headers, 4000, "VELOCITY")


def market(path):
    if collops.world().rank == 0:
        io.mmwrite(path, sparse.random_array((30, 30), density=0.1, random_state=np.random.default_rng(0)))


def dense(path):
    if collops.world().rank == 0:
        np.save(path, np.arange(1.0, 31).reshape(5, 6))


def column(path):
    if collops.world().rank == 0:
        np.save(path, np.arange(1.0, 31).reshape(30, 1))


READERS = {
    "store": (array_store, "store", "collops.load(path, comm=comm)"),
    "checkpoint": (
        checkpoint,
        "state",
        "collops.cgls(collops.FirstDerivative(40, comm=comm), collops.random(40, comm=comm), niter=5, tol=0, "
        "checkpoint=path, every=1, resume=True)",
    ),
    "matrix": (market, "a.mtx", "collops.CSRMatrix.from_matrix_market(path, comm=comm, transport='auto')"),
    "right-hand side": (column, "b.npy", "read_rhs(path, 30)"),
    "velocity": (dense, "v.npy", "velocity.read_npy(Path(path))"),
    "survey": (survey, "s.segy", "headers.read_traces(segy.read_headers(path), range(1))"),
    "survey in Zarr": (survey_store, "s.zarr", "headers.read_traces(zarr.read_headers(path), range(1))"),
    "volume in Zarr": (volume_store, "v.zarr", "read_volume(path)"),
    "fields in Zarr": (fields_store, "f.zarr", "read_fields(path)"),
    "section": (section, "s.segy", "velocity.read_section(Path(path))"),
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", READERS)
def test_damaged_files_are_refused_on_every_rank_or_read(comm, folder, kind):
    from collops.apps.solve import _read_rhs
    from collops.seismic.survey import headers, segy, velocity, zarr

    write, name, call = READERS[kind]
    whole, hurt = folder / "whole" / name, folder / "hurt" / name
    if comm.rank == 0:
        whole.parent.mkdir()
        hurt.parent.mkdir()
    comm.barrier()
    write(whole)
    comm.barrier()
    transports = Transports()
    space = {"collops": collops, "path": str(hurt), "Path": Path}
    space |= {"headers": headers, "segy": segy, "velocity": velocity, "zarr": zarr}
    space |= {"read_rhs": _read_rhs, "read_volume": read_volume, "read_fields": read_fields}
    known = {each for each in errors.__all__ if each != "ARGUMENT_ERRORS"}
    failures = []
    for number in range(CASES):
        draw = random.Random(f"{SEED}/{kind}/{number}")
        if comm.rank == 0:
            shutil.rmtree(hurt, ignore_errors=True)
            hurt.unlink(missing_ok=True)
            (shutil.copytree if whole.is_dir() else shutil.copy)(whole, hurt)
            if number:  # the first is whole
                target = victim(hurt, draw)
                target.write_bytes(damaged(target.read_bytes(), draw))
        comm.barrier()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcomes = transports.outcomes(
                Case(parsed(call), ()),
                lambda now: {key: (lambda value=value: value) for key, value in space.items()} | {"comm": lambda: now},
            )
        names = {outcome for outcome, *_ in outcomes}
        allowed = {"returned"} if number == 0 else known | {"returned"}
        if len(names) != 1 or not names <= allowed or any(way == "transport" for *_, way in outcomes):
            failures.append(f"case {number} of seed {SEED}: {outcomes}")
    assert not failures, "\n".join(["", *failures[:10], f"{len(failures)} of {CASES}"])
