"""What recorded limits say of a machine, and how near to them its other records come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from collops_bench.limits import COPY, MULTIPLY
from collops_bench.page_figures import limits_shares
from collops_bench.page_tables import in_words
from collops_bench.record import Measurement, Record
from collops_bench.speed import bytes_in_words, seconds_in_words, three_digits
from collops_bench.work import ALLREDUCE, EXCHANGE, work_of
from collops.errors import InputError
from collops_bench.predict import Line, Machine, Network

__all__ = ["comparison", "limits_in_words", "machine_of"]


def machine_of(records: Iterable[Record], network: Network | None = None) -> Machine:
    """Return the machine of which there are records of limits.

    Parameters
    ----------
    records : iterable of Record
        Of one machine; copies are taken from that with the fewest ranks.
    network : Network, optional
        What is assumed of the network between its nodes.

    Raises
    ------
    InputError
        If there is no record of limits.
    """
    limits = sorted((one for one in records if one.benchmark == "limits"), key=lambda one: one.ranks)
    if not limits:
        raise InputError("there is no record of this machine's limits: run collops bench limits")
    copies = [(2.0 * size, seconds) for size, seconds in _points(limits[0], COPY)]
    lines = {
        kind: {one.ranks: Line.fit(points) for one in limits if (points := _points(one, kind))}
        for kind in (ALLREDUCE, EXCHANGE)
    }
    return Machine(copies, lines[ALLREDUCE], lines[EXCHANGE], network)


def _points(record: Record, case: str) -> list[tuple[float, float]]:
    return [
        (float(one.parameters["size"]), one.timings[one.ours].wall.median)
        for one in record.measurements
        if one.case == case
    ]


def limits_in_words(record: Record) -> list[tuple[str, str]]:
    """Return what a machine can do, from a record of its limits: what, and how much."""
    said = []
    copies = [one for one in record.measurements if one.case == COPY]
    if copies:
        largest, best = copies[-1], max(copies, key=_bandwidth)
        said.append((f"memory of a rank, copy of {_size(largest)}", _rate(_bandwidth(largest), "B/s")))
        said.append((f"the fastest copy, of {_size(best)}", _rate(_bandwidth(best), "B/s")))
    for one in record.measurements:
        if one.case == MULTIPLY:
            rate = one.figures[one.ours]["rate"]
            said.append((f"arithmetic of a rank, matrices of {one.parameters['side']}", _rate(rate, "FLOP/s")))
    for kind, words in ((ALLREDUCE, f"allreduce over {record.ranks} ranks"), (EXCHANGE, "exchange with a neighbour")):
        points = [one for one in record.measurements if one.case == kind]
        if points:
            said.append(
                (f"{words}, {_size(points[0])}", seconds_in_words(points[0].timings[points[0].ours].wall.median))
            )
            best = max(points, key=_bandwidth)
            said.append((f"{words}, {_size(best)}", _rate(_bandwidth(best), "B/s")))
    return said


def _bandwidth(measurement: Measurement) -> float:
    return measurement.figures[measurement.ours]["bandwidth"]


def _size(measurement: Measurement) -> str:
    return bytes_in_words(measurement.parameters["size"])


def _rate(value: float, unit: str) -> str:
    factor, prefix = next((each for each in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if value >= each[0]), (1.0, ""))
    return f"{three_digits(value / factor)} {prefix}{unit}"


def comparison(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return how near this package's programs come to the limits: what, and its share of which limit.

    Parameters
    ----------
    records : sequence of Record
        Of one machine and one number of ranks, limits among them.
    """
    said = [(f"{one.work}, {one.program}", f"{100 * one.share:.0f} % of {one.limit}") for one in limits_shares(records)]
    if not any(record.benchmark == "limits" for record in records):
        return said
    machine = machine_of(records)
    for record in records:
        for measurement in record.measurements if record.benchmark == "scaling" else ():
            work, seconds = (
                work_of(measurement.parameters, record.ranks),
                measurement.timings[measurement.ours].wall.median,
            )
            messages = sum(n * machine.message_seconds(kind, size, work.ranks) for kind, n, size in work.messages)
            copied = f"{100 * machine.copy_seconds(work.nbytes) / seconds:.0f} % of its time would copy its bytes"
            sent = f", {100 * messages / seconds:.0f} % send its messages alone" if messages else ""
            said.append((in_words(measurement), copied + sent))
    return said
