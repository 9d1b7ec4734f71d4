"""Reading records back: whatever is in the file becomes a record, or one sentence about what is wrong with it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from collops_bench.record import SCHEMA, Record
from collops.errors import InputError

__all__ = ["read_record"]

_MACHINE = {"processor": str, "cores": int, "system": str, "devices": list[str], "driver": str | None}


def read_record(path: str | Path) -> Record:
    """Read what :func:`collops_bench.write_record` wrote.

    Raises
    ------
    InputError
        If the file cannot be read, or is no record of this schema, with what is wrong and where.

    Examples
    --------
    >>> import collops
    >>> from collops_bench import read_record
    >>> try:
    ...     read_record("no-such-record.json")
    ... except collops.errors.InputError as error:
    ...     print(error)
    cannot read no-such-record.json: No such file or directory
    """
    try:
        content = json.loads(Path(path).read_bytes(), parse_constant=_refuse)
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from problem
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{path} is no JSON file ({problem})") from problem
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise InputError(f"{path} is no benchmark record of schema {SCHEMA}: run the benchmark again")
    try:
        record = _as(Record, {name: value for name, value in content.items() if name not in ("schema", "clocks")}, "it")
        for name, kind in _MACHINE.items():
            _as(kind, record.machine.get(name), f"machine.{name}")
        for number, measurement in enumerate(record.measurements):
            for program, timing in measurement.timings.items():
                where = f"the timing of {program} in measurements[{number}]"
                if "wall" not in timing.clocks:
                    raise ValueError(f"{where} has no clock 'wall'")
                if min(clock.minimum for clock in timing.clocks.values()) <= 0:
                    raise ValueError(f"{where} has a time that is not positive")
    except ValueError as problem:
        raise InputError(f"{path} is no whole benchmark record: {problem}") from problem
    return record


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _as(kind: Any, value: Any, where: str) -> Any:
    """Return a value of JSON as what the type hint `kind` says, or raise with the place that has something else."""
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _as_dataclass(kind, value, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        inner = next(one for one in arguments if one is not type(None))
        return None if value is None else _as(inner, value, where)
    if origin is list and isinstance(value, list):
        return [_as(arguments[0], one, f"{where}[{number}]") for number, one in enumerate(value)]
    if origin is Mapping and isinstance(value, dict):
        return {name: _as(arguments[1], one, f"{where}.{name}") for name, one in value.items()}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and number and math.isfinite(value):
        return float(value)
    if kind in (int, str) and isinstance(value, kind) and not isinstance(value, bool):
        return value
    raise ValueError(f"{where} is {json.dumps(value)[:40]}, not {_WORDS.get(origin or kind, 'what it should be')}")


_WORDS = {Mapping: "an object", list: "a list", float: "a number", int: "a whole number", str: "text"}


def _as_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {json.dumps(value)[:40]}, not an object")
    hints, needed = _fields_of(kind)
    if unknown := sorted(value.keys() - hints.keys()):
        raise ValueError(f"{where} has a field {unknown[0]!r} that records do not have")
    if absent := sorted(needed - value.keys()):
        raise ValueError(f"{where} has no field {absent[0]!r}")
    inside = "" if where == "it" else f"{where}."
    return kind(**{name: _as(hints[name], one, f"{inside}{name}") for name, one in value.items()})


@cache
def _fields_of(kind: Any) -> tuple[dict[str, Any], set[str]]:
    """Return the types of a dataclass's fields by their names, and the names of those without a default."""
    needed = {each.name for each in fields(kind) if each.default is each.default_factory is MISSING}
    return get_type_hints(kind), needed
