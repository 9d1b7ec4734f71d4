"""CONTRIBUTING answers twelve questions, each with at most three files of the package, which have what it names."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

import collops
from collops.comm.transport import Transport
from collops.comm.transports import DEVICE_TRANSPORTS

pytestmark = pytest.mark.serial
PACKAGE = Path(collops.__file__).parent
PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
QUESTIONS = re.findall(r"^\*\*(\d+)\. .*?(?=^\*\*\d+\. |\Z)", PAGE.read_text(), re.M | re.S)
ANSWERS = [
    " ".join(each.split()) for each in re.findall(r"^\*\*\d+\. (.*?)(?=^\*\*\d+\. |\Z)", PAGE.read_text(), re.M | re.S)
]
FILE = r"(?!tests/|src/)((?:\w+/)+\w+\.py)"
answers = pytest.mark.parametrize("answer", ANSWERS, ids=range(1, 13))


def files_of(answer: str) -> set[str]:
    return set(re.findall(rf"`{FILE}`", answer))


def definitions(file: str) -> dict[str, str]:
    """Return the names that a file defines at its top level, each as "class", "function" or "value"."""
    kinds = {}
    for node in ast.parse((PACKAGE / file).read_text("utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            kinds[node.name] = "class" if isinstance(node, ast.ClassDef) else "function"
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            kinds |= {target.id: "value" for target in targets if isinstance(target, ast.Name)}
    return kinds


def test_there_are_twelve():
    assert [int(number) for number in QUESTIONS] == list(range(1, 13))


@answers
def test_the_files_exist_and_have_the_names(answer):
    files = files_of(answer)
    assert 1 <= len(files) <= 3
    texts = "".join((PACKAGE / file).read_text("utf-8") for file in files)
    names = set(re.findall(r"`(?!collops\.|pyproject|\w+\.(?:py|cu)`)(?:\w+\.)*([A-Za-z_]\w*)`", answer))
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", texts)] == []
    folders = {(PACKAGE / file).parent for file in files}
    beside = re.findall(r"`(\w+\.(?:py|cu))`", answer)
    assert [name for name in beside if not any((folder / name).is_file() for folder in folders)] == []
    for name in re.findall(r"`(collops(?:\.\w+)+)`", answer):
        if name != "collops.commands":  # a group of entry points
            resolve_name(name)


@answers
def test_a_name_before_a_file_is_defined_in_it(answer):
    pairs = re.findall(rf"`(\w+)` (?:in |\()`{FILE}`", answer)
    assert [(name, file) for name, file in pairs if name not in definitions(file)] == []


@answers
def test_what_it_calls_a_class_or_function_is_one(answer):
    kinds = {item for file in files_of(answer) for item in definitions(file).items()}
    named = re.findall(r"(?<!abstract )\b(?:data)?(class|function) `(\w+)`", answer)
    assert [(name, kind) for kind, name in named if (name, kind) not in kinds] == []


def test_a_transport_has_the_methods_that_it_lists():
    answer = ANSWERS[4]
    sentence = re.search(r"abstract methods (.*?), add the class method `(\w+)`", answer)
    assert sentence is not None
    assert set(re.findall(r"`(\w+)`", sentence[1])) == Transport.__abstractmethods__
    for name in DEVICE_TRANSPORTS.rows:
        kind = DEVICE_TRANSPORTS.load(name)
        assert issubclass(kind, Transport)
        assert inspect.ismethod(getattr(kind, sentence[2])), f"{sentence[2]} of {kind.__name__} is not a class method"
