"""Build the package with its shared library."""

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
    """Return the folder of XLA's headers in jaxlib, without importing jaxlib."""
    found = importlib.util.find_spec("jaxlib")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the native library needs XLA's headers: pip install jaxlib")
    return Path(next(iter(found.submodule_search_locations))) / "include"


class Build(build_py):
    """Also compiles the library."""

    def run(self) -> None:
        """Copy the Python files, then compile."""
        super().run()
        target = Path(self.build_lib) / "collops_native" / "libcollops_native.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        sources = sorted(str(path) for path in (HERE / "src").glob("*.cpp"))
        compiler = shlex.split(os.environ.get("CXX", "c++"))
        extra = shlex.split(os.environ.get("CXXFLAGS", ""))
        subprocess.run([*compiler, *FLAGS, *extra, "-isystem", str(headers()), *sources, "-o", str(target)], check=True)


class Wheel(bdist_wheel):
    """A wheel for one platform and any Python: the library has no Python symbols."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return interpreter, its ABI, and the platform."""
        return "py3", "none", super().get_tag()[2]


class Native(Distribution):
    """A distribution with a compiled library, which setuptools does not build itself."""

    def has_ext_modules(self) -> bool:
        """Return whether the wheel depends on the platform."""
        return True


setup(distclass=Native, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
