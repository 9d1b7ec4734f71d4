"""The benchmark of samples of a posterior, small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collops.backend import engine
from collops.errors import CollopsError
from collops.uncertainty import GaussianPosterior
from collops_bench.registry import BENCHMARKS, Context, Options

pytestmark = pytest.mark.serial


def measurement(comm):
    (found,) = BENCHMARKS["posterior"].measure(Context(comm, engine("numpy"), Options(quick=True)))
    return found


def test_mean_and_samples_are_checked_and_compared(comm):
    found = measurement(comm)
    assert list(found.timings) == ["mean", "8 samples", "8 samples, preconditioned"]
    assert len(found.checks) == 3 and all(one.error <= one.tolerance for one in found.checks)
    assert found.figures["mean"]["solutions"] == 1
    assert found.figures["8 samples, preconditioned"]["iterations"] < found.figures["8 samples"]["iterations"]


def test_samples_with_another_variance_are_refused(comm, monkeypatch):
    samples = GaussianPosterior.samples

    def wider(self, *arguments, **options):
        result = samples(self, *arguments, **options)
        return replace(result, x=1.2 * result.x)

    monkeypatch.setattr(GaussianPosterior, "samples", wider)
    with pytest.raises(CollopsError, match="8 samples of the posterior"):
        measurement(comm)
