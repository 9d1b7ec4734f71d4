"""Star forests on every transport and in PETSc, scatters by index, and a sparse matrix product.

A size is the size in bytes of the float64 values at a rank's roots. The forests: *shift*, every root has its leaf on
the next rank, in order; *random*, every leaf has any root of any rank. On hosts the time of a move includes writing its
source. The scatters are the cases of PETSc's published measurements: parallel to parallel (a random permutation),
sequential to parallel (each rank adds a full array of its own, with interleaved shares of the ranks), and parallel to
sequential (the reverse). On hosts they are also measured with MPI calls, point-to-point and neighbourhood collectives
with the same packing, and with PETSc.

The product is with the matrix of a 27-point stencil, with equally many rows on every rank. Its efficiency is the time
of one rank's own rows, without neighbours, over the time of the distributed product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.array import DistributedArray, IndexScatter, Layout, ones
from collops.exchange import StarForest, possible_transports
from collops.operators.csr import CSRMatrix
from collops_bench.peers import why_no_petsc
from collops_bench.record import Check, Measurement, check
from collops_bench.registry import Context
from collops_bench.shared import messages_of_a_call
from collops_bench.timing import Plan, interleave

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["NEIGHBOURHOOD", "POINT_TO_POINT", "measure", "ring_rows", "stencil_rows"]

POINT_TO_POINT, NEIGHBOURHOOD = "MPI point-to-point", "MPI neighbourhood"
_ITEM = 8
_PETSC_TYPES = ("basic", "neighbor")
_ROUTINES = ("parallel to parallel", "sequential to parallel", "parallel to sequential")


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each forest, mover and size, then for the scatters, then for the product."""
    quick, device = context.options.quick, context.engine.memory == "device"
    # Batches on hosts are long enough for ranks that leave a barrier one after the other not to matter.
    plan = Plan(rounds=5, seconds=0.01, most_calls=100) if device else Plan(rounds=9, seconds=0.03, most_calls=5000)
    plan = Plan(rounds=3, seconds=0.005) if quick else plan
    sizes = [1 << 10] if quick else [1 << 10, 1 << 13, 1 << 16, 1 << 19]
    for graph in ("shift", "random"):
        for size in sizes:
            yield from _movers(context, plan, graph, size)
    largest = 1 << 12 if quick else (64 << 20 if device else 1 << 20)
    size = 1 << 10
    while size <= largest:
        for routine in _ROUTINES:
            yield _scatter(context, plan, routine, size)
        size *= 4
    for side in (8,) if quick else (252, 126) if device else (40,):
        yield _product(context, plan, side)


def _transports(context: Context) -> list[str]:
    return ["auto", *possible_transports(context.comm, context.engine)] if context.comm.size > 1 else ["auto"]


def _program(transport: str) -> str:
    return "collops" if transport == "auto" else f"collops {transport}"


def _edges(comm: Communicator, graph: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ranks and numbers of the roots of this rank's leaves."""
    if graph == "shift":
        return np.full(count, (comm.rank + 1) % comm.size), np.arange(count)
    rng = np.random.default_rng(comm.rank)
    return rng.integers(0, comm.size, count), rng.integers(0, count, count)


def _movers(context: Context, plan: Plan, graph: str, size: int) -> Iterator[Measurement]:
    """Measure bcast and reduce. Values are integers, so that sums have one right answer."""
    comm, xp = context.comm, context.engine.xp
    count = size // _ITEM
    ranks, indices = _edges(comm, graph, count)
    forest = StarForest(comm, count, None, ranks, indices)
    forests = {_program(name): forest.with_transport(name) for name in _transports(context)}
    roots = xp.arange(count, dtype="float64") % 1000 + comm.rank
    leaves = xp.zeros(count)
    expected = xp.asarray(indices % 1000 + ranks, dtype="float64")
    degrees = xp.asarray(forest.degrees(), dtype="float64")
    peers, missing = _petsc(context, count, ranks, indices)
    for case in ("bcast", "reduce"):
        programs: dict[str, Callable[[], Any]] = {}
        for name, forest in forests.items():
            programs[name] = _mover(forest, case, roots, leaves, xp)
        for name, peer in peers.items():
            programs[name] = _petsc_mover(peer, case, roots, leaves)
        checks = []
        for name, program in programs.items():
            if case == "bcast":
                leaves[...] = -1
                program()
                error = float(abs(leaves - expected).max())
            else:
                leaves[...] = 1
                target = xp.zeros(count)
                _mover_into(forests, peers, name, leaves, target)
                error = float(abs(target - degrees).max())
            checks.append(check(comm, f"{case} by {name} against its values by counting", error, 0.0))
        if context.engine.memory == "host":
            source = roots if case == "bcast" else leaves
            programs = {name: _written_first(source, program) for name, program in programs.items()}
        timings = interleave(programs, comm, context.engine, plan)
        fastest = min((name for name in peers), key=lambda name: timings[name].wall.median, default="PETSc")
        yield Measurement(
            f"{case}, {graph}",
            {"bytes_per_rank": size, "dtype": "float64"},
            timings,
            missing,
            peer=fastest,
            checks=checks,
            messages=messages_of_a_call(programs["collops"]),
            headline=f"star-forest {case}, {graph}, 512 KiB a rank" if size == 1 << 19 else None,
        )
    for forest in forests.values():
        forest.free()


def _written_first(source: Any, program: Callable[[], Any]) -> Callable[[], Any]:
    """Return a program that writes its source before it moves it.

    Otherwise the receiver's cache would keep the values from the last round, and what reads them there, as MPI's copies
    between processes do, would move nothing.
    """
    values = source.copy()

    def run() -> None:
        source[...] = values
        program()

    return run


def _mover(forest: StarForest, case: str, roots: Any, leaves: Any, xp: Any) -> Callable[[], Any]:
    if case == "bcast":
        return lambda: forest.bcast(roots, leaves)
    sums = xp.zeros_like(roots)
    return lambda: forest.reduce(leaves, sums)


def _mover_into(forests: dict[str, StarForest], peers: dict[str, Any], name: str, leaves: Any, target: Any) -> None:
    if name in forests:
        forests[name].reduce(leaves, target)
    else:
        _petsc_mover(peers[name], "reduce", target, leaves)()


def _petsc(
    context: Context, count: int, ranks: np.ndarray, indices: np.ndarray
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return PETSc's star forests by type, or why there are none. Collective."""
    if (reason := why_no_petsc(context)) is not None:
        return {}, {"PETSc": reason}
    from petsc4py import PETSc  # pyright: ignore[reportAttributeAccessIssue]

    edges = np.stack([ranks, indices], axis=1).astype(PETSc.IntType)
    forests = {}
    for kind in _PETSC_TYPES:
        forest = PETSc.SF().create(PETSc.COMM_WORLD)
        forest.setType(kind)
        forest.setGraph(count, None, edges)
        forest.setUp()
        forests[f"PETSc {kind}"] = forest
    return forests, {}


def _petsc_mover(forest: Any, case: str, roots: Any, leaves: Any, *, add: bool = True) -> Callable[[], Any]:
    from mpi4py import MPI

    combine = MPI.SUM if add else MPI.REPLACE

    def bcast() -> None:
        forest.bcastBegin(MPI.DOUBLE, roots, leaves, MPI.REPLACE)
        forest.bcastEnd(MPI.DOUBLE, roots, leaves, MPI.REPLACE)

    sums = roots

    def reduce() -> None:
        forest.reduceBegin(MPI.DOUBLE, leaves, sums, combine)
        forest.reduceEnd(MPI.DOUBLE, leaves, sums, combine)

    return bcast if case == "bcast" else reduce


def _scatter(context: Context, plan: Plan, routine: str, size: int) -> Measurement:
    comm, engine = context.comm, context.engine
    share = max(1, size // _ITEM)
    total = share * comm.size
    layout = Layout.split(total, comm.size)
    local_rows = np.arange(layout.slices(comm.rank)[0].start, layout.slices(comm.rank)[0].stop)
    if routine == "parallel to parallel":
        permutation = np.random.default_rng(1).permutation(total)
        ends = (layout, local_rows, layout, permutation[local_rows])
    else:
        # Element k of the array of rank r is element k * ranks + r of the whole.
        ends = (share, np.arange(share), layout, np.arange(share) * comm.size + comm.rank)
    owners, places = np.divmod(ends[3], share)
    forward = routine != "parallel to sequential"
    scatter = IndexScatter(*ends, comm=comm)
    scatters = {_program(name): scatter.with_transport(name) for name in _transports(context)}
    x = _array(context, ends[0], local_rows)
    y = _array(context, layout, local_rows)
    checks: list[Check] = []
    programs: dict[str, Callable[[], Any]] = {}
    for name, item in scatters.items():
        if forward:
            programs[name] = lambda item=item: item.forward(x, y)
        else:
            programs[name] = lambda item=item: item.reverse(y, x)
    local_x, local_y = (end.local_array if isinstance(end, DistributedArray) else end for end in (x, y))
    raw: dict[str, Callable[[], None]] = {}
    graph = None
    if context.engine.memory == "host" and comm.size > 1 and context.options.peer:
        graph, raw = _raw_scatters(comm, owners, places, local_x, local_y, forward)
    peers, missing = _petsc(context, share, owners, places)
    for name, peer in peers.items():
        raw[name] = _petsc_mover(peer, "reduce" if forward else "bcast", local_y, local_x, add=False)
    programs |= raw
    result_of_raw = local_y if forward else local_x
    reference: Any = None
    for name, program in programs.items():
        if name in raw:
            result_of_raw[...] = -1
        result = program()
        local = result_of_raw if name in raw else result.local_array if isinstance(result, DistributedArray) else result
        reference = local.copy() if reference is None else reference
        error = float(abs(local - reference).max()) if share else 0.0
        checks.append(check(comm, f"{routine} by {name} against that by the first", error, 0.0))
    timings = interleave(programs, comm, engine, plan)
    for item in scatters.values():
        item.free()
    if graph is not None:
        graph.Free()
    parameters = {"bytes_per_rank": size, "dtype": "float64"}
    return Measurement(f"scatter {routine}", parameters, timings, missing, peer="collops mpi", checks=checks)


def _raw_scatters(
    comm: Communicator, owners: np.ndarray, places: np.ndarray, x: Any, y: Any, forward: bool
) -> tuple[Any, dict[str, Callable[[], None]]]:
    """Return the scatter by calls of MPI: point-to-point, and a neighbourhood collective, with the same packing.

    Before them comes the communicator of the neighbourhood, which the caller frees.

    Element i of `x` and element ``places[i]`` of `y` on the rank ``owners[i]`` belong together.
    """
    from mpi4py import MPI

    base = comm.control
    order = np.argsort(owners, kind="stable")
    counts = np.bincount(owners, minlength=comm.size)
    others = np.array(base.alltoall(counts.tolist()))
    expected = np.concatenate(base.alltoall(np.split(places[order], np.cumsum(counts)[:-1])))
    argument, got = (
        ((x, order, counts), (y, expected, others)) if forward else ((y, expected, others), (x, order, counts))
    )
    (source, packed_from, sent), (target, unpacked_to, received) = argument, got
    out, into = np.empty(sent.sum()), np.empty(received.sum())
    to, by = np.flatnonzero(sent), np.flatnonzero(received)
    graph = base.Create_dist_graph_adjacent(by.tolist(), to.tolist())
    outgoing = [out, sent[to], np.cumsum(sent)[to] - sent[to], MPI.DOUBLE]
    incoming = [into, received[by], np.cumsum(received)[by] - received[by], MPI.DOUBLE]
    pieces_out = [(rank, piece) for rank, piece in enumerate(np.split(out, np.cumsum(sent)[:-1])) if len(piece)]
    pieces_in = [(rank, piece) for rank, piece in enumerate(np.split(into, np.cumsum(received)[:-1])) if len(piece)]

    def by_messages() -> None:
        requests = [base.Irecv(piece, rank) for rank, piece in pieces_in]
        np.take(source, packed_from, out=out, mode="clip")  # others are buffered
        requests += [base.Isend(piece, rank) for rank, piece in pieces_out]
        MPI.Request.Waitall(requests)
        target[unpacked_to] = into

    def by_neighbours() -> None:
        np.take(source, packed_from, out=out, mode="clip")  # others are buffered
        graph.Neighbor_alltoallv(outgoing, incoming)
        target[unpacked_to] = into

    return graph, {POINT_TO_POINT: by_messages, NEIGHBOURHOOD: by_neighbours}


def _array(context: Context, end: Layout | int, local: np.ndarray) -> Any:
    values = context.engine.xp.asarray(local, dtype="float64")
    return DistributedArray(end, context.comm, values) if isinstance(end, Layout) else values


def stencil_rows(side: int, first: int, last: int, dtype: str = "float32") -> Any:
    """Return rows of the 27-point stencil on a cube, columns global, one z plane after the other.

    Parameters
    ----------
    side : int
        Points along x and y.
    first, last : int
        Planes of rows; columns reach one plane further, where neighbours begin, and end with the cube's planes.
    """
    from scipy import sparse

    planes, square = last - first, side * side
    line = sparse.diags_array([np.ones(side - 1), np.ones(side), np.ones(side - 1)], offsets=[-1, 0, 1])
    # The rows of one plane; the rows of other planes differ by an offset.
    plane = sparse.csr_array(sparse.kron(np.ones((1, 3)), sparse.kron(line, line), format="csr"))
    plane.eliminate_zeros()  # which small factors leave there
    kind = np.int32 if plane.nnz * planes < np.iinfo(np.int32).max else np.int64
    number = np.arange(planes, dtype=kind)[:, None]
    indices = (plane.indices.astype(kind) + number * kind(square)).reshape(-1)
    starts = (plane.indptr[:-1].astype(kind) + number * kind(plane.nnz)).reshape(-1)
    return sparse.csr_array(
        (np.ones(len(indices), dtype), indices, np.append(starts, kind(len(indices)))),
        shape=(planes * square, (planes + 2) * square),
    )


def ring_rows(slab: Any, square: int, first: int, planes: int) -> Any:
    """Return a slab's rows as those from the plane `first` of a ring of planes: the last one comes before the first."""
    from scipy import sparse

    rows, full = slab.shape[0], square * planes
    kind = np.int32 if full < np.iinfo(np.int32).max - rows else np.int64
    columns = slab.indices.astype(kind) + kind((first - 1) * square)
    if rows:  # a rank may have no plane
        # Only what the first and the last plane name can be around the ring.
        for ends in (slice(0, slab.indptr[square]), slice(slab.indptr[rows - square], None)):
            columns[ends] %= kind(full)
    return sparse.csr_array((slab.data, columns, slab.indptr), shape=(rows, full))


def _product(context: Context, plan: Plan, side: int) -> Measurement:
    """Measure the product of a stencil, each rank having a slab of `side` planes, periodic across ranks."""
    comm, engine = context.comm, context.engine
    slab = stencil_rows(side, 0, side)
    matrix = CSRMatrix(ring_rows(slab, side * side, side * comm.rank, side * comm.size), comm=comm)
    matrices = {
        _program(name): matrix.with_transport(name) for name in _transports(context) if name in _PRODUCT_TRANSPORTS
    }
    alone = comm.subgroup(tuple(range(comm.size)))
    single = CSRMatrix(ring_rows(slab, side * side, 0, side), comm=alone)
    x = ones(matrix.domain, comm=comm, dtype="float32", engine=engine)
    y = ones(matrix.range, comm=comm, dtype="float32", engine=engine)
    sx, sy = (ones(single.domain, comm=alone, dtype="float32", engine=engine) for _ in range(2))
    checks = []
    degree = engine.xp.asarray(np.diff(slab.indptr), dtype="float32")
    programs: dict[str, Callable[[], Any]] = {}
    for name, item in matrices.items():
        programs[name] = lambda item=item: item.forward(x, y)
        result = item.forward(x, y).local_array
        checks.append(check(comm, f"product by {name} against rows' lengths", float(abs(result - degree).max()), 0.0))
    programs["one rank alone"] = lambda: single.forward(sx, sy)
    timings = interleave(programs, comm, engine, plan)
    local = timings["one rank alone"].wall.median
    measurement = Measurement(
        "27-point stencil times vector",
        {"rows_per_rank": slab.shape[0], "entries_per_rank": int(slab.nnz), "dtype": "float32"},
        timings,
        checks=checks,
        messages=messages_of_a_call(programs["collops"]),
    )
    for item in matrices.values():
        item.free()
    figures = {name: {"efficiency": local / timing.wall.median} for name, timing in timings.items()}
    return replace(measurement, figures=figures)


_PRODUCT_TRANSPORTS = ("auto", "nccl", "symmetric", "mpi", "shared", "mixed")
