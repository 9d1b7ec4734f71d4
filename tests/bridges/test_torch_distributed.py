"""DTensors as distributed arrays and back, against tensors that PyTorch has distributed itself; ranks of torchrun."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import collops
from collops import Layout, profile
from collops.errors import LayoutError, UnsupportedTypeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
dist = torch.distributed
if not dist.is_available():
    pytest.skip("PyTorch is built without torch.distributed", allow_module_level=True)
bridge = importlib.import_module("collops.bridges.torch_distributed")
tensors = importlib.import_module("torch.distributed.tensor")
meshes = importlib.import_module("torch.distributed.device_mesh")
DTensor, Shard, Replicate, Partial = tensors.DTensor, tensors.Shard, tensors.Replicate, tensors.Partial


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    """Gloo between the ranks that MPI has started."""
    comm = collops.world()
    path = comm.allgather_metadata(str(tmp_path_factory.mktemp("gloo") / "store"))[0]
    dist.init_process_group("gloo", store=dist.FileStore(path, comm.size), rank=comm.rank, world_size=comm.size)
    yield
    dist.destroy_process_group()


def mesh_of(comm, *shape):
    return meshes.init_device_mesh("cpu", shape or (comm.size,))


def whole(*shape):
    return torch.arange(float(np.prod(shape)), dtype=torch.float64).reshape(shape)


@pytest.mark.parametrize(
    ("placements", "mesh", "shape", "expected"),
    [
        ([Shard(0)], (3,), (7, 2), Layout.split((7, 2), 3, sizes=(3, 3, 1))),
        ([Shard(0)], (4,), 5, Layout.split(5, 4, sizes=(2, 2, 1, 0))),
        ([Shard(0)], (3,), (0, 2), Layout.split((0, 2), 3)),
        ([Replicate()], (3,), (7,), Layout.replicated(7, 3)),
        ([Shard(-1), Replicate()], (2, 2), (4, 5), Layout((4, 5), 4, (2, 2), (None, 0))),
        ([Replicate(), Shard(0)], (2, 2), (4, 5), Layout((4, 5), 4, (2, 2), (1, None))),
        ([Shard(1), Shard(0)], (2, 3), (6, 5), Layout((6, 5), 6, (2, 3), (1, 0))),
        ([Shard(0), Shard(0)], (2, 2), 7, Layout.split(7, 4, sizes=(2, 2, 2, 1))),
        ([Shard(0), Shard(1), Shard(0)], (2, 1, 2), (6, 1), Layout.split((6, 1), 4, sizes=(2, 1, 2, 1))),
        ([Shard(0)], (1,), 3, Layout.split(3, 1)),
    ],
)
def test_layouts_of_placements(placements, mesh, shape, expected):
    assert bridge.placements_to_layout(placements, mesh, shape) is expected


@pytest.mark.parametrize(
    ("placements", "mesh", "error", "message"),
    [
        ([Shard(0)], (2, 2), LayoutError, "a placement per axis"),
        ([Shard(2)], (2,), LayoutError, "more axes"),
        ([Shard(0), Shard(1), Shard(0)], (2, 2, 2), LayoutError, "not neighbours"),
        ([Partial()], (1,), UnsupportedTypeError, "terms of a sum.*redistribute"),
        (["rows"], (2,), UnsupportedTypeError, "Shard or Replicate, not 'rows'"),
    ],
)
def test_placements_without_a_layout(placements, mesh, error, message):
    with pytest.raises(error, match=message):
        bridge.placements_to_layout(placements, mesh, (4, 4))


def cases(comm):
    """Meshes and placements for tensors of the shape (7, 5): uneven parts, and empty ones on four ranks."""
    n = comm.size
    yield (n,), [Shard(0)]
    yield (n,), [Shard(1)]
    yield (n,), [Replicate()]
    for rows in {1, 2, n}:
        if n % rows == 0:
            yield (rows, n // rows), [Shard(0), Shard(1)]
            yield (rows, n // rows), [Shard(1), Replicate()]
            yield (rows, n // rows), [Shard(0), Shard(0)]


def test_dtensors_and_arrays_share_memory(comm):
    for shape, placements in cases(comm):
        x = tensors.distribute_tensor(whole(7, 5), mesh_of(comm, *shape), placements)
        array = bridge.from_dtensor(x, comm=comm)
        assert array.layout is bridge.placements_to_layout(placements, shape, (7, 5))
        assert np.array_equal(array.gather(), whole(7, 5))
        assert x.to_local().numel() == 0 or array.local_array.ctypes.data == x.to_local().data_ptr()
        for given in (placements, None):
            with profile.count_messages() as messages:
                back = bridge.to_dtensor(array, x.device_mesh, given)
            assert "alltoallv" not in messages.counts()
            assert back.shape == x.shape and back.stride() == x.stride()
            assert torch.equal(back.full_tensor(), whole(7, 5))
            assert back.to_local().numel() == 0 or back.to_local().data_ptr() == x.to_local().data_ptr()
        assert given is not None or back.placements == x.placements or 1 in shape


def test_other_parts_take_one_redistribution(comm):
    columns = Layout.split((7, 5), comm.size, axis=1)
    mesh = mesh_of(comm)
    x = tensors.distribute_tensor(whole(7, 5), mesh, [Shard(0)])
    with profile.count_messages() as messages:
        array = bridge.from_dtensor(x, columns, comm=comm)
    assert messages.counts().get("alltoallv", 0) == (comm.size > 1)
    assert array.layout is columns and np.array_equal(array.gather(), whole(7, 5))
    balanced = collops.from_global(whole(7, 5).numpy(), comm=comm)  # on three ranks 3, 2 and 2 rows
    with profile.count_messages() as messages:
        back = bridge.to_dtensor(balanced, mesh)
    assert messages.counts().get("alltoallv", 0) == (comm.size == 3)
    assert back.placements == (Shard(0) if comm.size > 1 else Replicate(),)
    assert torch.equal(back.full_tensor(), whole(7, 5))
    assert torch.equal(bridge.to_dtensor(balanced, mesh, [Shard(1)]).full_tensor(), whole(7, 5))


def test_the_result_of_an_asynchronous_collective(comm):
    x = tensors.distribute_tensor(whole(7, 5), mesh_of(comm), [Shard(0)])
    again = x.redistribute(placements=[Replicate()], async_op=True)
    assert np.array_equal(bridge.from_dtensor(again, comm=comm).local_array, whole(7, 5))


def test_gradients_of_a_dtensor(comm):
    x = tensors.distribute_tensor(whole(7, 5), mesh_of(comm), [Shard(0)]).requires_grad_()
    op = collops.FirstDerivative(bridge.placements_to_layout(x.placements, (comm.size,), x.shape), comm=comm)
    collops.bridges.torch.apply(op, x.to_local()).square().sum().backward()
    expected = 2 * (op.H @ (op @ bridge.from_dtensor(x.detach(), comm=comm)))
    assert x.grad.placements == x.placements and np.allclose(x.grad.full_tensor(), expected.gather())
    with pytest.raises(UnsupportedTypeError, match="requires gradients"):
        bridge.from_dtensor(x, comm=comm)


def test_what_is_refused_is_refused_on_all_ranks(comm):
    mesh = mesh_of(comm)
    x = tensors.distribute_tensor(whole(7, 5), mesh, [Shard(0)])
    last = comm.rank == comm.size - 1
    with pytest.raises(UnsupportedTypeError, match=r"from_dtensor takes a DTensor, not torch\.Tensor") as caught:
        bridge.from_dtensor(whole(7, 5) if last else x, comm=comm)
    assert caught.value.on_all_ranks
    with pytest.raises(UnsupportedTypeError, match="terms of a sum"):
        bridge.from_dtensor(DTensor.from_local(whole(7, 5), mesh, [Partial()]), comm=comm)
    array = collops.ones((7, 5), comm=comm)
    with pytest.raises(UnsupportedTypeError, match="takes a distributed array"):
        bridge.to_dtensor(whole(7, 5), mesh)
    with pytest.raises(UnsupportedTypeError, match="terms of a sum"):
        bridge.to_dtensor(array, mesh, [Partial()])
    if comm.size > 1:
        reverse = meshes.DeviceMesh("cpu", list(range(comm.size))[::-1])
        message = re.escape(f"in their order, {list(range(comm.size))} in torch.distributed, not")
        with pytest.raises(LayoutError, match=message):
            bridge.from_dtensor(tensors.distribute_tensor(whole(7, 5), reverse, [Shard(0)]), comm=comm)
        with pytest.raises(LayoutError, match=message):
            bridge.to_dtensor(array, reverse)


def test_grids_that_do_not_fit(comm):
    if comm.size != 4:
        pytest.skip("a grid of four ranks")
    grid = collops.from_global(whole(7, 5).numpy(), Layout.grid((7, 5), (2, 2)), comm=comm)
    rows = collops.from_global(whole(7, 5).numpy(), comm=comm)
    with pytest.raises(LayoutError, match="does not fit the process grid"):
        bridge.to_dtensor(grid, mesh_of(comm))
    nested = bridge.to_dtensor(rows, mesh_of(comm, 2, 2))
    assert nested.placements == (Shard(0), Shard(0)) and torch.equal(nested.full_tensor(), whole(7, 5))


PROGRAM = """
import os, sys, time
from pathlib import Path
import torch.distributed as dist
import collops
from collops.bridges.torch_distributed import world
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
if os.environ["RANK"] == "0" and restart == "1":
    time.sleep(0.5)
comm = world()
assert comm is collops.world() and "over tcp" in repr(collops.ones(3))
Path(sys.argv[1], f"{restart} {comm.rank}").write_text(os.environ["COLLOPS_SECRET"])
comm.barrier()
assert not next(dist.rendezvous("env://"))[0].check([f"collops {restart}"])
if restart == "0":
    raise KeyError("the first time")
dist.init_process_group("gloo")
assert (comm.rank, comm.size) == (dist.get_rank(), dist.get_world_size())
"""


@pytest.mark.serial
def test_torchrun_starts_ranks(tmp_path):
    """Without any variable of collops, and again after a failure, each time with a new secret."""
    program, folder = tmp_path / "program.py", tmp_path / "secrets"
    program.write_text(PROGRAM)
    folder.mkdir()
    names = [name for name in os.environ if name.startswith(("PMI", "MPI", "COLLOPS_", "OMPI_"))]
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, str(program), str(folder)],
        env={name: value for name, value in os.environ.items() if name not in names},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert sorted(found) == ["0 0", "0 1", "1 0", "1 1"]
    assert found["0 0"] == found["0 1"] != found["1 0"] == found["1 1"] and len(found["1 0"]) == 64


def test_one_process_needs_no_torchrun(comm):
    assert bridge.world() is collops.world()
