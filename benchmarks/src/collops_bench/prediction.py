"""Scaling over the ranks: measured times, a model that is fitted to them and checked, predictions, and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collops.errors import InputError
from collops_bench.limits import COPY
from collops_bench.model import (
    ALLREDUCE,
    EXCHANGE,
    Line,
    Machine,
    Model,
    Network,
    Work,
    cgls,
    jacobi,
    migration,
    sparse,
)
from collops_bench.record import Measurement, Record
from collops_bench.scaling import CGLS, MIGRATION, SPARSE
from collops_bench.speed import markdown, place, seconds_in_words, three_digits

__all__ = [
    "BEGIN",
    "END",
    "NETWORK",
    "STRONG",
    "WEAK",
    "Family",
    "Fitted",
    "Scaling",
    "machine_of",
    "predictions",
    "scaling_of",
    "scaling_tables",
]

BEGIN, END = "<!-- scaling: begin -->", "<!-- scaling: end -->"
_MANY = (64, 1024)

STRONG, WEAK = "strong", "weak"
NETWORK = Network(ranks=8, adapters=8, latency=5e-6, bandwidth=50e9)
"""The assumed network: eight GPUs per host, an adapter of 400 Gb/s for each, 5 microseconds between hosts."""

# Work that memory limits. The time of other work is more than memory and messages explain.
_MEMORY_BOUND = (CGLS, SPARSE, "Jacobi, nccl_graphs")
_JACOBI = {"nccl_graphs": False, "blocked": True}  # variants that also run over hosts, and whether they are blocked


@dataclass(frozen=True)
class Family:
    """One problem on different numbers of ranks."""

    kind: str  # kind of work; each kind has a model of its own
    words: str  # the problem's size
    scaling: str  # `STRONG` for one size on any number of ranks, `WEAK` for sizes that grow with the ranks
    work: Callable[[int], Work]  # returns the work of an iteration on so many ranks
    # seconds of an iteration by the number of ranks; empty for a problem that is only predicted
    measured: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Fitted:
    """The model of one kind of work."""

    checked: Model  # fitted to all runs but those on the most ranks
    model: Model  # fitted to all runs
    # for every family the time on the most ranks, measured and as `checked` predicts it
    errors: list[tuple[Family, float, float]]


@dataclass(frozen=True)
class Scaling:
    """The scaling of all work, from the records of one machine."""

    machine: Machine  # the machine with its limits
    records: list[Record]  # the records used
    families: list[Family]  # measured families
    larger: list[Family]  # families that are only predicted
    models: dict[str, Fitted]  # by kind

    def seconds(self, family: Family, ranks: int) -> float:
        """Return the predicted time of an iteration."""
        return self.models[family.kind].model.seconds(self.machine, family.work(ranks))


def scaling_of(records: Iterable[Record], network: Network = NETWORK) -> Scaling:
    """Fit models to the records of the machine with the most ranks, and predict for hosts like it on a network.

    Raises
    ------
    InputError
        If no machine has records of its limits and of work on several numbers of ranks.
    """
    machines: dict[str, list[Record]] = {}
    for record in records:
        if record.benchmark in ("limits", "scaling", "jacobi"):
            machines.setdefault(record.machine_name, []).append(record)
    # Only machines with a record of their limits are candidates.
    able = [runs for runs in machines.values() if {"limits", "scaling"} <= {record.benchmark for record in runs}]
    if not able:
        raise InputError("no machine has records of limits and of scaling: run collops bench limits and scaling")
    records_of_machine = max(able, key=lambda item: (max(record.ranks for record in item), len(item)))
    families = [family for family in _families(records_of_machine) if len(family.measured) > 1]
    if not families:
        raise InputError("scaling was measured on one number of ranks only: run collops bench scaling --ranks 2")
    machine = machine_of(records_of_machine)  # all runs were on one host
    kinds = dict.fromkeys(family.kind for family in families)
    models = {kind: _fit(machine, [family for family in families if family.kind == kind]) for kind in kinds}
    larger = [family for family in _larger() if family.kind in models]
    return Scaling(
        replace(machine, network=network),
        sorted(records_of_machine, key=lambda record: (record.benchmark, record.ranks)),
        families,
        larger,
        models,
    )


def machine_of(records: Iterable[Record], network: Network | None = None) -> Machine:
    """Return the machine of records of its limits; the times of copies are from the record with the fewest ranks.

    Raises
    ------
    InputError
        If there is no record of limits.
    """
    limits = sorted((record for record in records if record.benchmark == "limits"), key=lambda record: record.ranks)
    if not limits:
        raise InputError("the prediction needs a record of this machine's limits: run collops bench limits")
    copies = [(2.0 * size, seconds) for size, seconds in _points(limits[0], COPY)]
    lines = {
        kind: {record.ranks: Line.fit(points) for record in limits if (points := _points(record, kind))}
        for kind in (ALLREDUCE, EXCHANGE)
    }
    return Machine(copies, lines[ALLREDUCE], lines[EXCHANGE], network)


def _points(record: Record, case: str) -> list[tuple[float, float]]:
    return [
        (float(measurement.parameters["size"]), measurement.timings[measurement.ours].wall.median)
        for measurement in record.measurements
        if measurement.case == case
    ]


def _fit(machine: Machine, families: Sequence[Family]) -> Fitted:
    most = max(ranks for family in families for ranks in family.measured)
    runs = [(family, ranks, seconds) for family in families for ranks, seconds in family.measured.items()]
    without = ("operation",) if families[0].kind in _MEMORY_BOUND else ()
    few = [(family.work(ranks), seconds) for family, ranks, seconds in runs if ranks < most]
    checked = Model.fit(machine, few, without=without)
    model = Model.fit(machine, [(family.work(ranks), seconds) for family, ranks, seconds in runs], without=without)
    errors = [
        (family, seconds, checked.seconds(machine, family.work(ranks)))
        for family, ranks, seconds in runs
        if ranks == most
    ]
    return Fitted(checked, model, errors)


# Families


def _families(records: Sequence[Record]) -> list[Family]:
    result: dict[tuple[str, str, str], Family] = {}
    for record in sorted(records, key=lambda item: item.ranks):
        for measurement in record.measurements:
            for family, seconds in _families_of(record, measurement):
                key = (family.kind, family.words, family.scaling)
                result.setdefault(key, family).measured[record.ranks] = seconds
    return sorted(result.values(), key=lambda item: (item.kind, item.scaling))


def _families_of(record: Record, measurement: Measurement) -> list[tuple[Family, float]]:
    """Return the families of a measurement (or of each of its programs) with their times."""
    parameters, ranks = measurement.parameters, record.ranks
    if record.benchmark == "jacobi":
        return [
            (_grid(variant, parameters, measurement.case, ranks), measurement.timings[variant].wall.median)
            for variant in _JACOBI
            if variant in measurement.timings
        ]
    if record.benchmark != "scaling":
        return []
    make = {MIGRATION: _survey, CGLS: _matrix, SPARSE: _cube}[measurement.case]
    family = make(parameters, parameters["scaling"], ranks)
    return [(family, measurement.timings[measurement.ours].wall.median)]


def _share(number: int, scaling: str, ranks: int) -> tuple[Callable[[int], int], str]:
    """Return a function from the number of ranks to the size of the problem, and the size as text."""
    if scaling == STRONG:
        return (lambda p: number), f"{number}"
    share = number // ranks
    return (lambda p: share * p), f"{share} a rank"


def _survey(parameters: Any, scaling: str, ranks: int) -> Family:
    nx, nz = parameters["image"]
    shots, words = _share(parameters["shots"], scaling, ranks)
    receivers, samples = parameters["receivers"], parameters["samples"]
    return Family(
        MIGRATION,
        f"image of {nx} x {nz}, shots: {words}",
        scaling,
        lambda p: migration(nx * nz, shots(p), receivers, samples, p),
    )


def _matrix(parameters: Any, scaling: str, ranks: int) -> Family:
    rows, words = _share(parameters["rows"], scaling, ranks)
    columns = parameters["columns"]
    return Family(CGLS, f"{columns} columns, rows: {words}", scaling, lambda p: cgls(rows(p), columns, p))


def _cube(parameters: Any, scaling: str, ranks: int) -> Family:
    side, _, planes = parameters["cube"]
    count, words = _share(planes, scaling, ranks)
    return Family(SPARSE, f"planes of {side} x {side}: {words}", scaling, lambda p: sparse(side, count(p), p))


def _grid(variant: str, parameters: Any, case: str, ranks: int) -> Family:
    scaling = STRONG if case.startswith(STRONG) else WEAK
    nx = parameters["nx"]
    rows, words = _share(parameters["ny"], scaling, ranks)
    return Family(
        f"Jacobi, {variant}",
        f"{nx} columns, rows: {words}",
        scaling,
        lambda p: jacobi(nx, rows(p), p, blocked=_JACOBI[variant]),
    )


def _larger() -> list[Family]:
    """Return problems that are large enough for a thousand ranks, but fit on one GPU."""
    return [
        _survey({"image": [401, 300], "shots": 1024, "receivers": 101, "samples": 1001}, STRONG, 1),
        _matrix({"rows": 1 << 20, "columns": 8000}, STRONG, 1),
        _cube({"cube": [256, 256, 4096]}, STRONG, 1),
        *(_grid(variant, {"nx": 65536, "ny": 65536}, STRONG, 1) for variant in _JACOBI),
    ]


# Tables


def scaling_tables(scaling: Scaling) -> str:
    """Return the measured times, the models with their errors, and predictions for more ranks."""
    parts = [
        "### Measured",
        _measured(scaling),
        "### The model and its errors",
        _models(scaling),
        _errors(scaling),
        "### Predicted",
        predictions(scaling),
        _source(scaling),
    ]
    return "\n\n".join(parts)


def _gain(family: Family, first: float, seconds: float, ranks: int) -> float:
    """Return the parallel efficiency."""
    return first / seconds / (ranks if family.scaling == STRONG else 1)


def _measured(scaling: Scaling) -> str:
    counts = sorted({ranks for family in scaling.families for ranks in family.measured})
    head = ["work", "problem", "scaling", *(f"{n} GPU{'s' if n > 1 else ''}" for n in counts), "efficiency"]
    rows = []
    for family in scaling.families:
        times = [seconds_in_words(family.measured[n]) if n in family.measured else "" for n in counts]
        first, last = min(family.measured), max(family.measured)
        gain = _gain(
            family, family.measured[first] * (first if family.scaling == STRONG else 1), family.measured[last], last
        )
        rows.append([family.kind, family.words, family.scaling, *times, f"{100 * gain:.0f} %"])
    return markdown(head, rows, 3)


def _models(scaling: Scaling) -> str:
    head = ["work", "overhead", "time per operation", "factor of a copy", "factor of the messages alone"]
    rows = []
    for kind, fitted in scaling.models.items():
        model = fitted.model
        rows.append(
            [
                kind,
                seconds_in_words(model.overhead) if model.overhead else "none",
                f"{three_digits(1e12 * model.operation)} ps" if model.operation else "",
                three_digits(model.memory) if model.memory else "",
                three_digits(model.messages),
            ]
        )
    return markdown(head, rows, 1)


def _errors(scaling: Scaling) -> str:
    head = ["held out", "problem", "scaling", "measured", "predicted", "error"]
    rows = []
    for kind, fitted in scaling.models.items():
        for family, seconds, predicted in fitted.errors:
            off = f"{round(100 * (predicted / seconds - 1)):+d} %"
            times = [seconds_in_words(seconds), seconds_in_words(predicted)]
            rows.append([f"{kind}, {max(family.measured)} GPUs", family.words, family.scaling, *times, off])
    return markdown(head, rows, 3)


def predictions(scaling: Scaling, counts: Sequence[int] = _MANY) -> str:
    """Return a table of the predicted times of an iteration and efficiencies on one rank and on `counts` ranks."""
    head = ["work", "problem", "scaling", "1 GPU"]
    for count in counts:
        head += [f"{count} GPUs", "efficiency"]
    rows = []
    for family in (*scaling.families, *scaling.larger):
        first = scaling.seconds(family, 1)
        cells = [family.kind, family.words, family.scaling, seconds_in_words(first)]
        for count in counts:
            seconds = scaling.seconds(family, count)
            cells += [seconds_in_words(seconds), f"{100 * _gain(family, first, seconds, count):.0f} %"]
        rows.append(cells)
    return markdown(head, rows, 3)


def _source(scaling: Scaling) -> str:
    runs = {}
    for record in scaling.records:
        runs.setdefault(f"{record.benchmark}, commit {str(record.commit)[:9]}, {record.started[:10]}", []).append(
            str(record.ranks)
        )
    texts = "; ".join(f"{run} (on {', '.join(ranks)})" for run, ranks in runs.items())
    machine = place(scaling.records[-1]).split(" x ")[-1]
    return f"From the records of {machine}: {texts}. Written by `collops bench plot`."
