"""Intercept and gradient against exact reflection coefficients, and their deviations against repeated noise."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

import collops
from collops.errors import InputError
from collops.seismic import fit_avo
from collops.uncertainty import GaussianPosterior

pytestmark = pytest.mark.serial

ANGLES = np.linspace(2.5, 27.5, 6)
SHALE, SAND = np.array([2750.0, 1350.0, 2300.0]), np.array([2540.0, 1590.0, 2100.0])  # P, S (m/s), density (kg/m3)


def zoeppritz(upper: np.ndarray, lower: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Return the exact reflection coefficients of P waves at an interface.

    Displacement and traction are continuous: with displacements d exp(i w (s x - t)) of the incident, two reflected and
    two transmitted waves of slowness s, these are four linear equations (Aki and Richards, "Quantitative Seismology",
    2002, section 5.2.4).
    """

    def wave(medium: np.ndarray, p: float, kind: int, down: int) -> np.ndarray:
        speed, rigidity = medium[kind], medium[2] * medium[1] ** 2
        lame = medium[2] * medium[0] ** 2 - 2 * rigidity
        s = np.array([p, down * np.sqrt(1 / speed**2 - p**2)])
        d = s * speed if kind == 0 else np.array([s[1], -s[0]]) * speed
        return np.array([*d, rigidity * (s[0] * d[1] + s[1] * d[0]), lame * (s @ d) + 2 * rigidity * s[1] * d[1]])

    coefficients = []
    for p in np.sin(np.radians(angles)) / upper[0]:
        up = [-wave(upper, p, kind, -1) for kind in (0, 1)]
        down = [wave(lower, p, kind, 1) for kind in (0, 1)]
        scale = np.array([1, 1, 1e-6, 1e-6])[:, None]  # of equations in metres and in pascals
        right = scale[:, 0] * wave(upper, p, 0, 1)
        coefficients.append(np.linalg.solve(scale * np.stack([*up, *down], axis=1), right)[0])
    return np.array(coefficients)


def shuey(upper: np.ndarray, lower: np.ndarray) -> tuple[float, float]:
    vp, vs, density = (lower - upper) / ((lower + upper) / 2)
    ratio = ((upper[1] + lower[1]) / (upper[0] + lower[0])) ** 2
    return (vp + density) / 2, vp / 2 - 2 * ratio * (2 * vs + density)


def test_exact_coefficients_are_fitted_up_to_the_error_of_the_approximation():
    # At normal incidence the coefficient is that of impedances.
    impedance = SHALE[0] * SHALE[2], SAND[0] * SAND[2]
    assert zoeppritz(SHALE, SAND, np.zeros(1))[0] == pytest.approx(np.diff(impedance)[0] / sum(impedance), rel=1e-9)
    errors = []
    for share in (1.0, 0.5):
        sand = SHALE + share * (SAND - SHALE)
        exact, expected = zoeppritz(SHALE, sand, ANGLES), shuey(SHALE, sand)
        avo = fit_avo(ANGLES, exact[:, None])
        fitted = avo.intercept + avo.gradient * np.sin(np.radians(ANGLES)) ** 2
        assert np.abs(fitted - exact).max() < 0.01 * np.abs(exact).max()
        found = np.array([avo.intercept[0], avo.gradient[0]])
        errors.append(np.abs(found - expected))
    # 2 % and 10 % of contrasts of 7 to 20 %; the approximation neglects their squares.
    assert (errors[0] <= [0.02 * abs(expected[0]) * 2, 0.1 * abs(expected[1]) * 2]).all()
    assert (errors[1] < 0.6 * errors[0]).all()


@pytest.mark.parametrize(
    ("known", "weights"), [(False, (1, 1, 1, 1, 1, 0)), (True, (1, 1, 1, 1, 1, 0)), (True, (4, 4, 4, 4, 0.5, 16))]
)
def test_standard_deviations_are_those_of_repeated_noise(known, weights):
    rng = np.random.default_rng(0)
    noise = np.array([0.01, 0.01, 0.02, 0.02, 0.03, 0.03])[:, None] if known else 0.02
    weights = np.array(weights, float)[:, None]
    clean = 0.1 - 0.25 * np.sin(np.radians(ANGLES))[:, None] ** 2
    gathers = clean + noise * rng.normal(size=(800, 6, 8))
    avo = fit_avo(ANGLES, gathers, weights=weights, noise=noise if known else None, window=1 if known else 8)
    for values, deviations, expected in (
        (avo.intercept, avo.intercept_deviation, 0.1),
        (avo.gradient, avo.gradient_deviation, -0.25),
    ):
        assert values.shape == deviations.shape == (800, 8)
        assert abs(values.mean() - expected) < 5 * deviations.mean() / 80
        assert np.sqrt((deviations**2).mean()) == pytest.approx(values.std(), rel=0.05)


@pytest.mark.parametrize("window", [3, 4, 7])
def test_deviations_below_a_reflector_do_not_depend_on_it(window):
    gathers = 1e-9 * np.random.default_rng(0).normal(size=(20, 6, 40))
    gathers[..., 30:] = 0  # muted
    weak = fit_avo(ANGLES, gathers[..., 10:], window=window)
    gathers[..., :10] *= 1e9
    avo = fit_avo(ANGLES, gathers, window=window)
    assert (avo.intercept_deviation[:, 35:] == 0).all() and (avo.gradient_deviation[:, 35:] == 0).all()
    np.testing.assert_allclose(avo.intercept_deviation[:, 15:], weak.intercept_deviation[:, 5:], rtol=1e-9)


@pytest.mark.parametrize("options", [{"noise": [0.1] * 5 + [np.inf]}, {"noise": 0.1, "weights": [1.0] * 5 + [0.0]}])
def test_amplitudes_that_do_not_count_may_be_anything(options):
    gathers = np.random.default_rng(1).normal(size=(6, 4))
    expected = fit_avo(ANGLES[:5], gathers[:5], noise=0.1)
    gathers[5] = np.nan
    found = fit_avo(ANGLES, gathers, **{name: np.c_[np.broadcast_to(x, 6)] for name, x in options.items()})
    for one, other in zip(astuple(found), astuple(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_known_noise_gives_the_deviations_of_the_posterior(comm):
    noise = np.linspace(0.01, 0.03, 6)
    matrix = np.stack([np.ones(6), np.sin(np.radians(ANGLES)) ** 2], axis=1)
    whitened = collops.MatrixMult(matrix / noise[:, None], 1, kind="block")
    posterior = GaussianPosterior(whitened, noise=1.0, prior=1e6)
    layout = posterior.hessian.domain
    units = [collops.from_global(unit.reshape(layout.shape), layout) for unit in np.eye(2)]
    hessian = [(posterior.hessian @ unit).gather().ravel() for unit in units]
    avo = fit_avo(ANGLES, np.zeros((6, 1)), noise=noise[:, None])
    expected = np.sqrt(np.diag(np.linalg.inv(hessian)))
    np.testing.assert_allclose([avo.intercept_deviation[0], avo.gradient_deviation[0]], expected, rtol=1e-6)


def test_too_few_classes_have_no_number():
    weights = np.ones((6, 3))
    weights[2:, 0], weights[3:, 1] = 0, 0
    avo = fit_avo(ANGLES, np.ones((6, 3)), weights=weights)
    assert np.isnan(avo.intercept).tolist() == np.isnan(avo.gradient_deviation).tolist() == [True, False, False]
    with_noise = fit_avo(ANGLES, np.ones((6, 3)), weights=weights, noise=0.1)
    assert not np.isnan(with_noise.gradient_deviation).any()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"angles": ANGLES[:5]}, r"gathers need the shape \(..., classes, rows\)"),
        ({"angles": ANGLES + 70}, "between 0 and 90 degrees"),
        ({"weights": np.ones(5)}, "weights must broadcast"),
        ({"noise": -1.0}, "noise must not be negative"),
        ({"window": True}, "whole number of rows"),
        ({"window": 0}, "window must be a whole number of rows, at least 1, not 0"),
        ({"window": 2.5}, "at least 1, not 2.5"),
    ],
)
def test_errors(change, text):
    with pytest.raises(InputError, match=text):
        fit_avo(**({"angles": ANGLES, "gathers": np.ones((6, 3))} | change))
