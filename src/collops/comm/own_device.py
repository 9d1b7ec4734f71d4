"""Showing a rank its own GPU alone, before anything starts that would take every GPU it sees."""

from __future__ import annotations

import ctypes
import os

from collops.comm.world import place_on_node
from collops.errors import InputError

__all__ = ["show_own_device"]

# Rank and size on the node, as launchers tell them: some MPI libraries use GPUs as soon as they are loaded.
_PLACES = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
)
_SHOWN = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def show_own_device() -> None:
    """Let CUDA and HIP show this process one GPU, that of its number on its node. Collective.

    Nothing is changed for a rank that has its node to itself, or that its launcher shows one GPU.

    Raises
    ------
    InputError
        If this process uses CUDA already, with several GPUs.
    """
    rank, size = _place()
    if size == 1:
        return
    if (count := _devices_in_use()) > 1:
        raise InputError(
            f"this process uses CUDA already, with {count} GPUs: give each rank its own before anything uses one, "
            "before collops.world() and CuPy's first array, or let the launcher set CUDA_VISIBLE_DEVICES"
        )
    if count == 1:
        return
    for name in _SHOWN:
        known = [each for each in os.environ.get(name, "").split(",") if each]
        os.environ[name] = known[rank % len(known)] if known else str(rank)


def _place() -> tuple[int, int]:
    for names in _PLACES:
        rank, size = (os.environ.get(name, "") for name in names)
        if rank.isdecimal() and size.isdecimal():
            return int(rank), int(size)
    return place_on_node()


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
