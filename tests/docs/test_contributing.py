"""CONTRIBUTING answers ten questions, each with at most three files of the package, which exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import collops

pytestmark = pytest.mark.serial
PACKAGE = Path(collops.__file__).parent
PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
QUESTIONS = re.findall(r"^\*\*(\d+)\. .*?(?=^\*\*\d+\. |^## )", PAGE.read_text(), re.M | re.S)
ANSWERS = re.findall(r"^\*\*\d+\. (.*?)(?=^\*\*\d+\. |^## )", PAGE.read_text(), re.M | re.S)


def test_there_are_ten():
    assert [int(number) for number in QUESTIONS] == list(range(1, 11))


@pytest.mark.parametrize("answer", ANSWERS, ids=range(1, 11))
def test_the_files_exist(answer):
    files = set(re.findall(r"`((?:\w+/)+\w+\.py)`", answer))
    files = {file for file in files if not file.startswith("tests/")}
    assert 1 <= len(files) <= 3
    for file in files:
        assert (PACKAGE / file).is_file(), file
