"""Kernels from CUDA C++, all compiled with the same flags, so that equal arithmetic has equal results.

CuPy's own ``RawModule(code=...)`` appends ``-ftz=true`` to the options of its caller (14.2, ``cupy/cuda/compiler.py``),
and flushes subnormal numbers to zero. NumPy keeps them, and so does NVRTC by default.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from collops.errors import InputError, TransportError

_STANDARD = "-std=c++17"
_FLAGS = (_STANDARD, "-ftz=false")


def cuda_module(source: str, options: Sequence[str] = (), cooperative: bool = False) -> Any:
    """Compile CUDA C++ for the current device and return it as a CuPy module.

    Machine code is kept in CuPy's cache folder, by source, options, processor and version of NVRTC.

    Parameters
    ----------
    source : str
        CUDA C++ that includes no header files.
    options : sequence of str
        Further options of NVRTC, such as definitions of macros.
    cooperative : bool
        Whether its kernels are launched so that all blocks can synchronise.

    Returns
    -------
    cupy.RawModule
        Its ``get_function(name)`` returns a kernel.
    """
    import cupy

    if cupy.cuda.runtime.is_hip:
        return cupy.RawModule(code=source, options=(_STANDARD, *options))
    code = _machine_code(source, (*_FLAGS, *options), cupy.cuda.Device().compute_capability)
    return cupy.RawModule(path=str(code), enable_cooperative_groups=cooperative)


@cache
def _cuda_module(paths: tuple[Path, ...], options: tuple[str, ...]) -> Any:
    return cuda_module("".join(path.read_text(encoding="utf-8") for path in paths), options)


@cache
def cuda_kernel(module: str, source: str | tuple[str, ...], name: str, *options: str) -> Any:
    """Return the CUDA kernel `name` of a file next to a Python module, to be called with grid, block and arguments.

    `module` is the ``__file__`` of the Python module; paths are relative to its folder. The file, or several that
    continue each other, is compiled once, with `options` as in :func:`cuda_module`.
    """
    sources = (source,) if isinstance(source, str) else source
    return _cuda_module(tuple(Path(module).parent / file for file in sources), options).get_function(name)


def _machine_code(source: str, options: tuple[str, ...], processor: str) -> Path:
    """Return the file with the machine code of a source for the current device, compiled if it does not exist."""
    from cupy.cuda import compiler, nvrtc

    folder = _cache_folder()
    key = hashlib.sha256(repr((source, options, processor, nvrtc.getVersion())).encode()).hexdigest()
    path = folder / f"collops-{key}.cubin"
    if not path.exists():
        code, _ = compiler.compile_using_nvrtc(source, options)
        # Written under another name first: ranks that compile the same source concurrently read complete files.
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(code)
        os.replace(file.name, path)
    return path


@cache
def _memory_only() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is removed when this process ends."""
    return tempfile.TemporaryDirectory(prefix="collops-kernels-")


def _cache_folder() -> Path:
    """Return CuPy's folder of compiled kernels, or a temporary folder if its cache is disabled."""
    if os.environ.get("CUPY_CACHE_IN_MEMORY") == "1":
        return Path(_memory_only().name)
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def headers(name: str) -> Path | None:
    """Return the folder of a component's header files, or ``None``."""
    from cuda.pathfinder import find_nvidia_header_directory

    folder = find_nvidia_header_directory(name)
    if folder is not None:
        return Path(folder)
    if name == "cccl" and (cupy := importlib.util.find_spec("cupy")) is not None and cupy.origin is not None:
        bundled = Path(cupy.origin).parent / "_core/include/cupy/_cccl/libcudacxx"
        return bundled if bundled.is_dir() else None
    return None


def missing(libraries: Mapping[str, str], components: Mapping[str, str]) -> str | None:
    """Return a missing library or component, as the end of a sentence, or ``None``.

    The mappings name libraries, or components whose header files are needed, and the packages that contain them.
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

    Header files are in `folders`; `replaced` maps names of included files to texts that replace them. Raises
    `InputError`, with the compiler's messages, if the source does not compile.
    """
    from cuda.bindings import nvrtc

    arguments = [f"-arch={processor}", "-default-device", *_FLAGS, *options]
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
