"""A rank's own GPU: restrict the rank to it before libraries initialise all visible GPUs, and notice another one."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable

from collops.backend import CudaStream
from collops.comm.mpi import duplicate, load_mpi, on_node
from collops.errors import InputError

__all__ = ["name_of_device", "select_own_device"]

# Local rank and size in launchers' environment variables: some MPI libraries initialise GPUs when they are loaded.
_VARIABLES = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
)
# The variable that selects devices for a library, and a variable that has selected devices for the driver before.
_SHOWN = (("CUDA_VISIBLE_DEVICES", None), ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"))


def select_own_device() -> None:
    """Restrict this process to the GPU of its local rank, for CUDA and HIP. Collective.

    No change for the only rank of a node, or if one or no GPU is visible. Raises `InputError` if this process already
    uses CUDA with several GPUs.
    """
    rank, size = placement_from_launcher() or placement_on_node()
    if size == 1:
        return
    if (count := _devices_in_use()) > 1:
        raise InputError(
            f"this process already uses CUDA with {count} GPUs: select one GPU per rank before collops.world() and the "
            "first array of CuPy, or let the launcher set CUDA_VISIBLE_DEVICES"
        )
    if count == 1:
        return
    for name, before in _SHOWN:
        shown = _listed(name)
        if shown is None:
            selected_before = _listed(before)
            shown = [str(number) for number in range(rank + 1 if selected_before is None else len(selected_before))]
        if shown:
            os.environ[name] = shown[rank % len(shown)]


def name_of_device() -> str:
    """Return a name of the current GPU that is unique among the machines: ranks with the same name share it."""
    import cupy

    return f"{socket.gethostname()} {cupy.cuda.Device().pci_bus_id}"


def own_stream() -> Callable[[], CudaStream]:
    """Return a function that returns the current stream of the GPU that is current now.

    The function raises `InputError` if another GPU is current. Work on arrays is then queued on a stream of that GPU,
    while a library queues the messages of a communicator on the GPU where it was created: neither waits for the other,
    and results would be wrong. It happens in a new thread, whose current GPU is the first one, and after programs of
    JAX, which leave the GPU current on which they ran.
    """
    import cupy

    current_stream, current = cupy.cuda.get_current_stream, cupy.cuda.runtime.getDevice
    own = current()

    def checked() -> CudaStream:
        if (now := current()) != own:
            raise InputError(
                f"GPU {now} is current in this thread, but this rank's arrays are sent from GPU {own}: select it by "
                f"cupy.cuda.Device({own}).use() in each thread and after programs of JAX, or let each rank see only "
                "its own GPU (CUDA_VISIBLE_DEVICES, collops.jax.use_local_device())"
            )
        return current_stream()

    return checked


def _listed(name: str | None) -> list[str] | None:
    """Return the GPUs that an environment variable names; ``None`` where it is not set."""
    value = None if name is None else os.environ.get(name)
    return None if value is None else [device for device in value.split(",") if device]


def placement_from_launcher() -> tuple[int, int] | None:
    """Return the local rank and the number of ranks on this node, if the launcher passes them."""
    for names in _VARIABLES:
        rank, size = (os.environ.get(name, "") for name in names)
        if rank.isdecimal() and size.isdecimal():
            return int(rank), int(size)
    return None


def placement_on_node() -> tuple[int, int]:
    """Return the local rank and the number of ranks on this node, before there is a communicator. Collective."""
    mpi, _ = load_mpi()
    if mpi is None:
        return 0, 1
    control = duplicate(mpi.COMM_WORLD)
    rank, node_ranks = on_node(control)
    control.Free()
    return rank, len(node_ranks)


def _devices_in_use() -> int:
    """Return the number of GPUs visible to CUDA in this process; 0 before CUDA is initialised."""
    count = ctypes.c_int()
    try:
        cuda = _cuda()
    except OSError:  # no such library
        return 0
    return 0 if cuda.cuDeviceGetCount(ctypes.byref(count)) else count.value


def _cuda() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
