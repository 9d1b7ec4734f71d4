"""The benchmark of star forests, small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collops.backend import engine
from collops_bench.charts import by_size, draw
from collops_bench.plots import write_plots
from collops_bench.record import read_record
from collops_bench.registry import BENCHMARKS, Context, Options
from collops_bench.starforest import NEIGHBOURHOOD, POINT_TO_POINT, stencil_rows

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_every_program_is_right(comm):
    context = Context(comm, engine("numpy"), Options(quick=True))
    found = list(BENCHMARKS["starforest"].measure(context))
    cases = [one.case for one in found]
    assert cases[:4] == ["bcast, shift", "reduce, shift", "bcast, random", "reduce, random"]
    assert "scatter sequential to parallel" in cases
    for one in found:
        assert one.checks and all(each.error <= each.tolerance for each in one.checks)
        assert "collops" in one.timings
        assert one.messages is None or set(one.messages) <= {"exchange"}
        if one.case.startswith("scatter"):
            plain = {POINT_TO_POINT, NEIGHBOURHOOD} & set(one.timings)
            assert len(plain) == (2 if comm.size > 1 else 0)
            assert sum(name in each.what for each in one.checks for name in plain) == len(plain)


@pytest.mark.serial
def test_stencil_rows():
    rows = stencil_rows(4, 0, 4).toarray()
    assert rows.shape == (64, 96)
    inner = rows.reshape(4, 4, 4, 6, 4, 4)[1, 1, 2]
    assert inner.sum() == 27
    np.testing.assert_array_equal(np.argwhere(inner).min(axis=0), [1, 0, 1])


@pytest.mark.serial
def test_plot_of_the_wires(tmp_path):
    from matplotlib.figure import Figure

    record = read_record(next(RESULTS.glob("starforest-*.json")))
    charts = {chart.title: chart for chart in by_size(record)}
    assert len(charts) == 7
    axes = Figure().subplots()
    draw(axes, charts["scatter parallel to parallel"])
    line = next(line for line in axes.get_lines() if line.get_label() == "collops")
    measured = [one for one in record.measurements if one.case == "scatter parallel to parallel"]
    np.testing.assert_allclose(line.get_ydata(), [one.timings["collops"].wall.median for one in measured])
    small = replace(record, measurements=[one for one in measured if one.headline is None][:2])
    written = [path.name for path in write_plots([small], tmp_path)]
    assert written == [f"starforest-{record.machine_name}-{record.ranks}.png"]
