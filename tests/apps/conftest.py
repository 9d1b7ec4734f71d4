from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(comm, tmp_path) -> Path:
    """A folder that is the same on all ranks."""
    return Path(comm.allgather_metadata(str(tmp_path))[0])


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    """Leave out the pictures of the applications, and the plots of their pages: they take longer than all else.

    A test that looks at them asks for the fixture `with_pictures`.
    """
    if "with_pictures" not in request.fixturenames:
        monkeypatch.setattr("collops.apps.recipe._draw", lambda *_, **__: [])
        monkeypatch.setattr("collops.seismic.lsm.page.svg", lambda draw, name, title: title)


@pytest.fixture
def with_pictures():
    """Ask for the pictures."""
