"""Tests of JAX need it and the native library, and compute in double precision.

JAX has four CPU devices in all, on one, two or four ranks. Programs run on the first one unless they ask for more.
"""

from __future__ import annotations

import importlib.util
import os

import pytest

import collops

collect_ignore_glob = [] if importlib.util.find_spec("jax") else ["test_*.py"]
if importlib.util.find_spec("jax") and "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    import jax

    jax.config.update("jax_num_cpu_devices", {1: 4, 2: 2}.get(collops.world().size, 1))


@pytest.fixture(autouse=True)
def native_and_double():
    if importlib.util.find_spec("collops_native") is None and "COLLOPS_NATIVE" not in os.environ:
        pytest.skip("the native library is not built: pip install ./native")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
