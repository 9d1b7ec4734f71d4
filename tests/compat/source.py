"""PyLops-MPI's source distribution, whose scripts and pages tests read."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest


def source(config: pytest.Config, folder: Path) -> Path:
    """Return PyLops-MPI's sources in `folder`, which pip fetches once; skip without it or without pip's index."""
    if importlib.util.find_spec("pylops_mpi") is None:
        pytest.skip("PyLops-MPI is not installed")
    archives = Path(config.cache.mkdir("pylops-mpi"))
    fetch = [sys.executable, "-m", "pip", "download", "pylops-mpi==0.8.0", "--no-deps", "--no-binary", ":all:"]
    if not list(archives.glob("*.tar.gz")):
        done = subprocess.run([*fetch, "-q", "-d", str(folder)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"pip cannot fetch PyLops-MPI's source distribution: {done.stderr.strip()[-300:]}")
        fetched = next(iter(folder.glob("*.tar.gz")))
        partial = archives / f"{os.getpid()}.part"  # other test processes may look for the archive meanwhile
        shutil.copy(fetched, partial)
        partial.rename(archives / fetched.name)
    with tarfile.open(next(iter(archives.glob("*.tar.gz")))) as archive:
        # Python 3.11.2, which is Debian 12's, has no filters.
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    return next(iter(folder.glob("pylops_mpi-*")))
