"""Shows a rank its own GPU alone, before anything starts that would take every GPU it sees."""

from __future__ import annotations

import ctypes
import os

from collops.comm.mpi import duplicate, load_mpi, on_node
from collops.errors import InputError

__all__ = ["show_own_device"]

# Rank and size on the node, as launchers tell them: some MPI libraries use GPUs as soon as they are loaded.
_PLACES = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
)
# The variable by which a library selects devices, and one by which the driver has selected some before.
_SHOWN = (("CUDA_VISIBLE_DEVICES", None), ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"))


def show_own_device() -> None:
    """Restrict this process to the GPU of its local rank, for CUDA and HIP. Collective.

    Nothing is changed for a rank that has its node to itself, is shown one GPU already, or has all hidden from it.
    Raises `InputError` if this process uses CUDA already, with several GPUs.
    """
    rank, size = place_told() or place_on_node()
    if size == 1:
        return
    if (count := _devices_in_use()) > 1:
        raise InputError(
            f"this process uses CUDA already, with {count} GPUs: give each rank its own before anything uses one, "
            "before collops.world() and CuPy's first array, or let the launcher set CUDA_VISIBLE_DEVICES"
        )
    if count == 1:
        return
    for name, before in _SHOWN:
        shown = _listed(name)
        if shown is None:
            left = _listed(before)
            shown = [str(number) for number in range(rank + 1 if left is None else len(left))]
        if shown:
            os.environ[name] = shown[rank % len(shown)]


def _listed(name: str | None) -> list[str] | None:
    """Return the GPUs that an environment variable names; ``None`` where it is not set."""
    value = None if name is None else os.environ.get(name)
    return None if value is None else [each for each in value.split(",") if each]


def place_told() -> tuple[int, int] | None:
    """Return the local rank and the number of ranks on this node, if the launcher passes them."""
    for names in _PLACES:
        rank, size = (os.environ.get(name, "") for name in names)
        if rank.isdecimal() and size.isdecimal():
            return int(rank), int(size)
    return None


def place_on_node() -> tuple[int, int]:
    """Return the local rank and the number of ranks on this node, before there is a communicator. Collective."""
    mpi, _ = load_mpi()
    if mpi is None:
        return 0, 1
    control = duplicate(mpi.COMM_WORLD)
    rank, others = on_node(control)
    control.Free()
    return rank, len(others)


def _devices_in_use() -> int:
    """Return how many GPUs CUDA shows to this process; 0 as long as nothing has started it."""
    count = ctypes.c_int()
    try:
        cuda = _cuda()
    except OSError:  # no such library
        return 0
    return 0 if cuda.cuDeviceGetCount(ctypes.byref(count)) else count.value


def _cuda() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
