"""Calls of the CUDA or HIP driver for NCCL, by ctypes, without a toolkit.

They raise a TransportError if the driver reports an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import jax

from collops.errors import TransportError

_GRAPH_FUNCTIONS = (
    *("cuStreamCreate", "cuStreamIsCapturing", "cuStreamBeginCapture_v2", "cuStreamEndCapture"),
    *("cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphDestroy", "cuGraphExecDestroy"),
)


def is_rocm() -> bool:
    """Return whether JAX's GPUs are from AMD."""
    return "rocm" in jax.local_devices()[0].client.platform_version.lower()


def bus_of(device: int) -> str:
    """Return a GPU's address on the PCI bus, which is the same in all processes, unlike its number."""
    name = ctypes.create_string_buffer(32)
    length = ctypes.c_int(len(name))
    if is_rocm():
        failed = _hip().hipDeviceGetPCIBusId(name, length, ctypes.c_int(device))
    else:
        handle = ctypes.c_int()
        failed = _handle_of(device, handle) or _cuda().cuDeviceGetPCIBusId(name, length, handle)
    if failed:
        raise TransportError(f"the PCI address of GPU {device} is not available: error {failed} of its driver")
    return name.value.decode()


@contextmanager
def current(device: int) -> Iterator[None]:
    """Make a GPU's primary context current in this thread, as NCCL requires; restore the previous one afterwards."""
    if is_rocm():
        hip, number = _hip(), ctypes.c_int()
        if hip.hipGetDevice(ctypes.byref(number)) or hip.hipSetDevice(ctypes.c_int(device)):
            raise TransportError(f"hipSetDevice({device}) failed")
        try:
            yield
        finally:
            hip.hipSetDevice(number)
        return
    cuda, handle, before, context = _cuda(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    failed = (
        _handle_of(device, handle)
        or cuda.cuCtxGetCurrent(ctypes.byref(before))
        or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
        or cuda.cuCtxSetCurrent(context)
    )
    if failed:
        raise TransportError(f"GPU {device} cannot be used: CUDA error {failed}")
    try:
        yield
    finally:
        cuda.cuCtxSetCurrent(before)


def graph_functions() -> list[int]:
    """Return the addresses of CUDA's functions that record and launch graphs."""
    return [ctypes.cast(getattr(_cuda(), name), ctypes.c_void_p).value or 0 for name in _GRAPH_FUNCTIONS]


def wait_for_device() -> None:
    """Synchronise with this thread's GPU; raise a TransportError if its work failed."""
    if failed := _hip().hipDeviceSynchronize() if is_rocm() else _cuda().cuCtxSynchronize():
        raise TransportError(f"work on this rank's GPU ended in error {failed} of its driver")


def _handle_of(device: int, handle: ctypes.c_int) -> int:
    """Set `handle` to CUDA's handle of a device; return the error code."""
    return _cuda().cuInit(0) or _cuda().cuDeviceGet(ctypes.byref(handle), ctypes.c_int(device))


@cache
def _cuda() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _hip() -> ctypes.CDLL:
    return ctypes.CDLL("libamdhip64.so")
