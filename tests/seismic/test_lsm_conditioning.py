"""The migration of conditioned surveys: results are in the units of the survey, and mutes hold for the operator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.signal import butter, oaconvolve, resample_poly, sosfiltfilt

from collops.apps.recipe import run_job
from collops.errors import InputError
from collops.seismic.conditioning import Conditioned
from collops.seismic.lsm import Options, run
from collops.seismic.lsm.resident import ResidentSurvey
from collops.seismic.lsm.setup import recorded
from collops.seismic.signals import ricker
from collops.seismic.survey.headers import read_traces
from collops.seismic.survey.segy import read_headers
from tests.apps.jobs import Listener, group_of, job_numbers
from tests.seismic.files import random_traces, small_geometry, write_survey
from tests.seismic.test_lsm_migrate import gather_traces, modelled, pylops_operator, small_problem
from tests.seismic.test_segy_results import raw

# PyLops announces that its operator has changed inside.
pytestmark = pytest.mark.filterwarnings("ignore:A new implementation of Kirchhoff:FutureWarning")

SMALL: dict[str, Any] = {"iterations": 5, "dtype": "float64", "engine": "numpy"}


@pytest.fixture
def survey(comm, folder) -> str:
    """A survey of 5 shots, 9 receivers and 150 samples of 4 ms, with noise of about 25 Hz."""
    path = folder / "a.sgy"
    if comm.rank == 0:
        geometry = small_geometry(5, 9, 150)
        noise = random_traces(geometry)
        traces = [oaconvolve(shot, ricker(25.0, 0.004)[0][None], "same", axes=1) for shot in noise]
        write_survey(path, geometry, traces, {"velocity": "1500+0.6z", "nx": "21", "nz": "16", "dx": "25", "dz": "25"})
    comm.barrier()
    return str(path)


def migrate(comm, folder, name: str, survey: str, **changes: Any) -> dict[str, Any]:
    return job_numbers(run, Options(**SMALL, survey=survey, out=str(folder / name), **changes), comm)


def total(folder, name: str) -> tuple[np.ndarray, dict[str, int], str]:
    """Return the sum of predicted and residual traces, and the binary and textual header."""
    (_, predicted, text, binary), (headers, residual, *_) = (
        raw(folder / name / f"{each}.sgy") for each in ("predicted", "residual")
    )
    assert np.abs(predicted).max() > 0
    assert (headers["interval"] == binary["interval"]).all() and (headers["samples"] == binary["samples"]).all()
    return predicted.astype(float) + residual, binary, text


def test_predicted_and_residual_traces_are_filtered_and_muted_data(comm, folder, survey):
    conditioned = {"bandpass": "8,40", "mute": "1500,0.1", "window": "0,0.5", "outliers": 0.0}
    numbers = migrate(comm, folder, "plain", survey, **conditioned)
    more = {"gain": "1.5", "polarity": "reversed", "trace_weights": "balance"}
    migrate(comm, folder, "more", survey, **conditioned, **more)
    assert numbers["conditioning"] == "band-pass 8 to 40 Hz (zero phase), mute 1500,0.1, times 0 to 0.5 s"
    headers, data, *_ = raw(folder / "a.sgy")
    expected = sosfiltfilt(butter(4, [8, 40], "bandpass", fs=250, output="sos"), data.astype(float), padlen=31)
    times = 0.004 * np.arange(150)
    begins = np.abs(headers["offset"])[:, None] / 1500 + 0.1
    period = 1 / numbers["frequency"]
    kept, muted = (times > begins + period) & (times < 0.5 - period), (times < begins) | (times > 0.5)
    assert kept.sum() > 1000
    for name in ("plain", "more"):
        found, _, text = total(folder, name)
        np.testing.assert_allclose(found[kept], expected[kept], atol=2e-5 * np.abs(data).max())
        assert not found[muted].any()
        assert (
            "bandpass=8,40" in " ".join(text.split())
            and f"polarity={more['polarity'] if name == 'more' else 'normal'}" in text
        )


def test_a_note_says_how_much_of_the_energy_the_default_mute_removes(comm, folder):
    geometry = small_geometry(3, 9, 150)
    traces = random_traces(geometry)
    if comm.rank == 0:
        write_survey(folder / "a.sgy", geometry, traces, {})
    comm.barrier()
    problem = recorded(Options(survey=str(folder / "a.sgy"), velocity="1500", engine="numpy"), comm)
    own = zip(problem.survey.shots, problem.conditioned or (), strict=True)
    left = comm.allreduce(np.array(float(sum(np.square(traces[shot] * each.mute).sum() for shot, each in own))))
    share = 100 * (1 - left / np.square(np.concatenate(traces), dtype=float).sum())
    assert 5 < share < 50
    assert any(f"mute: the direct wave, {share:.2g} % of the energy" in note for note in problem.survey.notes)


def test_a_reversed_polarity_changes_the_sign_of_the_image_and_nothing_else(comm, folder, survey):
    for name, polarity in (("plain", "normal"), ("reversed", "reversed")):
        migrate(comm, folder, name, survey, polarity=polarity)
    image, other = (group_of(folder, name)["image"][...] for name in ("plain", "reversed"))
    np.testing.assert_allclose(other, -image, rtol=1e-9, atol=1e-12 * np.abs(image).max())
    assert np.array_equal(raw(folder / "plain" / "residual.sgy")[1], raw(folder / "reversed" / "residual.sgy")[1])


def test_resampled_traces_are_written_with_their_interval(comm, folder, survey):
    migrate(comm, folder, "out", survey, interval=10.0)
    found, binary, _ = total(folder, "out")
    assert (binary["interval"], binary["samples"]) == (10_000, 60)
    expected = resample_poly(raw(folder / "a.sgy")[1].astype(float), 2, 5, axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_a_wavelet_from_a_file(comm, folder, survey):
    if comm.rank == 0:
        np.save(folder / "w.npy", ricker(25.0, 0.004)[0])
    comm.barrier()
    file = migrate(comm, folder, "file", survey, wavelet=str(folder / "w.npy"), bandpass="8,40")
    migrate(comm, folder, "ricker", survey, frequency=25.0, bandpass="8,40")
    image, other = (group_of(folder, name)["image"][...] for name in ("ricker", "file"))
    np.testing.assert_allclose(other, image, rtol=0, atol=1e-6 * np.abs(image).max())
    assert file["frequency"] == pytest.approx(25, rel=0.1)
    options = {"survey": survey, "velocity": "1500"}
    # It is filtered like the data; one with the spectrum of the filtered data is not filtered again.
    filtered, centre = recorded(Options(**options, frequency=25.0, bandpass="8,40"), comm).wavelet
    alone = np.zeros(4001)
    alone[2000 - 14 : 2000 + 15] = ricker(25.0, 0.004)[0]
    expected = sosfiltfilt(butter(4, [8, 40], "bandpass", fs=250, output="sos"), alone)[2000 - centre : 2001 + centre]
    np.testing.assert_allclose(filtered, expected, atol=1e-5)
    assert len(recorded(Options(**options, wavelet="data", bandpass="8,40"), comm).wavelet[0]) == 61


def test_gain_is_divided_out(comm, folder, survey):
    migrate(comm, folder, "gain", survey, gain="1.5", outliers=0.0, frequency=25.0)
    if comm.rank == 0:
        headers = read_headers(survey)
        times = headers.geometry.times
        louder = [shot * np.maximum(times, 0.004) ** 1.5 for shot in read_traces(headers, range(5))]
        write_survey(folder / "b.sgy", headers.geometry, louder, headers.defaults)
    comm.barrier()
    migrate(comm, folder, "louder", str(folder / "b.sgy"), outliers=0.0, frequency=25.0)
    times = np.maximum(0.004 * np.arange(150), 0.004) ** 1.5
    image, other = (group_of(folder, name)["image"][...] for name in ("gain", "louder"))
    np.testing.assert_allclose(image, other, rtol=0, atol=1e-5 * np.abs(other).max())
    for kind in ("predicted", "residual"):
        found, expected = (raw(folder / name / f"{kind}.sgy")[1] for name in ("gain", "louder"))
        np.testing.assert_allclose(found * times, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_weights_and_mutes_hold_for_the_operator(comm):
    import pylops
    from pylops.optimization.basic import cgls

    problem = small_problem(comm, towed=True)
    job, operator, traces = modelled(comm, problem, iterations=6)
    conditioned, diagonals = [], []
    for shot, values in zip(problem.survey.shots, traces, strict=True):
        rng = np.random.default_rng(shot)
        mute, trust = rng.uniform(size=values.shape).round(1), rng.integers(0, 3, len(values)).astype(float)
        conditioned.append(Conditioned(values * mute, mute, np.ones((1, 1)), trust))
        diagonals.append(mute * trust[:, None])
    data = ResidentSurvey(job, replace(problem, conditioned=conditioned), operator)
    found, left_out = data.invert(), data.left_out
    diagonal, data = gather_traces(comm, diagonals), gather_traces(comm, traces)
    assert left_out == (diagonal.reshape(-1, 90) == 0).all(axis=1).sum() > 0
    serial = pylops.Diagonal(diagonal) @ pylops_operator(problem)
    expected, *_ = cgls(serial, diagonal * data, x0=np.zeros(serial.shape[1]), niter=6, tol=0)
    np.testing.assert_allclose(found.image.ravel(), expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"offsets": "5000,6000"}, "--offsets 5000,6000 excludes all of the data"),
        ({"window": "7,9"}, "--window 7,9 excludes all of the data"),
        ({"mute": "1500,3", "window": "0.1,"}, "--mute 1500,3 and --window 0.1, excludes all of the data"),
        ({"bandpass": "10,200"}, "--bandpass 10,200 does not fit 150 samples of 4 ms"),
        ({"interval": 2.0}, "--interval must be"),
        ({"gain": "agc:0.001"}, "at least .* two samples"),
        ({"wavelet": "ricker:25", "frequency": 25.0}, "--wavelet and --frequency exclude each other"),
        ({"wavelet": "ricker:200"}, "does not fit"),
        ({"mute": "picks.txt"}, "cannot understand the mute 'picks.txt'"),
        ({"trace_weights": "absent.txt"}, "absent.txt cannot be read"),
        ({"survey": None, "gain": "2"}, "--gain is for recorded data"),
        ({"survey": None, "polarity": "reversed"}, "--polarity is for recorded data"),
        ({"weight": 0.1}, "--weight needs --regularise"),
        ({"regularise": "tv", "damp": 0.1}, "--damp needs a quadratic penalty"),
        ({"regularise": "l1", "precondition": "diagonal"}, "--precondition needs a quadratic penalty"),
    ],
)
def test_nonsense_is_one_sentence_on_every_rank(comm, folder, survey, wrong, complaint):
    options = Options(**(SMALL | {"survey": survey, "out": str(folder / "out")} | wrong))
    with pytest.raises(InputError, match=complaint) as caught:
        run_job(run, options, comm, Listener())
    assert "\n" not in str(caught.value) and (comm.size == 1 or caught.value.on_all_ranks)


def test_edited_traces_keep_the_sign_of_the_file(comm, folder, survey):
    edits = folder / "edits.txt"
    if comm.rank == 0:
        edits.write_text("# record, channel, factor\n1 3 -1\n2 4 0\n2 5 0\n")
    comm.barrier()
    options: dict[str, Any] = {"mute": "none", "outliers": 0.0, "ground_roll": "100,300", "bottom_mute": "2000,0.3"}
    numbers = migrate(comm, folder, "edited", survey, edit=str(edits), **options)
    plain = migrate(comm, folder, "plain", survey, **options)
    assert numbers["traces_left_out"] == 2 and plain["traces_left_out"] == 0
    assert "2 traces left out and 1 reversed, bottom mute 2000,0.3, mute of ground roll" in numbers["conditioning"]
    sums = [total(folder, name)[0] for name in ("edited", "plain")]
    np.testing.assert_allclose(sums[0], sums[1], atol=1e-5 * np.abs(sums[1]).max())
    images = [group_of(folder, name)["image"][...] for name in ("edited", "plain")]
    assert np.abs(images[0] - images[1]).max() > 0.01 * np.abs(images[1]).max()


@pytest.mark.serial
def test_options_of_edits_and_mutes_are_checked(tmp_path):
    (tmp_path / "e.txt").write_text("1 3 2\n")
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"edit": str(tmp_path / "e.txt")}, r"must end with 0 \(leave the trace out\) or -1"),
        ({"ground_roll": "100,"}, "--ground-roll needs two positive speeds"),
        ({"bottom_mute": "-5"}, "--bottom-mute needs a positive speed"),
    )
    for wrong, text in cases:
        with pytest.raises(InputError, match=text):
            Options(survey="a.sgy", velocity="1500", **wrong).conditioning()
