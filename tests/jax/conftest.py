"""Tests of JAX need it and the native library, and compute in double precision."""

from __future__ import annotations

import importlib.util
import os

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("jax") else ["test_*.py"]
if importlib.util.find_spec("jax"):
    import jax


@pytest.fixture(autouse=True)
def native_and_double():
    if importlib.util.find_spec("collops_native") is None and "COLLOPS_NATIVE" not in os.environ:
        pytest.skip("the native library is not built: pip install ./native")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
