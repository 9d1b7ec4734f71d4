"""The Kirchhoff operator on an image that is split over the ranks: against PyLops and the replicated one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import collops
from collops.array import DistributedArray, Layout, from_global
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import Columns
from collops.profile import count_messages
from collops.seismic import Kirchhoff
from collops.seismic.kirchhoff import split, stations
from collops.seismic.kirchhoff.fixed_point import Scale
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.kirchhoff.nodes import Nodes
from collops.seismic.kirchhoff.traveltimes import analytic
from collops.seismic.kirchhoff.weights import Weighting
from tests.seismic.test_kirchhoff import TOLERANCE, gradient, peer_at_our_times, random_pair, relative, survey
from tests.seismic.test_kirchhoff_tables import survey as fine_survey

pytest.importorskip("numba")


def uneven(shape: tuple[int, ...], ranks: int, axis: int = 0) -> Layout:
    """A layout of which the second of three ranks or more has nothing."""
    few = [2, 0 if ranks > 2 else 2, 2, 2][:ranks]
    return Layout.split(shape, ranks, axis, sizes=[shape[axis] - sum(few[1:]), *few[1:]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("ndim", "shots", "axis"), [(2, 5, 0), (2, 2, 1), (3, 3, 0)])
def test_agrees_with_pylops(comm, ndim, shots, axis, dtype, monkeypatch):
    """Also with ranks that have no points or no shots, and shots of several blocks."""
    monkeypatch.setattr(split, "BLOCK", 2 * 7 * 90)
    s = survey(ndim, shots)
    s["velocity"] = gradient(s)
    reference = peer_at_our_times(s, dtype)
    shape = (13, 11) if ndim == 2 else (5, 13, 11)
    operator = Kirchhoff(**s, comm=comm, dtype=dtype, layout=uneven(shape, comm.size, axis))
    assert operator.dottest()
    image, data = random_pair(operator)
    m = from_global(image, operator.domain, comm=comm)
    d = from_global(data.ravel(), operator.range, comm=comm)
    modelled, migrated = operator @ m, operator.H @ d
    assert modelled.dtype == migrated.dtype == dtype
    assert relative(modelled.gather(), reference.matvec(image.ravel())) < TOLERANCE[dtype]
    assert relative(migrated.gather().ravel(), reference.rmatvec(data.ravel())) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("axes", "dtype", "more"),
    [
        (2, "float64", {"amplitude": "2.5d", "aperture": 150.0, "max_dip": 60.0, "antialias": True}),
        (2, "float32", {"coarsen": 4}),
        (3, "float64", {"coarsen": 4, "amplitude": "3d", "antialias": True, "layout": "grid"}),
    ],
)
def test_weights_filters_and_coarse_tables_are_those_of_the_whole_image(comm, axes, dtype, more):
    """In a velocity that varies, where weights are made of gradients of the times, also at the edges of the parts."""
    s = fine_survey(axes, dtype=dtype, comm=comm, mode="eikonal")
    s |= {"z": s["z"][:17], "receivers": s["receivers"][:, :9], "sources": s["sources"][:, : 8 - axes]}
    shape = (21, 17) if axes == 2 else (9, 21, 17)
    s["velocity"] = np.broadcast_to(900.0 + 2 * s["z"], shape)
    layout = uneven(shape, comm.size)
    if more.get("layout"):  # along two axes
        layout = Layout.grid(shape, {2: (1, 2, 1), 4: (2, 2, 1)}.get(comm.size, (comm.size, 1, 1)))
    more = {name: value for name, value in more.items() if name != "layout"}
    whole, parted = Kirchhoff(**s, **more), Kirchhoff(**s, **more, layout=layout)
    image, data = random_pair(whole)
    given = from_global(image, whole.domain, comm=comm), from_global(data.ravel(), whole.range, comm=comm)
    expected = (whole @ given[0]).gather(), (whole.H @ given[1]).gather()
    found = (parted @ given[0].redistribute(layout)).gather(), (parted.H @ given[1]).gather()
    for one, other in zip(found, expected, strict=True):
        assert relative(one, other) < (1e-13 if dtype == "float64" else TOLERANCE[dtype])


def test_given_times(comm):
    s, rng = survey(shots=3), np.random.default_rng(5)
    times = tuple(rng.uniform(-0.02, 0.15, (143, count)) for count in (3, 7))
    both = [
        Kirchhoff(**s, comm=comm, mode="byot", travel_times=times, layout=layout)
        for layout in (None, Layout.split((13, 11), comm.size))
    ]
    image = collops.random(both[1].domain, seed=1)
    found, expected = both[1] @ image, both[0] @ image.redistribute(both[0].domain)
    assert relative(found.gather(), expected.gather()) < 1e-13


def test_columns(comm):
    layout = Layout.split((13, 11), comm.size)
    operator = Kirchhoff(**survey(shots=3), mode="analytic", comm=comm, layout=layout, antialias=True)
    images = [collops.random(layout, seed=number) for number in range(4)]
    columns = Columns(operator, len(images))
    for found, image in zip(Columns.split(columns @ Columns.join(images)), images, strict=True):
        assert relative(found.gather(), (operator @ image).gather()) < 1e-13
    columns.dottest()


@pytest.mark.parametrize("blocks", [1, 3])
def test_messages(comm, blocks, monkeypatch):
    """One for each block of shots and direction: their traces, not the image."""
    a_shot = 7 * 90
    monkeypatch.setattr(split, "BLOCK", -(-6 * comm.size * a_shot // blocks))
    layout = Layout.split((13, 11), comm.size)
    operator = Kirchhoff(**survey(shots=6 * comm.size), mode="analytic", comm=comm, layout=layout)
    assert operator.capturable == (blocks == 1 or comm.size == 1)
    m = collops.random(operator.domain, seed=1)
    d = operator.forward(m)
    size = (comm.size > 1) * blocks
    with count_messages() as messages:
        operator.forward(m, out=d)
    assert messages["reduce_scatter"] == messages.total == size
    with count_messages() as messages:
        operator.adjoint(d, out=m)
    assert messages["allgatherv"] == messages.total == size


@pytest.mark.parametrize("factor", [1, 3])
def test_ranks_keep_tables_of_their_points_only(comm, factor, monkeypatch):
    """Each station is computed by one rank; the parts are those of the tables of the whole image."""
    monkeypatch.setattr(stations, "_ROUND", 9 * 7 * 40)
    grid = ImageGrid((10.0 * np.arange(9), 5.0 * np.arange(7)), (10.0, 5.0))
    positions, rng = np.random.default_rng(1).uniform(0, 30, (7, 2)), np.random.default_rng(2)
    velocity, calls = rng.uniform(800, 1200, grid.shape), []

    def seconds(stations: Sequence[int], at: tuple[np.ndarray, ...]) -> Iterator[np.ndarray]:
        calls.extend(stations)
        return (analytic(grid, positions[station], 1000.0, at) for station in stations)

    layout, every = uneven(grid.shape, comm.size), [np.arange(7)] * comm.size
    boxes = split.boxes_of(layout, factor, comm.size)
    scale, given = Scale(0.004, 60, 0, np.dtype("float64")), {"factor": factor, "weighting": Weighting("2d")}
    arguments = seconds, positions, velocity, grid, scale
    whole = stations.tables_of_stations(*arguments, every[:1], collops.comm.alone(), **given)
    calls.clear()
    found = stations.tables_of_stations(*arguments, every, comm, **given, boxes=boxes)
    assert sum(comm.allgather_metadata(len(calls))) == 7 and len(calls) <= -(-7 // comm.size)
    own, held = layout.slices(comm.rank), boxes[comm.rank]
    assert held[0].start <= own[0].start and held[0].stop - own[0].stop < factor
    assert found[0].times.shape == (7, found[0].nodes.size) and found[0].nodes.shape == nodes_shape(held)
    if not found[0].nodes.size:
        return
    for station in range(7):
        expected = whole[0].station_times(station).reshape(grid.shape)[held]
        np.testing.assert_allclose(found[0].station_times(station).reshape(expected.shape), expected, rtol=1e-13)
        fields, parts = (
            each.fields[station].reshape(-1, *nodes.counts)
            for each, nodes in zip((whole[1], found[1]), (Nodes(grid.shape, factor), found[0].nodes), strict=True)
        )
        np.testing.assert_array_equal(parts, fields[(slice(None), *Nodes(grid.shape, factor).inside(held))])


def nodes_shape(box: tuple[slice, ...]) -> tuple[int, ...]:
    return tuple(part.stop - part.start for part in box)


def test_an_error_of_one_rank_is_raised_on_all(comm):
    """That of the rank which computes the only table that is wrong."""
    grid = ImageGrid((10.0 * np.arange(9), 5.0 * np.arange(7)), (10.0, 5.0))

    def seconds(stations: Sequence[int], _: tuple[np.ndarray, ...]) -> Iterator[np.ndarray]:
        for station in stations:
            if station == 1:
                raise InputError("station 1 cannot be computed")
            yield np.zeros(grid.shape)

    layout = Layout.split(grid.shape, comm.size)
    arguments = seconds, np.zeros((2, 2)), np.ones(grid.shape), grid, Scale(0.004, 60, 0, np.dtype("float64"))
    with pytest.raises(InputError, match="station 1 cannot be computed"):
        stations.tables_of_stations(
            *arguments, [np.arange(2)] * comm.size, comm, boxes=split.boxes_of(layout, 1, comm.size)
        )


def test_refusals(comm):
    """Ranks without points refuse what the others do."""
    s = survey()
    for layout, words in [
        (Layout.split((13, 12), comm.size), "cannot have the layout"),
        ((13, 11), "must be a Layout"),
        (Layout((13, 11), 4, (2, 2), (0, None)), "cannot have the layout" if comm.size != 4 else "without replicas"),
    ]:
        with pytest.raises(LayoutError, match=words):
            Kirchhoff(**s, mode="analytic", comm=comm, layout=layout)
    operator = Kirchhoff(**s, mode="analytic", comm=comm, layout=uneven((13, 11), comm.size))
    with pytest.raises(UnsupportedTypeError, match="real"):
        operator @ DistributedArray(
            operator.domain, comm, np.zeros(operator.domain.local_shape(comm.rank), np.complex128)
        )
