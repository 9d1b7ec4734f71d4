"""``collops info``: libraries, devices and links of this machine, and what a run would use, with reasons."""

from __future__ import annotations

import importlib.util
import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import typer

from collops.cli.command import Debug, Json, Ranks, Transport, with_world
from collops.cli.console import console
from collops.cli.table import guests
from collops.comm import Communicator
from collops.comm.cores import available_cores
from collops.comm.failure import default_timeout
from collops.comm.mpi import gpu_awareness, load_mpi
from collops.comm.nccl import available_binding, load_binding
from collops.comm.world import device_count
from collops.errors import TransportError

if TYPE_CHECKING:
    from rich.tree import Tree

_PACKAGES = ("numpy", "scipy", "pylops", "mpi4py", "cupy-cuda13x", "jax", "numba", "nccl4py", "nvshmem4py-cu13")


def info(*, ranks: Ranks = None, transport: Transport = "auto", as_json: Json = False, debug: Debug = False) -> None:
    """Show the MPI library, NCCL, NVSHMEM, devices and their links, and what a run would use and why."""

    def body(comm: Communicator) -> None:
        facts = _facts(comm)
        if comm.rank != 0:
            return
        if as_json:
            typer.echo(json.dumps(facts))
        else:
            console(to_stderr=False).print(_tree(facts))

    with_world("collops info", body, ranks=ranks, transport=transport, debug=debug)


def _facts(comm: Communicator) -> dict[str, object]:
    """Return what this rank's machine has, and what `comm` chose from it, as JSON can carry it. Not collective."""
    devices = range(device_count())
    return {
        "host": {"name": platform.node(), "processor": _processor(), "cores": len(available_cores())},
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "distributions_of_commands": guests(),
        "mpi": _mpi(),
        "nccl": _nccl(),
        "nvshmem": _nvshmem(),
        "devices": _devices(),
        "links": [["itself" if i == j else _link(i, j) for j in devices] for i in devices],
        "choice": {
            "ranks": comm.size,
            "host_transport": comm.host_transport,
            "device_transport": comm.device_transport,
            "reasons": list(comm.reasons),
            "timeout": default_timeout(),  # seconds
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


def _mpi() -> dict[str, object]:
    mpi, reason = load_mpi()
    if not hasattr(mpi, "Get_version"):  # none, or TCP in its place
        return {"library": None, "reason": reason}
    level, why = gpu_awareness(mpi)
    return {"library": reason, "standard": ".".join(map(str, mpi.Get_version())), "gpu_aware": level, "reason": why}


def _nccl() -> dict[str, object]:
    name = available_binding()
    if name is None:
        return {"binding": None, "version": None, "reason": "neither nccl4py nor CuPy is installed"}
    try:
        return {"binding": name, "version": load_binding().version(), "reason": None}
    except TransportError as error:
        return {"binding": name, "version": None, "reason": str(error)}


def _nvshmem() -> dict[str, object]:
    if importlib.util.find_spec("nvshmem") is None:
        return {"binding": None, "version": None, "reason": "nvshmem4py is not installed"}
    library = _version("nvidia-nvshmem-cu13") or _version("nvidia-nvshmem-cu12")
    reason = None if library else "the library is not a Python package here; its version shows when it starts"
    return {"binding": "nvshmem4py", "version": library, "reason": reason}


def _devices() -> list[dict[str, object]]:
    devices = []
    for number in range(device_count()):
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(number)
        device = cupy.cuda.Device(number)
        devices.append(
            {
                "name": properties["name"].decode(),
                "memory": properties["totalGlobalMem"],
                "compute_capability": device.compute_capability,
                "pci_bus": device.pci_bus_id,
            }
        )
    return devices


def _link(first: int, second: int) -> str:
    """Return what joins two devices: native atomics work over NVLink and not over PCIe."""
    import cupy

    if not cupy.cuda.runtime.deviceCanAccessPeer(first, second):
        return "through the host"
    try:
        from cuda.bindings import runtime  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        return "peer (cuda-bindings would say whether by NVLink)"
    attribute = runtime.cudaDeviceP2PAttr.cudaDevP2PAttrNativeAtomicSupported
    error, value = runtime.cudaDeviceGetP2PAttribute(attribute, first, second)
    return "NVLink" if error == runtime.cudaError_t.cudaSuccess and value == 1 else "PCIe peer"


def _tree(facts: Mapping[str, Any]) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    def add(tree: Tree, value: Any) -> None:
        """Add the entries of a mapping or a list to `tree`; lists of plain values go into one line."""
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            name = str(key).replace("_", " ")
            if isinstance(entry, list) and not any(isinstance(item, (dict, list)) for item in entry):
                entry = ", ".join(map(_plain, entry)) or None
            if isinstance(entry, (dict, list)) and entry:
                add(tree.add(Text(name, style="bold")), entry)
            else:
                tree.add(Text.assemble((f"{name}: ", "bold"), _plain(entry)))

    tree = Tree(Text("collops", style="bold"))
    add(tree, facts)
    return tree


def _plain(value: object) -> str:
    return "none" if value in (None, {}) else str(value)
