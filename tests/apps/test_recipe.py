from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import collops
from collops.apps import recipe, stages
from collops.apps.files import (
    Field,
    atomic,
    check_absent,
    check_room,
    check_writable,
    is_zarr,
    open_array,
    prepare_folder,
    write_result,
)
from collops.apps.options import CommonOptions
from collops.apps.pictures import Panel, draw_panels
from collops.apps.recipe import (
    Findings,
    Gradient,
    Job,
    Solution,
    _versions,
    best_relative_error,
    largest_amplitude,
    relative_error,
)
from collops.apps.stages import local_stage
from collops.array.store import open_node
from collops.backend import engine
from collops.errors import InputError
from collops.extend.commands import Progress


@pytest.mark.parametrize("kind", [InputError, OSError, MemoryError])
def test_a_failure_on_one_rank_raises_on_all(comm, kind):
    with pytest.raises(InputError, match="the tape is torn") as caught, local_stage(comm):
        if comm.rank == comm.size - 1:
            raise kind("the tape is torn")
    assert comm.size == 1 or caught.value.on_all_ranks


def test_processes_of_a_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr(stages, "available_memory", lambda processes=1: 100 // processes)
    stages.check_memory(20, "arrays", "take fewer", processes=4)
    with pytest.raises(InputError, match="take fewer"):
        stages.check_memory(21, "arrays", "take fewer", processes=4)


def test_a_successful_stage_sends_one_check(comm):
    from collops import profile

    with profile.count_messages() as messages, local_stage(comm):
        pass
    assert messages.total == messages["metadata"] == (0 if comm.size == 1 else 1)


def test_both_ways_of_an_operator_count_as_modelling(comm):
    import collops
    from collops import profile
    from collops.apps.profiling import Modelling

    plain = collops.VStack([np.arange(6.0).reshape(3, 2)], comm)
    operator = Modelling(plain)
    model = collops.ones(plain.domain, comm=comm)
    with profile.record() as recording:
        data = operator.forward(model)
        back = operator.adjoint(data)
    calls = [row.calls[0] for row in recording.report().rows if row.label == "modelling"]
    assert calls == [2]
    np.testing.assert_array_equal(back.local_array, plain.adjoint(plain.forward(model)).local_array)


def test_amplitudes_whose_squares_underflow_are_refused(comm):
    """An image of zeros would be the result. Each way, one of both squares is normal: the adjoint's, or its image's."""
    import collops

    for scale, amplitude in ((1e6, 1e-28), (1e-6, 1e-15)):
        operator = collops.BlockDiag([np.diag(scale * np.arange(1, 4, dtype=np.float32))], comm)
        data = collops.full(operator.range, amplitude, comm=comm, dtype="float32")
        with pytest.raises(InputError, match="too small for float32"):
            Gradient.from_data(operator, data)
        assert Gradient.from_data(operator, data.astype(np.float64)).step == pytest.approx(14 / 98 / scale**2)
        assert Gradient.from_data(operator, 0 * data).norm == 0


def outcome_of(comm, residuals, found=None, **options):
    """Return the numbers and the rows of a table for a solution with these residuals."""
    seconds = {"modelling": np.array([1.0, 2.0]), "rest": np.array([4.0, 2.0])}
    solution = Solution(None, np.array(residuals), "converged", "eager", options.pop("resumed", None), seconds, 7)
    shown = {"numbers": {"size": 3}, "rows": [("size", "3")], "fields": {}, "draw": lambda folder: []}
    findings = Findings("title", solution, "model", "adjoint", **shown | (found or {}))
    where: Any = SimpleNamespace(name="numpy", memory=options.pop("memory", "host"))
    job = Job(CommonOptions(**options), comm, where, Progress("", shown=False, speaking=False))
    numbers = recipe._numbers(job, findings)
    history = recipe._history(job.options, findings, numbers, "lsm")
    return numbers, dict(recipe._rows(numbers, findings)), history


def test_numbers_of_a_solution(comm):
    numbers, rows, _ = outcome_of(comm, [0.0, 0.0])
    assert numbers["residual_reduction"] == 0 and numbers["iterations"] == 1 and numbers["size"] == 3
    assert numbers["seconds_per_iteration"] == 5  # the slowest rank's, of all kinds
    assert numbers["transport"] == comm.host_transport and numbers["ranks"] == comm.size
    assert "seconds_split" not in numbers and "checkpoint" not in rows and "model error" not in rows
    assert (
        rows["residual"] == "0 -> 0 in 1 iteration, 0 of the first" and rows["time"] == "5000 ms per iteration (eager)"
    )
    numbers, rows, history = outcome_of(
        comm,
        [4.0, 2.0, 1.0],
        {"error": 0.5, "adjoint_error": 0.25, "error_of": " of it", "more_rows": [("last", "row")]},
        profile=True,
        checkpoint="c",
        resumed=3,
    )
    assert numbers["residual_reduction"] == 0.25
    assert numbers["seconds_split"]["modelling"] == {"min": 1.0, "mean": 1.5, "max": 2.0}
    assert numbers["messages_per_iteration"] == 7 and rows["messages"] == "7 per iteration"
    assert rows["model error"] == "50.0 % of it (adjoint at its best scale: 25.0 %)"
    assert rows["checkpoint"] == "c; resumed after iteration 3" and list(rows)[-1] == "last"
    assert outcome_of(comm, [1.0], checkpoint="c")[1]["checkpoint"] == "c; not resumed"
    ranks: Any = SimpleNamespace(size=2, transport="nccl", host_transport="mpi")
    assert [outcome_of(ranks, [1.0], memory=memory)[0]["transport"] for memory in ("host", "device")] == ["mpi", "nccl"]
    assert "command lsm: title" in history[0] and "checkpoint=c" in history[1] and "size=3" in history[1]
    assert history[2] == "RESIDUAL: 1 after 2 iterations, 4 before the first"


def test_the_gradient_bounds_the_norm_and_has_the_step_of_cgls(comm):
    operator = collops.BlockDiag([np.diag([2.0, 1.0])], comm)
    data = collops.from_local(np.array([1.0, 3.0]), comm=comm)
    found = Gradient.from_data(operator, data)
    image = np.array([4.0, 3.0])  # of the adjoint, (2, 3), on each rank
    assert found.norm == pytest.approx(np.sqrt(image @ image / 13))
    assert found.step == pytest.approx(13 / (image @ image))
    assert largest_amplitude(np.array([-2.0 - comm.rank, 1.0]), comm) == 1 + comm.size


@pytest.mark.serial
def test_the_positions_of_panels_are_the_centres_of_cells(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "matplotlib.axes.Axes.imshow", lambda self, image, **options: drawn.append((image.shape, options["extent"]))
    )
    panels = [Panel(np.zeros(shape), "", (0.0, 6.0, 10.0, 14.0), ("", ""), 1.0) for shape in ((4, 3), (1, 2))]
    draw_panels(tmp_path / "image.png", panels, (1.0, 1.0))
    # Four columns 2 apart and three rows 2 apart; a single column is one wide.
    assert drawn == [((3, 4), (-1.0, 7.0, 15.0, 9.0)), ((2, 1), (-0.5, 6.5, 16.0, 8.0))]


def test_idle_ranks_are_counted(comm):
    warnings: list[str] = []
    job = Job(CommonOptions(), comm, engine("numpy"), SimpleNamespace(warn=warnings.append))  # type: ignore[arg-type]
    job.warn_of_idle_ranks(comm.size, "shots")
    assert not warnings
    job.warn_of_idle_ranks(comm.size - 1, "shots")
    assert warnings == [f"{comm.size - 1} shots for {comm.size} ranks: 1 of the ranks are idle"]


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_every_rank_writes_its_own_rows(comm, folder, rows, monkeypatch):
    import zarr

    monkeypatch.setattr("collops.apps.files._CHUNK_BYTES", 100)
    values = np.arange(rows * 6.0).reshape(rows, 2, 3)
    fields = {
        "volume": Field(collops.from_global(values, comm=comm), ("row", "column", "time"), "m"),
        "time": Field(np.arange(3.0), ("time",), "s"),
        "place": Field(np.arange(2.0), ("column",), "m", True),
    }
    for answer in (1, 2):
        path = write_result(folder / "a.zarr", comm, fields, {"answer": answer})
        comm.barrier()
        group = zarr.open_group(str(path), mode="r")
        assert np.array_equal(group["volume"][...], values)
        assert group["volume"].metadata.dimension_names == ("row", "column", "time")
        assert group["volume"].attrs["units"] == "m"
        assert group["time"][...].tolist() == [0, 1, 2]
        assert group.attrs["coordinates"] == "place"
        assert group.attrs["answer"] == answer
        assert os.listdir(folder) == ["a.zarr"]
        comm.barrier()


def test_errors_count_amplitudes_but_not_the_scale_of_an_adjoint(comm):
    truth, across = np.array([3.0, 4.0, 0.0]), np.array([-4.0, 3.0, 0.0])
    found = 2 * (truth + across)
    assert relative_error(found, truth, comm) == pytest.approx(np.sqrt(5))
    assert best_relative_error(found, truth, comm) == pytest.approx(np.sqrt(0.5))
    # The scale is that of all ranks together; the part of the first one alone would give another.
    own = found if comm.rank == 0 else truth
    scale = (2 + comm.size - 1) / (8 + comm.size - 1)
    expected = np.linalg.norm(np.concatenate([scale * found - truth] + [(scale - 1) * truth] * (comm.size - 1)))
    whole = best_relative_error(own, truth, comm)
    assert whole == pytest.approx(expected / (5 * np.sqrt(comm.size)))
    assert relative_error(found, None, comm) is best_relative_error(found, None, comm) is None
    assert relative_error(found, np.zeros(3), comm) is best_relative_error(np.zeros(3), truth, comm) is None


@pytest.mark.serial
class TestFiles:
    def test_a_file_appears_whole_or_not_at_all(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_text("before")
        with pytest.raises(RuntimeError), atomic(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError
        assert path.read_text() == "before"
        with atomic(path) as temporary:
            temporary.write_text("after")
        assert path.read_text() == "after"
        assert os.listdir(tmp_path) == ["a.txt"]

    def test_a_folder_replaces_a_folder(self, tmp_path):
        path = tmp_path / "group"
        for name in ("old", "new"):
            with atomic(path) as temporary:
                temporary.mkdir()
                (temporary / name).touch()
        assert os.listdir(path) == ["new"]
        assert os.listdir(tmp_path) == ["group"]

    def test_a_folder_replaces_a_file_and_a_file_a_folder(self, tmp_path):
        path = tmp_path / "result"
        path.write_text("old")
        with atomic(path) as temporary:
            temporary.mkdir()
            (temporary / "new").touch()
        assert os.listdir(path) == ["new"]
        with atomic(path) as temporary:
            temporary.write_text("newer")
        assert path.read_text() == "newer"
        assert os.listdir(tmp_path) == ["result"]

    def test_a_file_is_no_folder(self, tmp_path):
        (tmp_path / "a").touch()
        with pytest.raises(InputError, match="is a file"):
            prepare_folder(tmp_path / "a")
        with pytest.raises(InputError, match="cannot write into"):
            prepare_folder(tmp_path / "a" / "b")

    def test_a_place_for_a_file_needs_a_folder(self, tmp_path):
        check_writable(tmp_path / "a")
        assert os.listdir(tmp_path) == []
        with pytest.raises(InputError, match="does not exist"):
            check_writable(tmp_path / "no" / "a")
        with pytest.raises(InputError, match="is a folder"):
            check_writable(tmp_path)
        (tmp_path / "a.zarr").mkdir()
        check_writable(tmp_path / "a.zarr")  # a store may be replaced

    def test_any_entry_counts_as_a_result(self, tmp_path):
        names = ["file", "folder", "link"]
        check_absent([tmp_path / name for name in names])
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")
        for name in names:
            with pytest.raises(
                InputError, match=f"results of an earlier run exist: .*{name}; replace them with --overwrite"
            ):
                check_absent([tmp_path / name])

    def test_room_is_compared_with_what_is_needed(self, tmp_path, monkeypatch):
        monkeypatch.setattr("collops.apps.files.free_room", lambda folder: 1000)
        check_room(tmp_path, 1000, "--out")
        with pytest.raises(InputError, match="free some space, or choose another folder with --out"):
            check_room(tmp_path, 1001, "--out")

    def test_the_only_cube_of_a_group_is_opened(self, tmp_path):
        import zarr

        group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
        group.create_array("axis", shape=(4,), dtype="f4")
        group.create_array("cube", shape=(2, 3, 4), dtype="f4")
        assert open_array(tmp_path / "a.zarr", ("absent",))[0].shape == (2, 3, 4)
        group.create_array("axes", shape=(3, 4), dtype="f4")
        with pytest.raises(InputError, match="holds the arrays axes, cube: pass the path of an array"):
            open_array(tmp_path / "a.zarr", ("absent",))
        assert is_zarr(tmp_path / "a.zarr" / "cube") and is_zarr(tmp_path) and not is_zarr(tmp_path / "a.npy")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_without_permission(self, tmp_path):
        tmp_path.chmod(0o500)
        with pytest.raises(InputError, match="cannot write"):
            prepare_folder(tmp_path / "out")

    def test_versions_list_installed_packages(self):
        assert _versions()["numpy"] == np.__version__


def test_a_result_has_all_its_chunks_and_removes_what_a_killed_run_left(comm, folder, monkeypatch):
    """Zeros have files too; a reader of collops misses one that is lost."""
    monkeypatch.setattr("collops.apps.files._CHUNK_BYTES", 100)
    path = folder / "result.zarr"
    if comm.rank == 0:
        (folder / ".result.zarr-0a1b2c3d" / "result.zarr").mkdir(parents=True)
        (folder / ".result.zarr-0a1b2c3d.lock").touch()
    comm.barrier()
    zeros = collops.zeros((3 * comm.size + 1, 7), comm=comm)
    fields = {"a": Field(zeros, ("x", "y"), "m"), "b": Field(np.zeros(4, np.complex64), ("z",), "1")}
    write_result(path, comm, fields, {})
    assert os.listdir(folder) == ["result.zarr"]
    for name in fields:
        array = open_node(path, name)
        assert len(list((path / name).glob("c.*"))) == array.nchunks
        np.testing.assert_array_equal(array[...], 0)
    comm.barrier()
    if comm.rank == 0:
        next((path / "a").glob("c.*")).unlink()
    comm.barrier()
    with pytest.raises(InputError, match="has lost 1 of its files"):
        open_node(path, "a")
    open_node(path, "b")


def test_a_result_that_a_rank_cannot_write_leaves_the_one_before(comm, folder, monkeypatch):
    x = collops.ones((2 * comm.size, 3), comm=comm)
    write_result(folder / "a.zarr", comm, {"a": Field(x, ("x", "y"), "m")}, {})

    def fail(*_):
        raise OSError(28, "No space left on device")

    if comm.rank == comm.size - 1:
        monkeypatch.setattr("collops.array.store.write_region", fail)
    with pytest.raises(InputError, match="No space left"):
        write_result(folder / "a.zarr", comm, {"a": Field(2 * x, ("x", "y"), "m")}, {})
    assert os.listdir(folder) == ["a.zarr"]
    np.testing.assert_array_equal(open_node(folder / "a.zarr", "a")[...], 1)
    comm.barrier()
