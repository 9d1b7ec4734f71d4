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
    layers: Annotated[int | None, option("Of a synthetic model."), SyntheticOnly(unless="kind")] = None


@pytest.mark.parametrize(
    "allowed",
    [
        {},
        {"few": 2, "length": 1e-300, "weight": 0.0, "start": -3.0, "kind": "blue"},
        {"drawn": 0, "noise": 0.0},
        {"data_file": "a", "byte": 9},
        {"data_file": "a", "layers": 3},
        {"checkpoint": "c", "every": "10m", "resume": True},
        {"metrics": "65535"},
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
        ({"weight": float("inf")}, "--weight must be zero or a positive number, not inf"),
        ({"weight": float("nan")}, "--weight must be zero or a positive number, not nan"),
        ({"start": float("-inf")}, "--start must be a finite number, not -inf"),
        ({"kind": "green"}, "--kind must be one of red, blue, not 'green'"),
        ({"seed": -1}, "--seed must be zero or positive, not -1"),
        ({"out": ""}, "--out must name a folder, not ''"),
        ({"metrics": "65536"}, "--metrics must be a file or a port from 1 to 65535, not '65536'"),
        (
            {"drawn": 3, "data_file": "a"},
            "--drawn is for synthetic data: omit it, or omit --data-file",
        ),
        (
            {"noise": 0.1, "data_file": "a"},
            "--noise is for synthetic data: omit it, or omit --data-file",
        ),
        ({"byte": 9}, "--byte is for recorded data: omit it, or pass a file with --data-file"),
        ({"layers": 3, "kind": "red"}, "--layers is for synthetic data: omit it, or omit --kind"),
        ({"every": "5"}, "--every needs checkpoints: pass their folder with --checkpoint"),
        ({"resume": True}, "--resume needs checkpoints: pass their folder with --checkpoint"),
        (
            {"checkpoint": "b/../a", "out": "a"},
            "--checkpoint and --out name the same folder: use a separate folder for checkpoints",
        ),
    ],
)
def test_values_that_are_not(wrong, message):
    with pytest.raises(InputError) as caught:
        Options(**wrong).check()
    assert str(caught.value) == message


def test_files_that_are_read_are_not_replaced(tmp_path):
    inside = tmp_path / "out" / "result.zarr" / "image"
    options = {"data_file": str(inside), "out": str(tmp_path / "out")}
    with pytest.raises(InputError, match=r"would replace its input .*result\.zarr .--data-file.: choose another --out"):
        Options(**options).check()
    Options(**options | {"out": str(tmp_path / "other")}).check()
    with pytest.raises(InputError, match="every must be a positive number of iterations"):
        Options(checkpoint="c", every="soon").check()


def test_it_resumes_from_checkpoints_only(tmp_path):
    options = Options(checkpoint=str(tmp_path), resume=True)
    (tmp_path / "notes.txt").touch()
    assert not options.resumes()
    (tmp_path / "iteration-3").mkdir()
    assert options.resumes() and not Options(checkpoint=str(tmp_path)).resumes()


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
    assert asked.keys() - {"help"} == {"ranks", "transport", "as_json", "quiet", "log", "debug"}
    assert command.help
