"""Least-squares Kirchhoff migration (forward, adjoint, CGLS iteration), also by PyLops-MPI.

The small problem is from the tutorial of PyLops-MPI: an image of 81 x 60 points, 4 m apart, two flat reflectors in a
constant velocity of 1000 m/s, 40 shots, 11 receivers and 651 samples of 4 ms. The large one, on GPUs, has 401 x 300
points, 40 shots, 101 receivers and 1001 samples. Rays are straight. The peer runs the operator of PyLops with its
fastest engine: Numba on hosts (in double precision, as in the tutorial), CUDA on GPUs (in single precision). Images on
GPUs are compared after five iterations; images of eager and replayed runs also after ten, with sums in fixed order.

The case "streamed" is a boat that tows cables, so that each shot has receivers of its own: along a line and, on GPUs,
on an area of 512 x 512 points with 256 depths, with travel times at every eighth point. The traces are in files on this
machine, which its page cache holds: SEG-Y and Zarr along the line, Zarr on the area. CGLS reads them into memory and
iterates on them; CG on the normal equations, whose vectors are images, reads them shot by shot and keeps none. The
clock "wall" has an iteration, "whole" a long solve with reading the traces, over its iterations. Figures are ratios to
the first program; "operator bytes" is the memory of a rank that the operator and its tables take.
"""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collops.array import DistributedArray
from collops.operators import LinearOperator
from collops.seismic.kirchhoff import Kirchhoff, KirchhoffOperator, SplitKirchhoff
from collops.seismic.survey import Geometry, Grid, Survey, read
from collops.seismic.survey.geometry import shots_of
from collops.solvers import CG
from collops_bench.peers import PEER, Peer, load_peer, why_not_loaded
from collops_bench.record import Measurement
from collops_bench.registry import Context
from collops_bench.shared import (
    CHECKED_ITERATIONS,
    ONE_REDUCTION,
    agreement,
    messages_of_a_call,
    messages_of_an_iteration,
    solve_exactly,
    solvers_of_collops,
)
from collops_bench.timing import Plan, Timing, interleave, interleave_iterations

__all__ = ["Problem", "measure"]

_SPACING, _INTERVAL, _VELOCITY = 4.0, 0.004, 1000.0

_ENDINGS = {"SEG-Y": "sgy", "Zarr": "zarr"}
_COMPARED_ITERATIONS = {"float64": CHECKED_ITERATIONS, "float32": 5}
"""Iterations after which images are compared. In single precision the directions of CGLS lose their orthogonality from
the seventh on, if the problem is large: after ten, the image has an error of 5 %."""


@dataclass(frozen=True)
class Problem:
    """The sizes of a survey, which determine all of its values."""

    nx: int
    nz: int
    shots: int
    receivers: int
    samples: int
    dtype: str

    @property
    def x(self) -> np.ndarray:
        """Positions of the image's columns, m."""
        return _SPACING * np.arange(self.nx)

    @property
    def z(self) -> np.ndarray:
        """Depths of its rows, m."""
        return _SPACING * np.arange(self.nz)

    @property
    def t(self) -> np.ndarray:
        """Times of the samples, s."""
        return _INTERVAL * np.arange(self.samples)

    @property
    def reflectivity(self) -> np.ndarray:
        """Two flat reflectors, raveled."""
        image = np.zeros((self.nx, self.nz))
        image[:, self.nz // 2], image[:, self.nz * 5 // 6] = -1.0, 0.5
        return image.ravel()

    @property
    def sources(self) -> np.ndarray:
        """Positions of the sources, shape (2, shots), m."""
        return self._positions(self.shots, 10.0)

    @property
    def spots(self) -> np.ndarray:
        """Positions of the receivers, shape (2, receivers), m."""
        return self._positions(self.receivers, 20.0)

    def _positions(self, count: int, depth: float) -> np.ndarray:
        """Return positions along the line, ten points from either end."""
        along = np.linspace(10 * _SPACING, (self.nx - 10) * _SPACING, count)
        return np.vstack([along, np.full(count, depth)])

    def wavelet(self) -> tuple[np.ndarray, int]:
        """Return the tutorial's wavelet, a Ricker of 20 Hz, and the index of its centre."""
        from pylops.utils.wavelets import ricker

        values, _, centre = ricker(self.t[:41], f0=20)
        return values, centre

    def operator(self, context: Context, deterministic: bool = False) -> KirchhoffOperator | SplitKirchhoff:
        """Return the modelling of all shots, distributed over the ranks. Collective."""
        wavelet, centre = self.wavelet()
        return Kirchhoff(
            self.z,
            self.x,
            self.t,
            self.sources,
            self.spots,
            _VELOCITY,
            wavelet,
            centre,
            mode="analytic",
            comm=context.comm,
            engine=context.engine.name,
            dtype=self.dtype,
            deterministic=deterministic,
        )

    def model(self, context: Context, operator: LinearOperator) -> DistributedArray:
        """Return the reflectivity in the layout of the operator's domain."""
        values = context.engine.from_host(self.reflectivity.astype(self.dtype))
        domain: Any = operator.domain  # one layout, not a stack of them
        return DistributedArray(domain, context.comm, values.reshape(domain.local_shape(context.comm.rank)))

    @property
    def parameters(self) -> dict[str, Any]:
        """The sizes of the survey, for records."""
        sizes = {"image": [self.nx, self.nz], "shots": self.shots, "receivers": self.receivers}
        return sizes | {"samples": self.samples, "dtype": self.dtype}

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"migration of {self.nx} x {self.nz}"


def measure(context: Context) -> Iterator[Measurement]:
    """Yield forward, adjoint and an iteration, and one with streamed traces, for each problem."""
    on_device = context.engine.memory == "device"
    dtype = "float32" if on_device else "float64"
    if context.options.quick:
        problems = [Problem(41, 30, 6, 5, 301, dtype)]
    else:
        problems = [Problem(81, 60, 40, 11, 651, dtype)]
        problems += [Problem(401, 300, 40, 101, 1001, dtype)] if on_device else []
    peer = load_peer(context)
    obstacle = _obstacle(context, peer)
    for problem in problems:
        yield from _measure(context, obstacle if obstacle is not None else peer, problem)
    surveys: list[Callable[[], _Towed]] = [partial(_Towed.along_a_line, context, problem) for problem in problems]
    if on_device or context.options.quick:
        surveys.append(partial(_Towed.on_an_area, context))
    for make in surveys:
        with tempfile.TemporaryDirectory() as folder:
            yield _measure_streamed(context, make(), Path(context.comm.allgather_metadata(folder)[0]))
            context.comm.barrier()


def _obstacle(context: Context, peer: Peer | str) -> str | None:
    """Return why any rank lacks the fastest engine of the operator of PyLops, or None. Collective."""
    if isinstance(peer, str):
        return None
    module = "numba.cuda.cudaimpl" if context.engine.name == "cupy" else "numba"
    reasons = context.comm.allgather_metadata(why_not_loaded(module))
    return next((f"PyLops' fast engines need Numba: {reason}" for reason in reasons if reason is not None), None)


def _measure(context: Context, peer: Peer | str, problem: Problem) -> Iterator[Measurement]:
    comm, engine = context.comm, context.engine
    operator = problem.operator(context)
    x = problem.model(context, operator)
    y = operator.forward(x)
    image, data = operator.adjoint(y), operator.forward(x)

    forward: dict[str, Callable[[], Any]] = {"collops": lambda: operator.forward(x, out=data).local_array}
    adjoint: dict[str, Callable[[], Any]] = {"collops": lambda: operator.adjoint(y, out=image).local_array}

    solvers, missing = solvers_of_collops(context, operator, y)
    program, *_ = solvers
    sent_by_iteration = messages_of_an_iteration(solvers[program])
    if isinstance(peer, str):
        missing[PEER] = peer
    else:
        peer_operator = peer.vstack([_local_of_peer(context, problem)])
        traces = [
            len(shots_of(rank, problem.shots, comm.size)) * problem.receivers * problem.samples
            for rank in range(comm.size)
        ]
        for name, way in peer.ways().items():
            _add_peer(name, way, peer_operator, x.local_array, y.local_array, traces, (forward, adjoint, solvers))

    # In single precision a travel time on the edge of a sample may be rounded either way.
    tolerance = {"float64": 1e-8, "float32": 2e-4}[problem.dtype]
    iterated = {name: partial(solve, _COMPARED_ITERATIONS[problem.dtype]) for name, solve in solvers.items()}
    checks = {
        case: agreement(context, f"{case} of the {problem.name}", programs, tolerance)
        for case, programs in (("forward", forward), ("adjoint", adjoint), ("iteration", iterated))
    }
    if engine.memory == "device":
        repeatable, _ = solvers_of_collops(context, problem.operator(context, deterministic=True), y)
        repeatable.pop(ONE_REDUCTION, None)  # it computes the same numbers in another way, which rounds differently
        programs = {name: partial(solve, CHECKED_ITERATIONS) for name, solve in repeatable.items()}
        checks["iteration"] += agreement(context, f"the same bits of the {problem.name}", programs, 0.0)
    plan = Plan(rounds=3, seconds=0.05) if context.options.quick else Plan(rounds=7, seconds=0.2)

    def measurement(case: str, timings: dict[str, Timing], program: str, sent: dict[str, int]) -> Measurement:
        return Measurement(
            case,
            problem.parameters,
            timings,
            missing,
            ours=program,
            peer=PEER,
            checks=checks[case],
            messages=sent,
            headline=f"{problem.name}, {case}",
        )

    for case, programs in (("forward", forward), ("adjoint", adjoint)):
        timings = interleave(programs, comm, engine, plan)
        yield measurement(case, timings, "collops", messages_of_a_call(programs["collops"]))
    short, long = (2, 6) if context.options.quick else (5, 20)
    timings = interleave_iterations(solvers, comm, engine, plan, short=short, long=long)
    yield measurement("iteration", timings, program, sent_by_iteration)


@dataclass(frozen=True)
class _Towed:
    """A survey whose shots have receivers of their own, the image that explains it, and how long it is measured."""

    name: str
    survey: Survey
    grid: Grid
    velocity: float
    image: np.ndarray  # of the grid's shape
    parameters: dict[str, Any]
    coarsen: int  # travel times are kept at every so many points
    rounds: int
    iterations: tuple[int, int]  # of a short and of a long solve
    compared: int  # iterations after which images are compared
    formats: tuple[str, ...] = ("SEG-Y", "Zarr")

    @classmethod
    def along_a_line(cls, context: Context, problem: Problem) -> _Towed:
        """Return a survey of the sizes of a problem, with one cable."""
        grid = Grid(problem.nx, problem.nz, _SPACING, _SPACING)
        cable = np.stack([np.linspace(0, grid.x[-1] / 3, problem.receivers), np.full(problem.receivers, 20.0)])
        boat = np.stack([np.linspace(0, grid.x[-1] * 2 / 3, problem.shots), np.full(problem.shots, 10.0)]).round(4)
        cables = [(cable + np.array([[x], [0.0]])).round(4) for x in boat[0]]
        survey = Survey(Geometry(boat, cables, problem.samples, _INTERVAL), context.comm)
        image, compared = problem.reflectivity.reshape(grid.shape), _COMPARED_ITERATIONS[problem.dtype]
        rounds, iterations = (3, (2, 6)) if context.options.quick else (5, (5, 20))
        return cls(problem.name, survey, grid, _VELOCITY, image, problem.parameters, 1, rounds, iterations, compared)

    @classmethod
    def on_an_area(cls, context: Context) -> _Towed:
        """Return a 3-D survey with four cables; its image is too large for hosts unless the run is quick."""
        quick = context.options.quick
        points, depths, shots, receivers = (24, 16, 4, 8) if quick else (512, 256, 24, 64)
        grid = Grid(points, depths, 10.0, 5.0, ny=points, dy=10.0)
        width = grid.x[-1]
        along, across = np.meshgrid(np.linspace(0, width / 3, receivers // 4), np.linspace(0, width / 8, 4))
        cables = np.stack([across.ravel(), along.ravel(), np.full(receivers, 10.0)])
        random = np.random.default_rng(5)
        boat = np.stack([random.uniform(0, width / 2, shots), random.uniform(0, width / 2, shots), np.full(shots, 5.0)])
        spreads = [(cables + position * [[1.0], [1.0], [0.0]]).round(4) for position in boat.T[:, :, None]]
        samples = 301 if quick else 1001
        survey = Survey(Geometry(boat.round(4), spreads, samples, _INTERVAL), context.comm)
        image = np.zeros(grid.shape)
        image[..., depths // 2], image[..., depths * 5 // 6] = -1.0, 0.5
        sizes = {"image": [points, points, depths], "shots": shots, "receivers": receivers, "samples": samples}
        name = f"migration of {points} x {points} x {depths}"
        return cls(name, survey, grid, 2000.0, image, sizes | {"dtype": "float32"}, 8, 2, (1, 3), 2, ("Zarr",))


def _measure_streamed(context: Context, towed: _Towed, folder: Path) -> Measurement:
    """Measure an iteration on traces that are read shot by shot, against one with all in memory. Collective."""
    comm, engine, survey, dtype = context.comm, context.engine, towed.survey, towed.parameters["dtype"]
    free = context.free_memory()
    operator = survey.operator(
        towed.velocity, towed.grid, frequency=20.0, coarsen=towed.coarsen, dtype=dtype, engine=engine
    )
    memory = free - context.free_memory()
    domain: Any = operator.domain  # one layout, not a stack of them
    image = DistributedArray(domain, comm, engine.from_host(towed.image.astype(dtype)))
    survey.traces = survey.by_shot(engine.to_host(operator.forward(image).local_array))

    def migration(path: Path, streamed: bool) -> Callable[[int], Any]:
        headers = read(path, comm).headers

        def migrate(iterations: int) -> Any:
            fresh = Survey(survey.geometry, comm, headers)  # which has read no traces yet
            if not streamed:
                data = fresh.data(dtype=dtype, engine=engine)
                return solve_exactly(operator, data, iterations).x.local_array
            equations = fresh.normal_equations(operator, engine=engine)
            return solve_exactly(equations.operator, equations.right, iterations, kind=CG).x.local_array

        return migrate

    files, missing = {name: f"shots.{_ENDINGS[name]}" for name in towed.formats}, {}
    if "SEG-Y" in files and not all(comm.allgather_metadata(importlib.util.find_spec("segyio") is not None)):
        missing = {f"{way}, SEG-Y": "segyio is not installed on all ranks" for way in ("resident", "streamed")}
        del files["SEG-Y"]
    paths = {name: survey.save(folder / file, towed.grid) for name, file in files.items()}
    programs = {
        f"{way}, {name}": migration(path, way == "streamed")
        for way in ("resident", "streamed")
        for name, path in paths.items()
    }
    # The normal equations square the condition number, unlike CGLS.
    tolerance = {"float64": 1e-8, "float32": 1e-4}[dtype]
    compared = {name: partial(migrate, towed.compared) for name, migrate in programs.items()}
    checks = agreement(context, f"streamed shots of the {towed.name}", compared, tolerance)
    short, long = towed.iterations
    timings = interleave_iterations(programs, comm, engine, Plan(rounds=towed.rounds), short=short, long=long)
    of_resident = next(iter(timings.values())).clocks
    figures = {
        name: {f"{clock} ratio": item.median / of_resident[clock].median for clock, item in timing.clocks.items()}
        for name, timing in timings.items()
    }
    figures["streamed, Zarr"]["operator bytes"] = float(memory)
    return Measurement(
        "streamed",
        towed.parameters,
        timings,
        missing,
        ours="streamed, Zarr",
        checks=checks,
        figures=figures,
        messages=messages_of_an_iteration(programs["streamed, Zarr"]),
    )


def _add_peer(
    name: str,
    way: Peer,
    operator: Any,
    image: Any,
    data: Any,
    traces: list[int],
    programs: tuple[dict[str, Callable[[], Any]], dict[str, Callable[[], Any]], dict[str, Callable[[int], Any]]],
) -> None:
    """Add the peer to the programs of the forward, of the adjoint and of an iteration."""
    forward, adjoint, solvers = programs
    x, y = way.replicated(image.reshape(-1)), way.split(data.reshape(-1), traces)
    start = way.replicated(0 * image.reshape(-1))
    forward[name] = lambda: operator.matvec(x).local_array
    adjoint[name] = lambda: operator.rmatvec(y).local_array
    solvers[name] = lambda iterations: way.cgls(operator, y, start, iterations)


def _local_of_peer(context: Context, problem: Problem) -> Any:
    """Return the operator of PyLops for the shots of this rank."""
    from pylops.waveeqprocessing import Kirchhoff as KirchhoffOfPylops

    engine = context.engine
    wavelet, centre = problem.wavelet()
    shots = shots_of(context.comm.rank, problem.shots, context.comm.size)
    on_device = engine.name == "cupy"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # its advice on an argument that is not used here
        operator = KirchhoffOfPylops(
            problem.z,
            problem.x,
            problem.t,
            problem.sources[:, shots.start : shots.stop],
            problem.spots,
            _VELOCITY,
            engine.from_host(wavelet.astype(problem.dtype)),
            centre,
            mode="analytic",
            engine="cuda" if on_device else "numba",
            dtype=problem.dtype,
        )
    if on_device:
        # As its documentation recommends, copy the travel times from the host once.
        operator.trav_srcs = engine.from_host(operator.trav_srcs.astype(problem.dtype))
        operator.trav_recs = engine.from_host(operator.trav_recs.astype(problem.dtype))
    return operator
