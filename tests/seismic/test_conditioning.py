"""Conditioning of single shots against SciPy's and analytic answers, and gathers made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from collops.errors import InputError
from collops.seismic.conditioning import (
    Conditioning,
    Mute,
    ShotHeaders,
    agc_gain,
    bandpass,
    parse_gain,
    parse_mute,
    parse_range,
    read_table,
    resample,
    sound_traces,
    time_gain,
)

pytestmark = pytest.mark.serial

TIMES = 0.004 * np.arange(500)


def headers_of(offsets, shot: int = 0, records=(7,), times=TIMES) -> ShotHeaders:
    return ShotHeaders(np.asarray(offsets, float), 101 + np.arange(len(offsets)), times, shot, np.array(records))


@pytest.mark.parametrize("band", [(8.0, 40.0), (0.0, 30.0), (10.0, np.inf)])
def test_a_bandpass_has_the_amplitude_of_butterworth_and_no_phase(band):
    times = 0.004 * np.arange(2000)
    for frequency in (2.0, 8.0, 10.0, 18.0, 30.0, 40.0, 80.0):
        tangent, low, high = (np.tan(np.pi * f * 0.004) if f < 125 else np.inf for f in (frequency, *band))
        if low == 0:
            ratio = tangent / high
        elif high == np.inf:
            ratio = low / tangent
        else:
            ratio = (tangent**2 - low * high) / (tangent * (high - low))
        wave = np.sin(2 * np.pi * frequency * times)
        found = bandpass(wave[None], 0.004, band)[0]
        middle = slice(700, 1300)
        np.testing.assert_allclose(found[middle], wave[middle] / (1 + ratio**8), atol=1e-3)


def test_resampling_keeps_what_the_new_interval_holds_and_nothing_else():
    slow, fast = np.sin(2 * np.pi * 15 * TIMES), np.sin(2 * np.pi * 90 * TIMES + 1)
    found = resample((slow + fast)[None], 0.004, 0.010)[0]
    assert found.size == 200
    expected = np.sin(2 * np.pi * 15 * 0.010 * np.arange(200))
    np.testing.assert_allclose(found[10:-10], expected[10:-10], atol=0.01)
    assert Conditioning(interval=0.010).sampling(0.004, 500) == (0.010, 200)
    # Every third sample, of which the interval has been rounded to a nanosecond.
    steady = np.cos(2 * np.pi * 20 * np.arange(6000) / 3000)
    assert Conditioning(interval=0.001).sampling(0.000333333, 6000) == (0.001, 2000)
    np.testing.assert_allclose(resample(steady[None], 0.000333333, 0.001)[0, 20:-20], steady[60:-60:3], atol=0.01)
    assert np.abs(np.interp(0.010 * np.arange(200), TIMES, fast)).max() > 0.5  # without a filter it would alias


def test_gains_undo_spreading_and_attenuation():
    assert time_gain(TIMES, 2.0)[0] * np.maximum(TIMES, 0.004) ** -2.0 == pytest.approx(np.ones(500))
    wave = np.sin(2 * np.pi * 20 * TIMES)
    traces = np.stack([5 * np.exp(-2 * TIMES) * wave, 1e-4 * wave, 0 * wave])
    gain = agc_gain(traces, 0.5 / 0.004)
    # In a window w the mean square of exp(-k t) sin is that in its middle times sinh(k w) / (k w).
    envelope = 5 * np.exp(-2 * TIMES) * np.sqrt(0.5 * np.sinh(1.0))
    np.testing.assert_allclose((1 / gain[0])[100:-100], envelope[100:-100], rtol=0.02)
    np.testing.assert_allclose((gain[1] * 1e-4)[100:-100], np.sqrt(2), rtol=0.02)
    assert (gain[2] == 1).all()
    quiet = np.zeros((1, 500))
    quiet[0, 50] = 1.0
    assert agc_gain(quiet, 10).max() == pytest.approx(100 * agc_gain(quiet, 10).min())


class TestMute:
    PERIOD = 0.05

    def until(self, mute: Mute, headers: ShotHeaders) -> np.ndarray:
        """Return the time of the last sample that is zero, for every trace of ones, and check the fade."""
        found = Conditioning(outliers=0, mute=mute).conditioned(
            np.ones((len(headers.offsets), 500)), headers, self.PERIOD
        )
        assert np.array_equal(found.traces, found.mute)
        last = np.array([TIMES[np.flatnonzero(trace == 0)[-1]] for trace in found.traces])
        for trace, time in zip(found.traces, last, strict=True):
            assert (trace[time + self.PERIOD + 0.004 < TIMES] == 1).all() and (np.diff(trace) >= 0).all()
        return last

    def test_by_velocity_and_linear_moveout(self):
        headers = headers_of([0, 300, 1200])
        np.testing.assert_allclose(self.until(parse_mute("1500"), headers), [0.05, 0.25, 0.85], atol=0.004)
        np.testing.assert_allclose(self.until(parse_mute("1500,0.3"), headers), [0.3, 0.5, 1.1], atol=0.004)

    def test_by_picks(self, tmp_path):
        (tmp_path / "p.txt").write_text("# offset, time\n1000, 0.9\n0 0.1 # near\n\n500 0.4\n")
        mute = parse_mute(str(tmp_path / "p.txt"))
        expected = [0.1, 0.25, 0.4, 0.65, 0.9]  # straight lines between picks, constant beyond them
        np.testing.assert_allclose(self.until(mute, headers_of([0, 250, 500, 750, 2000])), expected, atol=0.004)

    def test_by_picks_of_some_shots(self, tmp_path):
        (tmp_path / "p.txt").write_text("12 0 0.2\n12 1000 1.2\n10 0 0.6\n10 1000 0.6\n")
        mute, records = parse_mute(str(tmp_path / "p.txt")), (9, 10, 11, 30, 12, 13)
        # The survey's second and fifth shot are picked; the others are interpolated in the order of the survey.
        for shot, expected in enumerate([(0.6, 0.6), (0.6, 0.6), (7 / 15, 0.8), (1 / 3, 1.0), (0.2, 1.2), (0.2, 1.2)]):
            np.testing.assert_allclose(self.until(mute, headers_of([0, 1000], shot, records)), expected, atol=0.004)
        with pytest.raises(InputError, match="the picks contain field record 10, which is not in the survey"):
            mute.times(headers_of([0], 0, (12, 13)), self.PERIOD)
        (tmp_path / "p.txt").write_text("12 0 0.2\n12 1000 1.2\n")
        one = parse_mute(str(tmp_path / "p.txt"))
        np.testing.assert_allclose(self.until(one, headers_of([500], 0, records)), [0.7], atol=0.004)


def test_samples_after_a_bottom_mute_are_zero(tmp_path):
    (tmp_path / "p.txt").write_text("0 1.0\n1000 1.5\n")
    traces = np.ones((3, 500))
    for text, expected in ((str(tmp_path / "p.txt"), [1.0, 1.25, 1.5]), ("1000,0.4", [0.4, 0.9, 1.4])):
        steps = Conditioning(outliers=0, bottom=parse_mute(text, "--bottom-mute"))
        found = steps.conditioned(traces, headers_of([0, 500, 1000]), 0.05)
        for trace, end in zip(found.traces, expected, strict=True):
            assert not trace[end <= TIMES].any() and (trace[end - 0.054 > TIMES] == 1).all()
            assert trace[end - 1e-9 > TIMES].all()
        assert found.weights[0, -1] == 0 and "bottom mute" in steps.describe()


def test_ground_roll_is_muted_between_two_speeds():
    steps = Conditioning(outliers=0, ground_roll=(200.0, 500.0))
    found = steps.conditioned(np.ones((3, 500)), headers_of([0, 100, 200]), 0.05)
    for trace, offset in zip(found.traces, (0, 100, 200), strict=True):
        # Ripples of the slowest wave last a period.
        inside = (offset / 500 <= TIMES) & (offset / 200 + 0.05 >= TIMES)
        outside = (offset / 500 - 0.05 > TIMES) | (offset / 200 + 0.1 < TIMES)
        assert inside.any() and not trace[inside].any() and (trace[outside] == 1).all()
        np.testing.assert_allclose(
            trace[(offset / 200 + 0.05 < TIMES) & (TIMES < 1.5)],
            np.sort(trace[(offset / 200 + 0.05 < TIMES) & (TIMES < 1.5)]),
        )
    assert steps.describe() == "mute of ground roll of 200 to 500 m/s"


def test_edited_traces_are_left_out_or_reversed():
    raw = np.random.default_rng(1).normal(size=(4, 500))
    edits = np.array([[7, 102, 0], [7, 103, -1], [8, 101, 0]])
    headers = headers_of([50, 200, 400, 1000], records=(7, 8))
    for reverse in (False, True):
        steps = Conditioning(reverse, outliers=0, edits=edits, gain=parse_gain("1"))
        filtered = steps.filtered(raw, 0.004)
        found = steps.conditioned(filtered, headers, 0.04)
        assert found.trust.tolist() == [1, 0, 1, 1]
        sign = np.array([1, 1, -1, 1])[:, None]
        np.testing.assert_allclose(found.traces, filtered * sign * time_gain(TIMES, 1.0))
        np.testing.assert_allclose(found.without_gain, raw)  # as in the file
        assert found.weights.shape == (4, 500)
    assert steps.describe().endswith("2 traces left out and 1 reversed, gain 1")
    with pytest.raises(InputError, match="the edited traces contain field record 7"):
        steps.conditioned(raw, headers_of([50, 200, 400, 1000], records=(8, 9)), 0.04)


def test_dead_and_much_too_strong_traces_are_not_sound():
    traces = np.random.default_rng(6).normal(size=(30, 80)) * np.geomspace(100, 1, 30)[:, None]
    assert sound_traces(traces, 10.0).all()  # near traces are stronger, but not than their neighbours
    traces[[3, 4]] = 0
    traces[12] *= 30
    traces[20, 40] = 1e5
    assert np.flatnonzero(~sound_traces(traces, 10.0)).tolist() == [3, 4, 12, 20]
    assert sound_traces(traces, 0).all()
    assert not sound_traces(np.zeros((3, 80)), 10.0).any()


def test_noisy_traces_are_not_sound_although_they_are_no_stronger():
    rng = np.random.default_rng(5)
    signal = np.sin(2 * np.pi * 20 * (TIMES - 0.0005 * np.arange(40)[:, None]))
    traces = signal + 0.01 * rng.normal(size=signal.shape)
    traces[9] = rng.normal(size=500)  # white, as strong as the signal
    traces[25] = signal[25] + 0.7 * np.sin(2 * np.pi * 50 * TIMES)  # hum
    traces[30] += 0.05 * rng.normal(size=500)  # more noise than others, but much weaker than the signal
    assert np.flatnonzero(~sound_traces(traces, 10.0)).tolist() == [9, 25]


def test_the_order_of_steps_and_their_inverse():
    rng = np.random.default_rng(3)
    raw = rng.normal(size=(4, 500)) * np.exp(-TIMES)
    steps = Conditioning(
        *(True, None, (5.0, 50.0), 0.0, (100.0, 900.0), (0.2, 1.5), parse_mute("2000,0.1"), parse_gain("agc:0.3")),
        weights=np.array([[7, 102, 0.5], [7, 103, 2.0], [8, 101, 9.0]]),
    )
    headers = headers_of([50, 200, 400, 1000], records=(7, 8))
    filtered = steps.filtered(raw, 0.004)
    np.testing.assert_allclose(filtered, -bandpass(raw, 0.004, (5.0, 50.0)), rtol=1e-12)
    found = steps.conditioned(filtered, headers, 0.04)
    assert found.trust.tolist() == [0, 0.5, 2.0, 0]
    assert (
        not found.mute[:, (TIMES < 0.2) | (TIMES > 1.5)].any()
        and (found.mute[1, (TIMES > 0.3) & (TIMES < 1.4)] == 1).all()
    )
    np.testing.assert_allclose(found.traces / found.gain, -filtered * found.mute, atol=1e-12)
    np.testing.assert_allclose(-found.gain, agc_gain(filtered * found.mute, 75), rtol=1e-12)
    with pytest.raises(InputError, match="the trace weights contain field record 7, which"):
        steps.conditioned(filtered, headers_of([50, 200, 400, 1000], records=(8, 9)), 0.04)
    balanced = Conditioning(outliers=0.0, weights="balance").conditioned(raw, headers, 0.04)
    np.testing.assert_allclose(balanced.trust * np.sqrt((raw**2).mean(axis=1)), 1)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *(
            (lambda text: parse_range("--window", text, "s"), text)
            for text in ("", ",", "3", "5,2", "-1,2", "a,b", "nan,2")
        ),
        *((parse_gain, text) for text in ("", "agc", "agc:0", "agc:-1", "rms:2", "nan", "50", "agc:x")),
        *((parse_mute, text) for text in ("0", "-1500", "nan", "1500,inf", "absent.txt")),
    ],
)
def test_nonsense_is_one_sentence(parse, text):
    with pytest.raises(InputError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "1 2\n3\n", "1 2 3 4\n", "1 x\n", "1 nan\n", b"\xff\xfe"])
def test_tables_that_are_none(tmp_path, content):
    path = tmp_path / "t.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=r"t\.txt") as caught:
        read_table(path, (2, 3), "offset and time")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        (Conditioning(interval=0.002), "--interval must be .* at least the 4 ms"),
        (Conditioning(interval=0.0041234567), "whole number of microseconds"),
        (Conditioning(band=(5.0, 125.0)), "--bandpass 5,125 does not fit"),
        (Conditioning(band=(0.1, 60.0)), "from 0.5 to below 125 Hz"),
        (Conditioning(band=(5.0, 60.0), interval=0.010), "below 50 Hz"),
        (Conditioning(gain=parse_gain("agc:0.004")), "at least .* two samples"),
    ],
)
def test_steps_that_do_not_fit_the_data(steps, complaint):
    with pytest.raises(InputError, match=complaint):
        steps.sampling(0.004, 500)
