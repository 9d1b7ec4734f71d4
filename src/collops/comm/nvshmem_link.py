"""Kernels that call NVSHMEM's device functions, from source to machine code.

NVRTC compiles them with NVSHMEM's headers, and nvJitLink adds NVSHMEM's device library. Neither needs a GPU.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from collops._nvrtc import compiled, headers, missing, text_of
from collops.errors import TransportError

# NVSHMEM's headers take these names from the standard library, which NVRTC does not have.
_BEFORE = """\
#include <cuda/std/type_traits>
namespace std { using cuda::std::is_integral; using cuda::std::is_signed; using cuda::std::is_unsigned; }
"""
# Headers that define uint64_t. NVSHMEM 3.8 includes all of them.
_INTEGERS = ("cuda/std/cstdint", "cuda_awbarrier_helpers.h", "cuda_pipeline_helpers.h")
_DEVICE = Path(__file__).with_name("nvshmem_device.cuh")
_LIBRARY = "../lib/libnvshmem_device.a"  # seen from NVSHMEM's header files
_LIBRARIES = {"nvrtc": "nvidia-cuda-nvrtc", "nvJitLink": "nvidia-nvjitlink"}
_HEADERS = {"nvshmem": "nvidia-nvshmem-cu13", "cudart": "nvidia-cuda-runtime", "cccl": "nvidia-cuda-cccl"}
"""The components whose header files kernels need, NVSHMEM first, and the packages that have them."""


@cache
def missing_for_nvshmem() -> str | None:
    """Return what this machine lacks to compile kernels that call NVSHMEM, as the end of a sentence, or ``None``.

    Not collective. Looks for nvshmem4py, NVRTC, nvJitLink and header files.

    Examples
    --------
    >>> from collops.comm import missing_for_nvshmem
    >>> (missing_for_nvshmem() or "needs").startswith("needs")
    True
    """
    if importlib.util.find_spec("nvshmem") is None:
        return "needs nvshmem4py: install collops[cuda13]"
    return missing(_LIBRARIES, _HEADERS)


def linked_with_nvshmem(source: str, processor: str, options: Sequence[str] = ()) -> bytes:
    """Return the machine code (cubin) of kernels that call NVSHMEM's device functions.

    `source` includes ``nvshmem.h`` and ``nvshmemx.h``, parts of them, or ``collops/nvshmem_device.cuh``. Raises the
    errors of :func:`collops._nvrtc.compiled`, and `TransportError` if linking fails or a component is missing (see
    :func:`missing_for_nvshmem`).
    """
    if (reason := missing_for_nvshmem()) is not None:
        raise TransportError(f"a kernel that calls NVSHMEM {reason}")
    folders = [folder for name in _HEADERS if (folder := headers(name)) is not None]
    # uint64_t is `unsigned long long` for NVRTC, but `unsigned long` for the compiler of the library, so that the
    # symbols of functions differ.
    paths = {name: next((path for folder in folders if (path := folder / name).exists()), None) for name in _INTEGERS}
    replaced = {
        name: path.read_text(encoding="utf-8").replace("long long", "long")
        for name, path in paths.items()
        if path is not None
    }
    replaced[f"collops/{_DEVICE.name}"] = _DEVICE.read_text(encoding="utf-8")
    code = compiled(_BEFORE + source, processor, ("-rdc=true", *options), folders, replaced)
    return _linked(code, processor, folders[0] / _LIBRARY)


def _linked(code: bytes, processor: str, library: Path) -> bytes:
    """Return the code linked with the functions that it needs of a library."""
    from cuda.bindings import nvjitlink

    kinds = nvjitlink.InputType
    linker = nvjitlink.create(1, [f"-arch={processor}"])
    try:
        nvjitlink.add_data(linker, kinds.CUBIN, code, len(code), "kernels")
        nvjitlink.add_file(linker, kinds.LIBRARY, str(library))
        nvjitlink.complete(linker)
        image = bytearray(nvjitlink.get_linked_cubin_size(linker))
        nvjitlink.get_linked_cubin(linker, image)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(linker))
        nvjitlink.get_error_log(linker, log)
        raise TransportError(
            f"kernels for {processor} cannot be linked with NVSHMEM: {error}\n{text_of(log)}"
        ) from error
    finally:
        nvjitlink.destroy(linker)
    return bytes(image)
