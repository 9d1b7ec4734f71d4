"""The benchmark of Fourier transforms of sharded arrays, small."""

from __future__ import annotations

import pytest

from collops.backend import engine
from collops_bench.registry import BENCHMARKS, Context, Options

jax = pytest.importorskip("jax", reason="JAX is not installed")


@pytest.mark.serial
def test_all_programs_are_checked_and_timed(comm, monkeypatch) -> None:
    from collops_bench import fft

    monkeypatch.setattr(fft, "_CHUNKS", (2,))
    slabs = next(BENCHMARKS["fft"].measure(Context(comm, engine("numpy"), Options(quick=True))))
    assert slabs.parameters["devices"] == [4] and slabs.peer == "jax.numpy"
    assert {slabs.ours, slabs.peer, "collops, transposed"} <= set(slabs.timings)
    assert "jaxDecomp, transposed" in {*slabs.timings, *slabs.missing}
    assert len(slabs.checks) == 2 * len(slabs.timings)
    assert all(check.error <= check.tolerance for check in slabs.checks)
