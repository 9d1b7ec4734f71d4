"""Acoustic waves: a whole shot and its gradient by ``collops.seismic.waves``, against deepwave and Devito.

A call models all traces of one shot, or the gradient of half their squared norm: modelling, which keeps the wavefields,
and migration of the traces. Orders are 2 in time and 8 in space, in single precision, with
absorbing layers of 20 points. The figure ``points per second`` counts the points of the grid with its layers, and the
steps of a simulation, once for a gradient as well.

deepwave runs in one process on the same device, or on the cores of the host. Devito runs on hosts, with the damping of
its examples instead of perfectly matched layers, and models only. Of both, traces are compared with ours before timing;
the layers are too far from source and receivers to matter. With several ranks, collops divides the grid along its first
axis. Then two more grids in 3-D are modelled also by each rank alone, in turn: the same grid, and one as large as a
tile. The figure ``efficiency`` is the time that the ranks would take if they shared the work of one rank, over theirs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import collops
from collops import DistributedArray
from collops.comm import alone
from collops.seismic.signals import ricker
from collops.seismic.waves import Geometry, Grid, Layers, Propagator
from collops_bench.peers import why_no_package
from collops_bench.record import Check, Measurement, check
from collops_bench.registry import Context
from collops_bench.timing import Plan, interleave

__all__ = ["Case", "compared", "gradient", "measure", "measured", "propagator_of"]

OURS, ALONE, DEEPWAVE, DEVITO = "collops", "collops, one rank", "deepwave", "Devito"
SPACING, INTERVAL, FREQUENCY = 10.0, 0.001, 25.0  # m, s, Hz
WIDTH, ORDER, _RECEIVERS = 20, 8, 64
_TOLERANCE = 1e-4  # of single precision, over all steps


@dataclass(frozen=True)
class Case:
    """A cube of n points along each axis, and the samples of a trace, which are fewer for a gradient."""

    axes: int
    n: int
    samples: int
    for_gradient: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The points of the grid."""
        return (self.n,) * self.axes

    @property
    def source(self) -> np.ndarray:
        """The grid point of the source."""
        return np.full((1, self.axes), self.n // 2)

    @property
    def receivers(self) -> np.ndarray:
        """Grid points along the last axis, from the source on."""
        points = np.repeat(self.source, min(_RECEIVERS, self.n // 2 - 2), axis=0)
        points[:, -1] += 1 + np.arange(len(points))
        return points

    @property
    def wavelet(self) -> np.ndarray:
        """The wavelet, of the length of a trace."""
        signal = ricker(FREQUENCY, INTERVAL)[0]
        return np.pad(signal, (0, self.samples))[: self.samples]

    @property
    def velocity(self) -> np.ndarray:
        """The velocity in m/s, which grows with depth."""
        depth = np.linspace(2000.0, 2500.0, self.n)
        return np.broadcast_to(depth, self.shape)


def measure(context: Context) -> Iterator[Measurement]:
    """Yield modelling and gradient in two and in three dimensions."""
    on_device = context.engine.memory == "device"
    if context.options.quick:
        cases = [Case(2, 96, 80, 80), Case(3, 24, 40, 40)]
    elif on_device:
        cases = [Case(2, 4096, 1000, 400), Case(3, 512, 200, 40)]
    else:
        cases = [Case(2, 1024, 200, 200), Case(3, 128, 80, 80)]
    missing = {
        DEEPWAVE: why_no_package(context, "deepwave", one_process=True),
        DEVITO: why_no_package(context, "devito", memory="host", one_process=True),
    }
    for case in cases:
        yield _modelling(context, case, missing)
        yield _gradient(context, replace(case, samples=case.for_gradient), {**missing, DEVITO: "modelling only"})
    if context.comm.size > 1:
        cube, samples = (24, 20) if context.options.quick else (1024, 60) if on_device else (128, 40)
        yield _scaled(context, "strong", (cube,) * 3, 1, samples)
        yield _scaled(context, "weak", (cube // 2,) * 3, context.comm.size, samples)


def _scaled(context: Context, kind: str, shape: tuple[int, ...], factor: int, samples: int) -> Measurement:
    """Measure all ranks on a grid that is `factor` times as long as the grid of one rank."""
    programs: dict[str, Callable[[], DistributedArray]] = {}
    for name, comm, n in ((OURS, context.comm, factor), (ALONE, alone(), 1)):
        size = (n * shape[0], *shape[1:])
        grid = Grid(size, (SPACING,) * 3, order=ORDER, layers=Layers(WIDTH, frequency=FREQUENCY))
        source = SPACING * np.array([size]) // 2
        signal = np.resize(ricker(FREQUENCY, INTERVAL)[0], samples)
        geometry = Geometry(source, source + SPACING, signal, INTERVAL)
        F = Propagator(grid, geometry, tiles=(comm.size, 1, 1), comm=comm)
        model: Any = collops.full(F.domain, 2250.0, comm=comm, engine=context.engine, dtype=F.dtype)
        programs[name] = partial(F, model)
    traces = {name: np.asarray(context.engine.to_host(program().local_array)) for name, program in programs.items()}
    timings = interleave(programs, context.comm, context.engine, Plan(rounds=3, seconds=0.0))
    ours, theirs = (timings[name].wall.median for name in (OURS, ALONE))
    checks = []
    if factor == 1:
        error = float(np.abs(traces[OURS] - traces[ALONE]).max())
        checks.append(check(context.comm, "traces of one rank", error, 0.0))
    return Measurement(
        f"modelling, {kind} scaling, {' x '.join(map(str, (factor * shape[0], *shape[1:])))}",
        {"points": factor * int(np.prod(shape)), "steps": samples - 1},
        timings,
        {},
        ours=OURS,
        checks=checks,
        figures={OURS: {"efficiency": theirs * factor / (context.comm.size * ours)}},
    )


def gradient(F: Propagator, model: Any) -> Any:
    """Return the gradient of half the squared norm of the traces. Collective."""
    traces, jacobian = F.linearise(model)
    return jacobian.adjoint(traces)


def propagator_of(context: Context, case: Case, time_order: int = 2, **medium: Any) -> tuple[Propagator, Any]:
    """Return the propagator of a medium, and the model. Collective."""
    layers = Layers(WIDTH, frequency=FREQUENCY)
    grid = Grid(case.shape, (SPACING,) * case.axes, order=ORDER, layers=layers, time_order=time_order)
    geometry = Geometry(SPACING * case.source, SPACING * case.receivers, case.wavelet, INTERVAL)
    F = Propagator(grid, geometry, tiles=(context.comm.size, *[1] * (case.axes - 1)), comm=context.comm, **medium)
    model = collops.from_global(case.velocity, layout=F.domain, comm=context.comm, engine=context.engine)
    return F, model.astype(F.dtype)


def _modelling(context: Context, case: Case, missing: dict[str, str | None]) -> Measurement:
    F, model = propagator_of(context, case)
    device = context.engine.memory == "device"
    made: dict[str, Callable[[], _Deepwave | _Devito]] = {
        DEEPWAVE: lambda: _Deepwave(case, device),
        DEVITO: lambda: _Devito(case),
    }
    peers = {name: make() for name, make in made.items() if missing[name] is None}
    traces = np.asarray(context.engine.to_host(F(model).local_array))[0]
    checks = [compared(context, f"traces of {name}", peer.traces(), traces) for name, peer in peers.items()]
    programs = {OURS: lambda: F(model), **{name: peer.model for name, peer in peers.items()}}
    return measured(context, case, F, "modelling", programs, missing, checks)


def _gradient(context: Context, case: Case, missing: dict[str, str | None]) -> Measurement:
    F, model = propagator_of(context, case)

    programs, checks = {OURS: lambda: gradient(F, model)}, []
    if missing[DEEPWAVE] is None:
        peer = _Deepwave(case, context.engine.memory == "device")
        image = np.asarray(context.engine.to_host(gradient(F, model).gather()))
        checks.append(compared(context, f"gradient of {DEEPWAVE}", peer.gradient(), image))
        programs[DEEPWAVE] = peer.differentiate
    return measured(context, case, F, "gradient", programs, missing, checks)


def measured(
    context: Context,
    case: Case,
    F: Propagator,
    what: str,
    programs: Mapping[str, Callable[[], object]],
    missing: dict[str, str | None],
    checks: list[Check],
    waves: str = "Acoustic waves",
) -> Measurement:
    """Time programs in turn, which compute a shot by all its steps. Collective."""
    plan = Plan(rounds=1 if context.options.quick else 5, seconds=0.0)
    timings = interleave(programs, context.comm, context.engine, plan)
    work = float(np.prod(F.grid.padded)) * (case.samples - 1)
    size = " x ".join(map(str, case.shape))
    return Measurement(
        f"{what}, {size}",
        {
            "points": int(np.prod(case.shape)),
            "points with layers": int(np.prod(F.grid.padded)),
            "steps": case.samples - 1,
        },
        timings,
        {name: reason for name, reason in missing.items() if reason is not None},
        ours=OURS,
        peer=DEEPWAVE,
        checks=checks,
        figures={name: {"points per second": work / timing.wall.median} for name, timing in timings.items()},
        headline=f"{waves}, {what} of a shot, {size} points, order {ORDER}",
    )


def compared(context: Context, what: str, theirs: np.ndarray, ours: np.ndarray) -> Check:
    """Return the check that two arrays agree, relative to the norm of ours. Collective."""
    error = np.linalg.norm(theirs.astype(float) - ours) / np.linalg.norm(ours.astype(float))
    return check(context.comm, what, float(error), _TOLERANCE)


class _Deepwave:
    """deepwave's ``scalar`` propagator by PyTorch."""

    def __init__(self, case: Case, device: bool) -> None:
        self._torch, self._module = importlib.import_module("torch"), importlib.import_module("deepwave")
        to = {"device": "cuda" if device else "cpu"}
        signal = self._torch.from_numpy(case.wavelet.astype(np.float32)).to(**to)
        self._velocity = self._torch.tensor(case.velocity, dtype=self._torch.float32, **to)
        self._arguments = {
            # Its sources have the opposite sign, and are not divided by the volume of a cell.
            "source_amplitudes": (-signal / SPACING**case.axes).reshape(1, 1, -1),
            "source_locations": self._torch.from_numpy(case.source[np.newaxis]).to(**to),
            "receiver_locations": self._torch.from_numpy(case.receivers[np.newaxis]).to(**to),
            "accuracy": ORDER,
            "pml_width": WIDTH,
            "pml_freq": FREQUENCY,
        }

    def _traces(self, velocity: Any) -> Any:
        return self._module.scalar(velocity, SPACING, INTERVAL, **self._arguments)[-1]

    def model(self) -> Any:
        with self._torch.no_grad():
            return self._traces(self._velocity)

    def differentiate(self) -> Any:
        velocity = self._velocity.detach().requires_grad_()
        (0.5 * self._traces(velocity).square().sum()).backward()
        return velocity.grad

    def traces(self) -> np.ndarray:
        return self.model().cpu().numpy()[0]

    def gradient(self) -> np.ndarray:
        return self.differentiate().cpu().numpy()


class _Devito:
    """A leapfrog operator that Devito compiles, with its examples' damping in the layers."""

    def __init__(self, case: Case) -> None:
        devito = importlib.import_module("devito")
        devito.configuration["log-level"] = "ERROR"
        devito.configuration["language"] = "openmp"
        shape = tuple(n + 2 * WIDTH for n in case.shape)
        extent = tuple(SPACING * (n - 1) for n in shape)
        grid = devito.Grid(shape, extent=extent, dtype=np.float32)
        self._u = u = devito.TimeFunction(name="u", grid=grid, time_order=2, space_order=ORDER)
        m, damp = (devito.Function(name=name, grid=grid) for name in ("m", "damp"))
        velocity = np.pad(case.velocity, WIDTH, mode="edge")
        m.data[:] = velocity**-2.0
        damp.data[:] = _sponge(shape) * m.data[:]
        step = devito.Eq(u.forward, devito.solve(m * u.dt2 - u.laplace + damp * u.dt, u.forward))
        options = {"grid": grid, "nt": case.samples}
        source = devito.SparseTimeFunction(name="source", npoint=1, **options)
        self._receivers = devito.SparseTimeFunction(name="receivers", npoint=len(case.receivers), **options)
        source.coordinates.data[:] = SPACING * (case.source + WIDTH)
        self._receivers.coordinates.data[:] = SPACING * (case.receivers + WIDTH)
        source.data[:, 0] = case.wavelet / SPACING**case.axes
        inject = source.inject(field=u.forward, expr=source * grid.stepping_dim.spacing**2 / m)
        self._operator = devito.Operator([step, inject, self._receivers.interpolate(expr=u)])
        self._last = case.samples - 1

    def model(self) -> Any:
        self._u.data[:] = 0
        self._operator.apply(time_m=0, time_M=self._last, dt=INTERVAL)

    def traces(self) -> np.ndarray:
        self.model()
        return np.array(self._receivers.data).T


def _sponge(shape: tuple[int, ...]) -> np.ndarray:
    """Return a damping in 1/s that grows with the depth in a layer."""
    total = np.zeros(shape)
    for axis, n in enumerate(shape):
        depth = np.maximum(0, WIDTH - np.minimum(np.arange(n), n - 1 - np.arange(n))) / WIDTH
        total += (300.0 * depth**2).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return total
