"""The benchmark of JAX goes on without a peer that is not there or does not load, and says why."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

from collops.backend import engine
from collops_bench.registry import BENCHMARKS, Context, Options

pytest.importorskip("jax", reason="JAX is not installed")
if importlib.util.find_spec("collops_native") is None and "COLLOPS_NATIVE" not in os.environ:
    pytest.skip("the native library is not built: pip install ./native", allow_module_level=True)


def test_jax_without_its_peer(comm, monkeypatch, tmp_path):
    """On one rank the peer was built for another MPI: no rank calls it."""
    from collops_bench import jax as bench

    jax = pytest.importorskip("jax")
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    monkeypatch.setattr(bench, "_SIZES", (8,))
    monkeypatch.setattr(bench, "_MANY", 2)
    monkeypatch.delitem(sys.modules, "mpi4jax", raising=False)
    module = "raise ImportError('no libmpi.so.40')\n" if comm.rank == comm.size - 1 else ""
    (tmp_path / "mpi4jax.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    found = list(BENCHMARKS["jax"].measure(Context(comm, engine("numpy"), Options(quick=True))))
    sys.modules.pop("mpi4jax", None)
    *reductions, cgls = found
    assert [measurement.parameters["allreduces"] for measurement in reductions] == [1, 2]
    assert set(cgls.timings) == {"collops on jax", "collops on numpy"} and cgls.peer == "collops on numpy"
    for measurement in reductions:
        assert set(measurement.timings) == {"collops", "collops in jax.jit", "elementwise"}
        assert measurement.missing == {"mpi4jax": "mpi4jax does not load: no libmpi.so.40"}
        assert measurement.peer is None
        assert all(check.error <= check.tolerance for check in measurement.checks)


@pytest.mark.serial
def test_devices_of_one_process(comm, monkeypatch):
    from collops_bench import jax as bench

    monkeypatch.setattr(bench, "_SIZES", (8,))
    monkeypatch.setattr(bench, "_MANY", 2)
    one, two, _, *table = BENCHMARKS["jax"].measure(Context(comm, engine("numpy"), Options(quick=True)))
    for measurement in (one, two):
        assert measurement.peer == "lax.psum" and measurement.parameters["parties"] == 4
    assert [measurement.parameters["elements"] for measurement in table] == [10, 500, 2000]
    for measurement in table:
        ours, theirs = ({f"{program} alone", f"{program} under jit"} for program in ("collops", "lax.psum"))
        assert set(measurement.timings) == ours | theirs
    for measurement in (one, two, *table):
        assert all(check.error <= check.tolerance for check in measurement.checks)
