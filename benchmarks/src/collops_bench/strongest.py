"""The strongest peer of each kind of work, and where it is faster than collops, from the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from collops_bench.record import Measurement, Record
from collops_bench.speed import in_words, markdown, place, three_digits

__all__ = ["PEERS", "Standing", "standings", "strongest_table"]

# The kind of work by the benchmark and the beginning of the case; the first that fits.
_KINDS = (
    ("products", "FFTND", "Fourier transforms"),
    ("products", "", "sparse products"),
    ("operators", "Sliding", "sliding windows"),
    ("operators", "", "operators of PyLops-MPI"),
    ("arrays", "", "dot products and x + 2 y"),
    ("cgls", "", "CGLS over stacks"),
    ("lsm", "", "Kirchhoff migration"),
    ("traveltimes", "", "travel times"),
    ("waves", "", "acoustic waves"),
    ("media", "", "elastic waves"),
    ("solvers", "", "Krylov methods on sparse matrices"),
    ("multigrid", "", "multigrid"),
    ("halos", "", "halo exchanges"),
    ("starforest", "scatter", "scatters by index"),
    ("starforest", "", "star forests"),
    ("collectives", "", "collectives"),
    ("jax", "the table", "one allreduce of JAX, and the wait for it"),
    ("jax", "", "allreduces in compiled JAX programs"),
    ("fft", "", "Fourier transforms of sharded JAX arrays"),
    ("startup", "", "start of a program"),
)
PEERS = (
    "CuPy",
    "Devito",
    "GHEX",
    "JAX",
    "MPI",
    "MPI neighbourhood",
    "MPI point-to-point",
    "NCCL",
    "NVSHMEM",
    "PETSc",
    "PETSc basic",
    "PETSc neighbor",
    "PETSc, BoomerAMG",
    "PETSc, GAMG",
    "PETSc, basis as orthonormal as ours",
    "PyAMG",
    "PyLops, serial",
    "PyLops-MPI",
    "PyLops-MPI, MPI",
    "PyLops-MPI, first array",
    "PyTorch",
    "SciPy",
    "cuFFTMp",
    "deepwave",
    "jax.numpy",
    "jaxDecomp, transposed",
    "lax.psum",
    "lax.psum under jit",
    "mpi4jax",
    "mpi4py-fft",
    "nccl4py, high-level",
    "nvmath-python",
    "scikit-fmm",
    "torch.distributed",
)
"""Programs of others, as records call them.

They are compared with the measurement's own program, unless the layout of their result is another one's."""
_OURS = {"jaxDecomp, transposed": "collops, transposed"}
_WINS = 0.95  # of the time of ours; between this ratio and its inverse programs count as equally fast


@dataclass(frozen=True)
class Standing:
    """One kind of work on one machine."""

    kind: str
    place: str
    peers: tuple[str, ...]  # the strongest ones of its measurements, the most frequent first
    ratios: tuple[float, ...]  # time of the strongest peer over ours, of every measurement, the smallest first
    slowest: str  # the measurement of the smallest ratio
    record: str

    @property
    def wins(self) -> int:
        """The number of measurements in which the peer is faster."""
        return sum(ratio < _WINS for ratio in self.ratios)


def standings(records: Mapping[str, Record]) -> list[Standing]:
    """Return a standing for each kind of work on GPUs and on hosts, where peers win most often first.

    Of several records that measured a peer, the one with the most ranks counts, of these the one with the most devices
    in a process, and of these the newest.

    Parameters
    ----------
    records : mapping of str to Record
        By file name.
    """
    best: dict[tuple[str, bool], tuple[tuple[int, int, str], Standing]] = {}
    for name, record in records.items():
        if not record.p2p or record.options.get("quick"):
            continue
        kinds: dict[str, list[tuple[float, str, Measurement]]] = {}
        for measurement in record.measurements:
            if measurement.peer is not None and (found := _strongest(measurement)) is not None:
                kinds.setdefault(_kind(record.benchmark, measurement.case), []).append((*found, measurement))
        for kind, found in kinds.items():
            found.sort(key=lambda item: item[0])
            peers = tuple(peer for peer, _ in Counter(peer for _, peer, _ in found).most_common())
            ratios = tuple(ratio for ratio, _, _ in found)
            standing = Standing(kind, place(record), peers, ratios, in_words(found[0][2]), name)
            parties = max(int(item.parameters.get("parties", 1)) for _, _, item in found)
            weight = record.ranks, parties, record.started
            key = kind, bool(record.machine["devices"])
            if key not in best or best[key][0] < weight:
                best[key] = weight, standing
    return sorted(
        (standing for _, standing in best.values()), key=lambda one: (-one.wins / len(one.ratios), one.ratios)
    )


def _strongest(measurement: Measurement) -> tuple[float, str] | None:
    """Return the time of the strongest peer over ours, and its name, or None if none was measured."""
    return min(_ratios(measurement), default=None)


def _ratios(measurement: Measurement) -> Iterator[tuple[float, str]]:
    for peer in PEERS:
        ours = _OURS.get(peer, measurement.ours)
        if peer in measurement.timings and ours in measurement.timings:
            yield measurement.timings[peer].wall.median / measurement.timings[ours].wall.median, peer


def _kind(benchmark: str, case: str) -> str:
    return next((kind for name, start, kind in _KINDS if name == benchmark and case.startswith(start)), benchmark)


def strongest_table(records: Mapping[str, Record]) -> str:
    """Return the standings in Markdown."""
    rows = [
        [
            one.kind,
            one.place,
            ", ".join(one.peers[:2]),
            f"{three_digits(median(one.ratios))} ({three_digits(one.ratios[0])} to {three_digits(one.ratios[-1])})",
            f"**{one.wins} of {len(one.ratios)}**: {one.slowest}" if one.wins else f"none of {len(one.ratios)}",
            f"`{one.record.removesuffix('.json')}`",
        ]
        for one in standings(records)
    ]
    return markdown(["work", "machine", "strongest peer", "ratio", "peer wins", "record"], rows, words=6)
