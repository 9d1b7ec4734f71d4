"""What tests on GPUs need."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def device(comm) -> None:
    """Skip without a GPU on every rank, and CuPy for it."""
    if comm.device_transport is None:
        pytest.skip("no device on every rank")
