"""Libraries, devices and links of this machine, as plain data that ``collops info`` prints and benchmarks record."""

from __future__ import annotations

import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from collops.comm.communicator import Communicator
from collops.comm.cores import available_cores
from collops.comm.failure import default_timeout
from collops.comm.mpi import gpu_awareness, load_mpi
from collops.comm.nccl import available_binding, load_binding
from collops.comm.world import device_count
from collops.errors import TransportError

__all__ = ["facts"]

_PACKAGES = (
    "numpy",
    "scipy",
    "pylops",
    "mpi4py",
    "cupy-cuda13x",
    "jax",
    "numba",
    "nccl4py",
    "nvshmem4py-cu13",
)


def facts(comm: Communicator) -> dict[str, Any]:
    """Return what this rank's machine has and what `comm` chose from it. Not collective.

    Returns
    -------
    dict
        JSON-able: ``host`` (name, processor, cores), ``python``, ``packages`` (version or ``None``), ``mpi`` (library,
        GPU awareness and its reason), ``nccl``, ``nvshmem`` (binding and version, or why there is none), ``devices``
        (name, memory in bytes, compute capability, PCI bus) and ``links`` (``[i][j]``: how device *i* reaches *j*),
        ``choice`` (ranks, transports, reasons, timeout in seconds).
    """
    return {
        "host": {"name": platform.node(), "processor": _processor(), "cores": len(available_cores())},
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "mpi": _mpi(),
        "nccl": _nccl(),
        "nvshmem": _nvshmem(),
        "devices": _devices(),
        "links": _links(),
        "choice": {
            "ranks": comm.size,
            "host_transport": comm.host_transport,
            "device_transport": comm.device_transport,
            "reasons": list(comm.reasons),
            "timeout": default_timeout(),
        },
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except FileNotFoundError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _mpi() -> dict[str, Any]:
    mpi, reason = load_mpi()
    if mpi is None:
        return {"library": None, "reason": reason}
    level, why = gpu_awareness(mpi)
    return {
        "library": reason,
        "standard": ".".join(map(str, mpi.Get_version())),
        "gpu_aware": level,
        "reason": why,
    }


def _nccl() -> dict[str, Any]:
    name = available_binding()
    if name is None:
        return {"binding": None, "version": None, "reason": "neither nccl4py nor CuPy is installed"}
    try:
        return {"binding": name, "version": load_binding().version(), "reason": None}
    except TransportError as error:
        return {"binding": name, "version": None, "reason": str(error)}


def _nvshmem() -> dict[str, Any]:
    if importlib.util.find_spec("nvshmem") is None:
        return {"binding": None, "version": None, "reason": "nvshmem4py is not installed"}
    library = next(
        (found for name in ("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12") if (found := _version(name))), None
    )
    reason = None if library else "the library is not a Python package here; its version shows when it starts"
    return {"binding": "nvshmem4py", "version": library, "reason": reason}


def _devices() -> list[dict[str, Any]]:
    found = []
    for number in range(device_count()):
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(number)
        device = cupy.cuda.Device(number)
        found.append(
            {
                "name": properties["name"].decode(),
                "memory": properties["totalGlobalMem"],
                "compute_capability": device.compute_capability,
                "pci_bus": device.pci_bus_id,
            }
        )
    return found


def _links() -> list[list[str]]:
    count = device_count()
    if count < 2:
        return [["itself"]] * count
    import cupy

    def link(one: int, other: int) -> str:
        if one == other:
            return "itself"
        if not cupy.cuda.runtime.deviceCanAccessPeer(one, other):
            return "through the host"
        return _kind_of_peers(one, other)

    return [[link(one, other) for other in range(count)] for one in range(count)]


def _kind_of_peers(one: int, other: int) -> str:
    """Return what joins two devices: native atomics work over NVLink and not over PCIe."""
    try:
        from cuda.bindings import runtime  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        return "peer (cuda-bindings would say whether by NVLink)"
    attribute = runtime.cudaDeviceP2PAttr.cudaDevP2PAttrNativeAtomicSupported
    error, value = runtime.cudaDeviceGetP2PAttribute(attribute, one, other)
    return "NVLink" if error == runtime.cudaError_t.cudaSuccess and value == 1 else "PCIe peer"
