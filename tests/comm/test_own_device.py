"""Each rank of a node is shown its own GPU alone, as long as nothing uses GPUs yet, and keeps it afterwards."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import collops
from collops.comm import own_device
from collops.errors import InputError


class Cuda:
    """Plays a driver that shows `count` GPUs to this process, or has not been started."""

    def __init__(self, count):
        self.count = count

    def cuDeviceGetCount(self, count):
        if self.count is None:
            return 3
        count._obj.value = self.count
        return 0


@pytest.fixture
def rank_of_node(monkeypatch):
    """Return what plays the launcher and the driver of a rank."""

    def forget(name):
        monkeypatch.setenv(name, "")  # so that what the test leaves is undone
        monkeypatch.delenv(name)

    def play(rank, size, in_use=None, shown=None):
        for names in own_device._VARIABLES:
            for name in names:
                forget(name)
        monkeypatch.setattr(own_device, "placement_on_node", lambda: (rank, size))
        monkeypatch.setattr(own_device, "_cuda", lambda: Cuda(in_use))
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
            forget(name)
        if shown is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)

    return play


def test_places_are_those_of_the_world(comm):
    assert own_device.placement_on_node() == (comm.local_rank, comm.local_size)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("shown", "chosen"), [(None, "2"), ("4,5,6,7", "6"), ("GPU-1,GPU-2", "GPU-1"), ("3", "3")], ids=str
)
def test_the_third_of_four(rank_of_node, shown, chosen):
    rank_of_node(2, 4, shown=shown)
    own_device.select_own_device()
    assert own_device.os.environ["CUDA_VISIBLE_DEVICES"] == chosen
    assert own_device.os.environ["HIP_VISIBLE_DEVICES"] == "2"


@pytest.mark.serial
@pytest.mark.parametrize(("shown", "chosen"), [("7", "0"), ("4,5", "0"), ("4,5,6,7", "2")])
def test_what_rocm_left_is_counted_anew(rank_of_node, monkeypatch, shown, chosen):
    rank_of_node(2, 4)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", shown)
    own_device.select_own_device()
    assert own_device.os.environ["HIP_VISIBLE_DEVICES"] == chosen


@pytest.mark.serial
def test_hidden_gpus_stay_hidden(rank_of_node):
    rank_of_node(1, 2, shown="")
    own_device.select_own_device()
    assert own_device.os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.serial
def test_the_launcher_is_asked_before_mpi(rank_of_node, monkeypatch):
    rank_of_node(0, 1)
    monkeypatch.setenv("MPI_LOCALRANKID", "1")
    monkeypatch.setenv("MPI_LOCALNRANKS", "2")
    own_device.select_own_device()
    assert own_device.os.environ["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.serial
@pytest.mark.parametrize(("size", "in_use"), [(1, None), (1, 4), (4, 1)])
def test_nothing_to_do(rank_of_node, size, in_use):
    rank_of_node(0, size, in_use=in_use, shown="0,1")
    own_device.select_own_device()
    assert own_device.os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.serial
def test_too_late(rank_of_node):
    rank_of_node(0, 4, in_use=4)
    with pytest.raises(InputError, match=r"already uses CUDA with 4 GPUs.*before collops.world"):
        own_device.select_own_device()


@pytest.mark.parametrize("world_first", [True, False])
def test_a_part_of_the_world_works_on_the_same_gpu(comm, monkeypatch, world_first):
    """Alone in its part, each rank is the first one of its node."""
    MPI = pytest.importorskip("mpi4py.MPI", reason="from_mpi4py takes a communicator of mpi4py")
    used = []

    def device(number=None):
        number = used[-1] if number is None else number
        return SimpleNamespace(use=lambda: used.append(number), pci_bus_id=f"bus {number}")

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(Device=device)))
    module = sys.modules["collops.comm.world"]
    monkeypatch.setattr(module, "device_count", lambda: 4)
    monkeypatch.setattr(module, "_own_device", [comm.local_rank] if world_first else [])
    own = MPI.COMM_WORLD.Split(comm.rank)
    assert collops.from_mpi4py(own).size == 1
    own.Free()
    assert used == [comm.local_rank]


@pytest.mark.serial
def test_another_current_gpu_has_no_stream_for_messages(monkeypatch):
    """JAX leaves another one current, and new threads begin with the first."""
    current, runtime = [1], SimpleNamespace(getDevice=lambda: current[0])
    cuda = SimpleNamespace(runtime=runtime, get_current_stream=lambda: f"stream of GPU {current[0]}")
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    stream = own_device.own_stream()
    assert stream() == "stream of GPU 1"
    current[0] = 0
    with pytest.raises(InputError, match=r"GPU 0 is current .* sent from GPU 1: select it by cupy.cuda.Device\(1\)"):
        stream()
