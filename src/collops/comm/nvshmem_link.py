"""Kernels that call NVSHMEM's device functions, from source to machine code.

NVRTC compiles them with NVSHMEM's headers, and nvJitLink adds NVSHMEM's device library. Neither needs a GPU.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from collops.errors import InputError, TransportError

# NVSHMEM's headers take these names from the standard library, which NVRTC does not have.
_BEFORE = """\
#include <cuda/std/type_traits>
namespace std { using cuda::std::is_integral; using cuda::std::is_signed; using cuda::std::is_unsigned; }
"""
_INTEGERS = "cuda/std/cstdint"  # the header that defines uint64_t
_LIBRARY = "../lib/libnvshmem_device.a"  # seen from NVSHMEM's header files
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
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    for library, package in (("nvrtc", "nvidia-cuda-nvrtc"), ("nvJitLink", "nvidia-nvjitlink")):
        try:
            load_nvidia_dynamic_lib(library)
        except DynamicLibNotFoundError:
            return f"needs the library {library}: install {package}"
    for name, package in _HEADERS.items():
        if _headers(name) is None:
            return f"needs the header files of {name}: install {package}"
    return None


def linked_with_nvshmem(source: str, processor: str, options: Sequence[str] = ()) -> bytes:
    """Return the machine code (cubin) of kernels that call NVSHMEM's device functions.

    Parameters
    ----------
    source : str
        CUDA C++ that includes ``nvshmem.h`` and ``nvshmemx.h``, or those of their headers that it needs.
    processor : str
        What the code is for, such as ``"sm_90"``.
    options : sequence of str
        Of NVRTC.

    Raises
    ------
    InputError
        If the source does not compile, with the compiler's messages.
    TransportError
        If it cannot be linked, or something is :func:`missing_for_nvshmem` for that.
    """
    if (reason := missing_for_nvshmem()) is not None:
        raise TransportError(f"a kernel that calls NVSHMEM {reason}")
    folders = [folder for name in _HEADERS if (folder := _headers(name)) is not None]
    return _linked(_compiled(_BEFORE + source, processor, options, folders), processor, folders[0] / _LIBRARY)


@cache
def _headers(name: str) -> Path | None:
    """Return the folder of a component's header files."""
    from cuda.pathfinder import find_nvidia_header_directory

    folder = find_nvidia_header_directory(name)
    if folder is not None:
        return Path(folder)
    if name == "cccl" and (cupy := importlib.util.find_spec("cupy")) is not None and cupy.origin is not None:
        own = Path(cupy.origin).parent / "_core/include/cupy/_cccl/libcudacxx"
        return own if own.is_dir() else None
    return None


def _compiled(source: str, processor: str, options: Sequence[str], folders: Sequence[Path]) -> bytes:
    """Return code with references to functions that are defined elsewhere."""
    from cuda.bindings import nvrtc

    # uint64_t is `unsigned long long` for NVRTC, but `unsigned long` for the compiler of the library, whose functions
    # have other symbols then.
    integers = next(path for folder in folders if (path := folder / _INTEGERS).exists())
    header = integers.read_text(encoding="utf-8").replace("long long", "long")
    arguments = [f"-arch={processor}", "-rdc=true", "-default-device", "-std=c++17", *options]
    arguments += [f"-I{folder}" for folder in folders]

    program = _checked(
        nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 1, [header.encode()], [_INTEGERS.encode()])
    )
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(arguments), [argument.encode() for argument in arguments])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
            _checked(nvrtc.nvrtcGetProgramLog(program, log))
            raise InputError(f"kernels for {processor} do not compile:\n{_text(log)}")
        code = bytearray(_checked(nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc.nvrtcGetCUBIN(program, code))
        return bytes(code)
    finally:
        _checked(nvrtc.nvrtcDestroyProgram(program))


def _linked(code: bytes, processor: str, library: Path) -> bytes:
    """Return the code with what it needs of a library."""
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
        raise TransportError(f"kernels for {processor} cannot be linked with NVSHMEM: {error}\n{_text(log)}") from error
    finally:
        nvjitlink.destroy(linker)
    return bytes(image)


def _checked(result: tuple[Any, ...]) -> Any:
    """Return what a call of NVRTC gives beside its status."""
    status, *values = result
    if status:
        raise TransportError(f"NVRTC: {status.name}")
    return values[0] if values else None


def _text(log: bytearray) -> str:
    return log.rstrip(b"\0").decode(errors="replace").strip()
