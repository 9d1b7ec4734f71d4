"""Loading of the native library, and errors of its transports, which all ranks raise."""

from __future__ import annotations

import _ctypes
import ctypes

import pytest

from collops.errors import InputError, TransportError
from collops.jax import communicators, drivers, native, versions


@pytest.mark.serial
def test_other_libraries_raise_an_error(tmp_path, monkeypatch):
    """A missing file, another kind of file, and a build for another version, each with the command to run."""
    load = native.library.__wrapped__
    text = tmp_path / "text.so"
    text.write_text("no library")
    for path, sentence in (
        (tmp_path / "nothing.so", "is not a file"),
        (text, "does not load"),
        (_ctypes.__file__, "another version of collops: run 'pip install ./native'"),
    ):
        monkeypatch.setenv("COLLOPS_NATIVE", str(path))
        with pytest.raises(InputError, match=sentence):
            load()
    monkeypatch.undo()
    monkeypatch.setattr(native, "_INTERFACE", native._INTERFACE + 1)
    with pytest.raises(InputError, match="another version"):
        load()


def test_a_rank_without_a_gpu_raises_on_all(comm, monkeypatch):
    if comm.size == 1:
        pytest.skip("one rank")
    monkeypatch.setattr(communicators, "has_devices", lambda: comm.rank < comm.size - 1)
    with pytest.raises(TransportError, match=f"none on rank {comm.size - 1}"):
        communicators._new_native_comm(comm)


@pytest.mark.parametrize(
    ("mixing", "register", "chosen"),
    [("", "0", "recorded"), ("1", "0", "recorded"), ("0", "0", "device"), ("1", "1", "device")],
)
def test_nothing_is_recorded_where_nccl_cannot(monkeypatch, mixing, register, chosen):
    monkeypatch.setattr(versions, "RUNS_BEFORE_RECORDING", True)
    monkeypatch.setenv("NCCL_GRAPH_MIXING_SUPPORT", mixing)
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", register)
    assert communicators.NativeComm(0, 2, {"cuda": 1}, on_one_node=True).handlers("cuda", recordable=True) == chosen


@pytest.mark.parametrize(("on_one_node", "recordable"), [(True, True), (True, False), (False, True)])
def test_what_is_recorded(monkeypatch, on_one_node, recordable):
    monkeypatch.setattr(versions, "RUNS_BEFORE_RECORDING", True)
    known = communicators.NativeComm(0, 2, {"cuda": 1, "cpu": 2}, on_one_node)
    assert known.handlers("cuda", recordable) == ("recorded" if on_one_node and recordable else "device")
    assert known.handlers("cpu", recordable) == "host"


class Cuda:
    """Plays the driver of a process that is shown `buses`."""

    def __init__(self, buses):
        self.buses = buses

    def cuInit(self, _):
        return 0

    def cuDeviceGet(self, handle, number):
        handle._obj.value = 100 + number.value
        return 0 if number.value < len(self.buses) else 101

    def cuDeviceGetPCIBusId(self, name, length, handle):
        assert length.value == ctypes.sizeof(name)
        name.value = self.buses[handle.value - 100].encode()
        return 0


@pytest.mark.serial
def test_place_of_a_device(monkeypatch):
    monkeypatch.setattr(drivers, "_cuda", lambda: Cuda(["0000:1b:00.0", "0000:43:00.0"]))
    assert drivers.bus_of(1) == "0000:43:00.0"
    with pytest.raises(TransportError, match="error 101"):
        drivers.bus_of(2)
