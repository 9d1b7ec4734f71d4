"""Waves in other media: a whole shot and its gradient by ``collops.seismic.waves``, in elastic media against deepwave.

Stations, layers, order in space and figures are those of the benchmark ``waves``. The velocity grows with depth, and so
does the density, or the shear velocity, which is half of it.

deepwave's ``elastic`` has the same staggered grid, but velocity and stress for unknowns, where collops has stress only,
and the rate of a pressure for a source: the time integral of the wavelet, times the bulk modulus. Traces and gradients
are compared before timing.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from collops.seismic.waves import Relaxation
from collops_bench.peers import why_no_package
from collops_bench.record import Measurement
from collops_bench.registry import Context
from collops_bench.waves import (
    DEEPWAVE,
    FREQUENCY,
    INTERVAL,
    ORDER,
    OURS,
    SPACING,
    WIDTH,
    Case,
    compared,
    gradient,
    measured,
    propagator_of,
)

__all__ = ["measure"]


def measure(context: Context) -> Iterator[Measurement]:
    """Yield modelling and gradient in each medium, in two and in three dimensions."""
    if context.options.quick:
        cases = [Case(2, 40, 30, 20), Case(3, 16, 8, 6)]
    elif context.engine.memory == "device":
        cases = [Case(2, 2048, 400, 200), Case(3, 256, 120, 40)]
    else:
        cases = [Case(2, 512, 80, 40), Case(3, 64, 40, 20)]
    reason = why_no_package(context, "deepwave", one_process=True)
    for case in cases:
        for name, medium in _media(case).items():
            missing = {DEEPWAVE: reason if name == "elastic" else "measured in elastic media only"}
            yield _measured(context, case, name, medium, missing)
            yield _measured(context, replace(case, samples=case.for_gradient), name, medium, missing, of="gradient")


def _media(case: Case) -> dict[str, dict[str, Any]]:
    """Return the options of the propagator in each medium."""
    return {
        "variable density": {"density": 0.8 * case.velocity},
        "VTI": {"epsilon": 0.2, "delta": 0.1},
        "fourth order in time": {"time_order": 4},
        "viscoacoustic": {"quality_factor": 60.0, "relaxation": Relaxation(FREQUENCY)},
        "elastic": {"shear_velocity": case.velocity / 2},
    }


def _measured(
    context: Context,
    case: Case,
    name: str,
    medium: dict[str, Any],
    missing: dict[str, str | None],
    of: str = "modelling",
) -> Measurement:
    F, model = propagator_of(context, case, **medium)

    def ours() -> Any:
        return gradient(F, model) if of == "gradient" else F(model)

    programs: dict[str, Callable[[], Any]] = {OURS: ours}
    checks = []
    if missing[DEEPWAVE] is None:
        peer = _Elastic(case, context.engine.memory == "device")
        theirs = peer.differentiate if of == "gradient" else peer.model
        try:
            values = theirs().cpu().numpy()
        except AttributeError as error:  # of builds without kernels for this device
            missing = {DEEPWAVE: str(error)}
        else:
            programs[DEEPWAVE] = theirs
            found = np.asarray(context.engine.to_host(ours().gather()))
            checks.append(compared(context, f"{of} of {DEEPWAVE}", values.reshape(found.shape), found))
    return measured(context, case, F, f"{name}, {of}", programs, missing, checks, f"Waves, {name}")


class _Elastic:
    """deepwave's ``elastic`` propagator by PyTorch, in a medium with density 1."""

    def __init__(self, case: Case, device: bool) -> None:
        self._torch, self._module = importlib.import_module("torch"), importlib.import_module("deepwave")
        to = {"device": "cuda" if device else "cpu", "dtype": self._torch.float32}
        self._velocity = self._torch.tensor(case.velocity, **to)
        self._shear, self._buoyancy = self._velocity / 2, self._torch.ones_like(self._velocity)
        # The rate of pressure whose difference of two steps is the wavelet.
        self._rate = self._torch.tensor(np.cumsum(case.wavelet) * INTERVAL / SPACING**case.axes, **to)
        self._source, self._axes = tuple(case.source[0]), case.axes
        locations = {
            "source_locations_pressure_rate": self._torch.from_numpy(case.source[np.newaxis]),
            "receiver_locations_p": self._torch.from_numpy(case.receivers[np.newaxis]),
        }
        self._arguments = {
            **{name: values.to(to["device"]) for name, values in locations.items()},
            "accuracy": ORDER,
            "pml_width": WIDTH,
            "pml_freq": FREQUENCY,
        }

    def _traces(self, velocity: Any) -> Any:
        shear = self._shear.square()
        lame = velocity.square() - 2 * shear
        bulk = (lame + 2 / self._axes * shear)[self._source]
        rate = (bulk * self._rate).reshape(1, 1, -1)
        medium = lame, shear, self._buoyancy, SPACING, INTERVAL
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few points per wavelength of shear waves, as many as in our scheme
            out = self._module.elastic(*medium, source_amplitudes_pressure_rate=rate, **self._arguments)
        return out.receiver_amplitudes_p

    def model(self) -> Any:
        """Return the pressures."""
        with self._torch.no_grad():
            return self._traces(self._velocity)

    def differentiate(self) -> Any:
        """Return the gradient of half the squared norm of the pressures with respect to the velocity."""
        velocity = self._velocity.detach().requires_grad_()
        (0.5 * self._traces(velocity).square().sum()).backward()
        return velocity.grad
