"""Kernels that call NCCL's device functions, from source to machine code, compiled by NVRTC with NCCL's header files.

NVRTC compiles the header files for memory that a GPU loads and stores (LSA: windows and barriers). The header files for
networks (GIN) include header files of the system, which NVRTC does not have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from collops._nvrtc import compiled, headers, missing
from collops.comm.nccl import missing_for_device_functions, nccl_version
from collops.errors import TransportError

_LIBRARIES = {"nvrtc": "nvidia-cuda-nvrtc"}
_HEADERS = {"nccl": "nvidia-nccl-cu13", "cudart": "nvidia-cuda-runtime", "cccl": "nvidia-cuda-cccl"}
"""The components whose header files kernels need, NCCL first, and the packages that have them."""

# The parts of the C library that NCCL's headers need.
_INTEGERS = "".join(f"using cuda::std::{sign}int{bits}_t; " for sign in ("", "u") for bits in (8, 16, 32, 64, "ptr"))
_REPLACED = {
    "stdint.h": f"#include <cuda/std/cstdint>\n{_INTEGERS}",
    "limits.h": "#include <cuda/std/climits>",
    "stdbool.h": "",
    "stdlib.h": "",
}


@cache
def missing_for_nccl() -> str | None:
    """Return what this machine lacks to compile kernels that call NCCL, as the end of a sentence, or ``None``.

    Not collective. Looks for nccl4py, NCCL 2.28 or newer, NVRTC, and header files of the same version.

    Examples
    --------
    >>> from collops.comm import missing_for_nccl
    >>> (missing_for_nccl() or "needs").startswith("needs")
    True
    """
    return missing_for_device_functions() or missing(_LIBRARIES, _HEADERS) or _other_version()


def _other_version() -> str | None:
    """The headers have the layout of what the library keeps on the device, which changes between versions."""
    folder = headers("nccl")
    text = "" if folder is None else (folder / "nccl.h").read_text(encoding="utf-8")
    version = ".".join(re.findall(r"^#define NCCL_(?:MAJOR|MINOR|PATCH) (\d+)", text, re.MULTILINE))
    return None if version == nccl_version() else f"needs the header files of NCCL {nccl_version()}, not {version}"


def compiled_with_nccl(source: str, processor: str, options: Sequence[str] = ()) -> bytes:
    """Return the machine code (cubin) of kernels that call the device functions of NCCL's windows.

    ``nccl_device.cuh``, which includes NCCL's headers, is put before `source`. Raises the errors of
    :func:`collops._nvrtc.compiled`, and `TransportError` if a component is missing (see :func:`missing_for_nccl`).
    """
    if (reason := missing_for_nccl()) is not None:
        raise TransportError(f"a kernel that calls NCCL {reason}")
    folders = [folder for name in _HEADERS if (folder := headers(name)) is not None]
    before = Path(__file__).with_name("nccl_device.cuh").read_text(encoding="utf-8")
    return compiled(before + source, processor, options, folders, _REPLACED)
