"""Device code from source by NVRTC, with the header files of libraries of NVIDIA. It needs no GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from collops.errors import InputError, TransportError


@cache
def headers(name: str) -> Path | None:
    """Return the folder of a component's header files, or ``None``."""
    from cuda.pathfinder import find_nvidia_header_directory

    folder = find_nvidia_header_directory(name)
    if folder is not None:
        return Path(folder)
    if name == "cccl" and (cupy := importlib.util.find_spec("cupy")) is not None and cupy.origin is not None:
        own = Path(cupy.origin).parent / "_core/include/cupy/_cccl/libcudacxx"
        return own if own.is_dir() else None
    return None


def missing(libraries: Mapping[str, str], components: Mapping[str, str]) -> str | None:
    """Return what this machine lacks of these, as the end of a sentence, or ``None``.

    The mappings name libraries, or components whose header files are needed, and the packages that have them.
    """
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    for library, package in libraries.items():
        try:
            load_nvidia_dynamic_lib(library)
        except DynamicLibNotFoundError:
            return f"needs the library {library}: install {package}"
    for name, package in components.items():
        if headers(name) is None:
            return f"needs the header files of {name}: install {package}"
    return None


def compiled(
    source: str, processor: str, options: Sequence[str], folders: Sequence[Path], replaced: Mapping[str, str]
) -> bytes:
    """Return the machine code (cubin) of CUDA C++ for a processor such as ``"sm_90"``, with options of NVRTC.

    Header files are in `folders`; `replaced` has the text of those that are not to be read from there, by the name that
    sources include. Raises `InputError`, with the compiler's messages, if the source does not compile.
    """
    from cuda.bindings import nvrtc

    arguments = [f"-arch={processor}", "-default-device", "-std=c++17", *options]
    arguments += [f"-I{folder}" for folder in folders]

    names, texts = ([text.encode() for text in part] for part in (replaced, replaced.values()))
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", len(replaced), texts, names))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(arguments), [argument.encode() for argument in arguments])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
            _checked(nvrtc.nvrtcGetProgramLog(program, log))
            raise InputError(f"kernels for {processor} do not compile:\n{text_of(log)}")
        code = bytearray(_checked(nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc.nvrtcGetCUBIN(program, code))
        return bytes(code)
    finally:
        _checked(nvrtc.nvrtcDestroyProgram(program))


def _checked(result: tuple[Any, ...]) -> Any:
    """Return the value of a call of NVRTC; raise `TransportError` if its status is an error."""
    status, *values = result
    if status:
        raise TransportError(f"NVRTC: {status.name}")
    return values[0] if values else None


def text_of(log: bytearray) -> str:
    """Return the text of a compiler's or linker's messages."""
    return log.rstrip(b"\0").decode(errors="replace").strip()
