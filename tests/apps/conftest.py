from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(comm, tmp_path) -> Path:
    """A folder that is the same on all ranks."""
    return Path(comm.allgather_metadata(str(tmp_path))[0])
