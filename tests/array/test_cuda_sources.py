"""Every CUDA source of the package compiles, on a machine without a GPU.

A source that is compiled in several ways says so in lines ``// compile-with: OPTIONS``, each of which is tried, and
one that continues another in a line ``// compile-after: PATH``.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import collops

PACKAGE = Path(collops.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.cu"))
CASES = [
    pytest.param(path, options.split(), id=f"{path.relative_to(PACKAGE)} {options}".strip())
    for path in SOURCES
    for options in re.findall(r"^// compile-with:(.*)$", path.read_text(), re.MULTILINE) or [""]
]


# Whether it compiles does not hang on it, and it takes most of the time.
NOT_OPTIMIZED = ["-Xptxas", "-O0", "-Xcicc", "-O0"]


def text_of(path: Path) -> str:
    """The source, after the one that it continues."""
    before = re.search(r"^// compile-after: (.*)$", path.read_text(), re.MULTILINE)
    return ((path.parent / before[1]).read_text() if before else "") + path.read_text()


def nvrtc_library() -> str | None:
    """The library that CuPy compiles with, from the pip package nvidia-cuda-nvrtc."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).rglob("libnvrtc.so.*")):
            return str(path)
    return None


def compile_with_nvrtc(library: str, source: str, options: list[str]) -> str:
    """Compile and return the log; empty where all is well."""
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"source.cu", 0, None, None)
    assert created == 0
    arguments = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    if nvrtc.nvrtcCompileProgram(program, len(options), arguments) == 0:
        return ""
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.value.decode() or "failed without a log"


@pytest.mark.serial
@pytest.mark.skipif(not CASES, reason="the package has no CUDA sources")
@pytest.mark.parametrize(("path", "options"), CASES)
def test_cuda_source_compiles(path, options, tmp_path):
    nvcc, library = shutil.which("nvcc"), nvrtc_library()
    if library:
        log = compile_with_nvrtc(library, text_of(path), ["-std=c++17", "-arch=sm_90", "--ptxas-options=-O0", *options])
        assert not log, log
    elif nvcc:
        source = tmp_path / path.name
        source.write_text(text_of(path))
        target = str(tmp_path / "out.cubin")
        command = [nvcc, "-std=c++17", "-arch=sm_90", "-cubin", *NOT_OPTIMIZED, *options, "-o", target, str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    else:
        pytest.skip("needs nvcc or the pip package nvidia-cuda-nvrtc")


@pytest.mark.serial
@pytest.mark.skipif("COLLOPS_HIP_COMPILER" not in os.environ, reason="COLLOPS_HIP_COMPILER names no compiler of HIP")
@pytest.mark.parametrize("processor", ["gfx90a", "gfx942"])
@pytest.mark.parametrize(("path", "options"), CASES)
def test_source_compiles_for_amd(path, options, processor):
    """To the code of the processor, whose wavefronts have 64 threads; HIP has no shuffles with masks of 32."""
    compiler = shlex.split(os.environ["COLLOPS_HIP_COMPILER"])
    target = ["-x", "hip", "--cuda-device-only", f"--offload-arch={processor}", "-nogpulib", "-S", "-o", os.devnull]
    command = [*compiler, *target, "-include", "hip/hip_runtime.h", "-std=c++17", "-O1", *options, "-"]
    done = subprocess.run(command, input=text_of(path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
