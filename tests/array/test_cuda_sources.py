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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import collops

PACKAGE = Path(collops.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.cu"))


def cases(paths):
    """Each source with each of its options."""
    return [
        pytest.param(path, options.split(), id=f"{path.relative_to(PACKAGE)} {options}".strip())
        for path in paths
        for options in re.findall(r"^// compile-with:(.*)$", path.read_text(), re.MULTILINE) or [""]
    ]


# Those that call NVSHMEM or NCCL need their headers, and are for NVIDIA's devices only: tests/comm/test_nvshmem_link.py
# and tests/comm/test_nccl_link.py.
NEEDS_NVSHMEM = cases(path for path in SOURCES if "nvshmem_device.cuh" in path.read_text())
NEEDS_NCCL = cases(path for path in SOURCES if "nccl_device.cuh" in path.read_text())
CASES = [case for case in cases(SOURCES) if case not in NEEDS_NVSHMEM + NEEDS_NCCL]


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


# ---- For AMD's processors, whose wavefronts have 64 threads; HIP has no shuffles with masks of 32 threads

HIP_COMPILERS = ["hipcc", *(f"clang++-{version}" for version in range(22, 16, -1))]  # gfx942 needs clang 17
HIP = ["-x", "hip", "--cuda-device-only", "-nogpulib", "-std=c++17", "-O0", "-S"]
PROCESSORS = ["gfx90a", "gfx942"]
HIP_HEADER = "hip/hip_runtime.h"


def hip_compiler() -> list[str] | None:
    """The compiler that COLLOPS_HIP_COMPILER names, or the first one on the path."""
    if named := os.environ.get("COLLOPS_HIP_COMPILER"):
        return shlex.split(named)
    return next(([name] for name in HIP_COMPILERS if shutil.which(name)), None)


def compiled(command: list[str], source: str) -> str:
    """What a compiler writes to its standard output; the test fails with its messages if it fails."""
    done = subprocess.run([*command, "-"], input=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr}"
    return done.stdout


def kept_lines(compiler: list[str], path: Path, options: list[str]) -> set[int]:
    """Numbers of the lines of a source that the preprocessor keeps for AMD, by the markers in its output."""
    command = [*compiler, "-E", "-x", "c++", "-D__HIP_PLATFORM_AMD__", *options]
    kept, number = set(), 0
    for line in compiled(command, path.read_text()).splitlines():
        if marker := re.match(r'# (\d+) "', line):
            number = int(marker[1]) - 1
        elif line.strip():
            kept.add(number)
        number += 1
    return kept


def ways_to_compile(compiler: list[str]) -> dict[str, list[tuple[Path, list[str]]]]:
    """Sources and options for each processor: of each source the way that keeps most lines.

    Of its other ways, those that keep further lines, shared among the processors, which saves a third of the time.
    """
    works: dict[str, list[tuple[Path, list[str]]]] = {processor: [] for processor in PROCESSORS}
    for path in dict.fromkeys(case.values[0] for case in CASES):
        ways = [case.values[1] for case in CASES if case.values[0] == path]
        everything = os.environ.get("COLLOPS_ALL_CASES") == "1"
        first, *others = ways if everything else covering(ways, [kept_lines(compiler, path, way) for way in ways])
        for number, processor in enumerate(PROCESSORS):
            shared = others if everything else others[number :: len(PROCESSORS)]
            works[processor] += [(path, way) for way in [first, *shared]]
    return works


def covering(ways: list[list[str]], kept: list[set[int]]) -> list[list[str]]:
    """Few ways that together keep all lines: always the one next that keeps most of what is left."""
    left, chosen = set().union(*kept), []
    while left:
        best = max(range(len(ways)), key=lambda way: len(kept[way] & left))
        chosen.append(ways[best])
        left -= kept[best]
    return chosen


@pytest.mark.serial
@pytest.mark.skipif(not CASES, reason="the package has no CUDA sources")
def test_every_line_compiles_for_amd(tmp_path):
    """To the assembly of each processor, by the headers of HIP, which are parsed once for each processor."""
    compiler = hip_compiler()
    if compiler is None:
        pytest.skip("needs hipcc of ROCm, or clang 17 or newer (Debian: clang-19)")
    header = ["-include", HIP_HEADER]
    probe = [*compiler, *HIP, "--offload-arch=gfx942", *header, "-fsyntax-only", "-"]
    found = subprocess.run(probe, input="", capture_output=True, text=True, check=False)
    if found.returncode != 0 and f"'{HIP_HEADER}' file not found" in found.stderr:
        pytest.skip("needs the headers of HIP (Debian: libamdhip64-dev)")

    works = ways_to_compile(compiler)

    def compile_all(processor: str) -> None:
        target, parsed = [*compiler, *HIP, f"--offload-arch={processor}"], str(tmp_path / f"{processor}.pch")
        compiled([*target, *header, "-Xclang", "-emit-pch", "-o", parsed], "")
        for path, options in works[processor]:
            assembly = compiled([*target, "-include-pch", parsed, "-o", "-", *options], text_of(path))
            assert f"amdgcn-amd-amdhsa--{processor}" in assembly
            assert ".amdhsa_wavefront_size32 1" not in assembly
            assert ".amdhsa_kernel " in assembly or "__global__" not in path.read_text()

    with ThreadPoolExecutor(len(PROCESSORS)) as threads:
        list(threads.map(compile_all, PROCESSORS))
