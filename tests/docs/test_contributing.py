"""CONTRIBUTING answers twelve questions, each with at most three files of the package, which have what it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import collops

pytestmark = pytest.mark.serial
PACKAGE = Path(collops.__file__).parent
PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
QUESTIONS = re.findall(r"^\*\*(\d+)\. .*?(?=^\*\*\d+\. |\Z)", PAGE.read_text(), re.M | re.S)
ANSWERS = re.findall(r"^\*\*\d+\. (.*?)(?=^\*\*\d+\. |\Z)", PAGE.read_text(), re.M | re.S)


def test_there_are_twelve():
    assert [int(number) for number in QUESTIONS] == list(range(1, 13))


@pytest.mark.parametrize("answer", ANSWERS, ids=range(1, 13))
def test_the_files_exist_and_have_the_names(answer):
    files = set(re.findall(r"`((?:\w+/)+\w+\.py)`", answer))
    files = {file for file in files if not file.startswith("tests/")}
    assert 1 <= len(files) <= 3
    texts = "".join((PACKAGE / file).read_text("utf-8") for file in files)
    names = set(re.findall(r"`(?!collops\.|pyproject)(?:\w+\.)*([A-Za-z_]\w*)`", answer))
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", texts)] == []
