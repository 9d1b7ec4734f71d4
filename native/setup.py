"""Compile the shared library into the package; what pip runs."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra"]


def headers() -> Path:
    """Where jaxlib keeps XLA's headers (found without importing it)."""
    found = importlib.util.find_spec("jaxlib")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the native library needs XLA's headers: pip install jaxlib")
    return Path(next(iter(found.submodule_search_locations))) / "include"


class Build(build_py):
    """Adds the library to the built package."""

    def run(self) -> None:
        """Compile after the Python files are in their place."""
        super().run()
        target = Path(self.build_lib) / "collops_native" / "libcollops_native.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        sources = sorted(str(path) for path in (HERE / "src").glob("*.cpp"))
        compiler = shlex.split(os.environ.get("CXX", "c++"))
        extra = shlex.split(os.environ.get("CXXFLAGS", ""))
        subprocess.run([*compiler, *FLAGS, *extra, "-isystem", str(headers()), *sources, "-o", str(target)], check=True)


class Wheel(bdist_wheel):
    """Names the machine but no Python: the library has none of its symbols."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return interpreter, its ABI, and the platform."""
        return "py3", "none", super().get_tag()[2]


class Native(Distribution):
    """Has something compiled in it, though nothing that setuptools knows."""

    def has_ext_modules(self) -> bool:
        """Say that it belongs to one kind of machine."""
        return True


setup(distclass=Native, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
