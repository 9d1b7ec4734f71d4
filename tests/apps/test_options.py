"""Options are stated once: their bounds hold, and the command line has each of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from collops.apps.options import (
    AtLeast,
    CommonOptions,
    Finite,
    NotNegative,
    OneOf,
    Positive,
    RecordedOnly,
    SyntheticOnly,
    option,
)
from collops.errors import InputError
from tests.apps.jobs import APPLICATIONS, application_of

pytestmark = pytest.mark.serial


@dataclass(frozen=True, kw_only=True)
class Options(CommonOptions):
    recorded = "data_file"

    data_file: Annotated[str | None, option("File of the data.")] = None
    few: Annotated[int | None, option("At least two."), AtLeast(2)] = None
    length: Annotated[float | None, option("Positive."), Positive] = None
    weight: Annotated[float, option("Not negative."), NotNegative] = 0.0
    start: Annotated[float | None, option("Finite."), Finite] = None
    kind: Annotated[str | None, option("One of two."), OneOf("red", "blue")] = None
    drawn: Annotated[int | None, option("Of synthetic data."), SyntheticOnly()] = None
    byte: Annotated[int | None, option("Of recorded data."), RecordedOnly()] = None


@pytest.mark.parametrize(
    "allowed",
    [
        {},
        {"few": 2, "length": 1e-300, "weight": 0.0, "start": -3.0, "kind": "blue"},
        {"drawn": 0, "noise": 0.0},
        {"data_file": "a", "byte": 9},
    ],
)
def test_values_that_are_allowed(allowed):
    Options(**allowed).check()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"few": 1}, "--few must be at least 2, not 1"),
        ({"length": 0.0}, "--length must be a positive number, not 0.0"),
        ({"length": float("inf")}, "--length must be a positive number, not inf"),
        ({"weight": -1.0}, "--weight must be zero or a positive number, not -1.0"),
        ({"weight": float("nan")}, "--weight must be zero or a positive number, not nan"),
        ({"start": float("-inf")}, "--start must be a finite number, not -inf"),
        ({"kind": "green"}, "--kind must be one of red, blue, not 'green'"),
        ({"seed": -1}, "--seed must be zero or positive, not -1"),
        ({"out": ""}, "--out must name a folder, not ''"),
        (
            {"drawn": 3, "data_file": "a"},
            "--drawn belongs to synthetic data: leave it out, or leave out --data-file",
        ),
        (
            {"noise": 0.1, "data_file": "a"},
            "--noise belongs to synthetic data: leave it out, or leave out --data-file",
        ),
        ({"byte": 9}, "--byte belongs to recorded data: leave it out, or name a file with --data-file"),
    ],
)
def test_values_that_are_not(wrong, message):
    with pytest.raises(InputError) as caught:
        Options(**wrong).check()
    assert str(caught.value) == message


@pytest.mark.parametrize("name", APPLICATIONS)
def test_the_command_has_each_option_with_its_help_and_default(name):
    from collops.cli.main import application

    kind = application_of(name).Options
    command = typer.main.get_command(application()).commands[name]
    asked = {parameter.name: parameter for parameter in command.params}
    for each in dataclasses.fields(kind):
        parameter = asked.pop(each.name)
        assert parameter.opts == ["--" + each.name.replace("_", "-")] and not parameter.secondary_opts
        assert parameter.help and parameter.default == each.default
    assert asked.keys() - {"help"} == {"ranks", "transport", "as_json", "quiet", "debug"}
    assert command.help
