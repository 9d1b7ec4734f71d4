"""The plots of a survey's geometry on the page of a migration, and the times of first arrivals in them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from collops.limits import digits
from collops.seismic.lsm.geometry_charts import geometry_charts
from collops.seismic.signals import onset_times, ricker_shape

pytestmark = pytest.mark.serial


def fields_of(scalar: float = 1.0, shots: int = 9) -> dict[str, np.ndarray]:
    """Return the positions of towed receivers and the arrivals of a direct wave of 1500 m/s."""
    source = np.repeat(50.0 * np.arange(shots), 24)
    offset = np.tile(100 + 25.0 * np.arange(24), shots)
    positions = {"source_coord_x": source, "group_coord_x": source - offset}
    fields = {name: scalar * (600_000 + values) for name, values in positions.items()}
    fields |= {f"{kind}_coord_y": np.full(len(source), 6e6) for kind in ("source", "group")}
    return fields | {"first_arrival": offset / 1500 + 0.01}


def numbers_of(chart: str) -> list[float]:
    """Return the labels of the ticks of a chart."""
    texts = [element.text or "" for element in ElementTree.fromstring(chart).iter("text")]
    return [float(text.replace("\N{MINUS SIGN}", "-")) for text in texts if re.fullmatch(r"[\d.\N{MINUS SIGN}]+", text)]


def test_every_chart_has_ticks_on_both_axes_and_is_small():
    charts = geometry_charts(fields_of(), 1500.0)
    assert [title.split()[0] for title, _ in charts] == ["Map", "Fold:", "Traces", "Traces", "First"]
    for _, chart in charts:
        assert len(numbers_of(chart)) >= 6
        assert len(chart) < 30_000
    assert sum(len(chart) for _, chart in geometry_charts(fields_of(shots=400), 1500.0)) < 90_000


def test_a_wrong_scalar_stands_out():
    def times(scalar: float) -> list[float]:
        return numbers_of(geometry_charts(fields_of(scalar), 1500.0)[-1][1])

    # The line of the direct wave ends at the offset over the speed: the axis grows with a wrong scalar.
    assert 0.4 <= max(n for n in times(1.0) if n < 5) <= 0.6
    assert any(4 <= n <= 6 for n in times(10.0))


def test_without_arrivals_there_is_no_chart_of_them():
    fields = fields_of() | {"first_arrival": np.full(9 * 24, np.nan)}
    assert len(geometry_charts(fields, 1500.0)) == 4


def test_onsets():
    times = 0.1 + 0.004 * np.arange(200)
    traces = np.stack([ricker_shape(25 * (times - 0.5)), -3 * ricker_shape(25 * (times - 0.3)), 0 * times])
    found = onset_times(traces, times)
    np.testing.assert_allclose(found[:2], [0.47, 0.27], atol=0.013)
    assert np.isnan(found[2])


@pytest.mark.parametrize(
    ("value", "count", "text"),
    [(100.0, 2, "100"), (99.7, 2, "100"), (0.29, 2, "0.29"), (2256.7, 3, "2257"), (99.96, 3, "100"), (0.0, 3, "0")],
)
def test_numbers_have_no_exponent(value, count, text):
    assert digits(value, count) == text
