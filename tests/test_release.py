"""Files that repeat versions, dependencies and bounds, against `pyproject.toml`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

pytestmark = pytest.mark.serial

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OURS = {"collops", "collops-bench", "collops-native"}


def requirements(*extras):
    """Return the requirements of collops with some extras, those that the extras name included."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    found = [Requirement(line) for line in lines]
    nested = [name for each in found if each.name == "collops" for name in each.extras]
    return [each for each in found if each.name not in OURS] + (requirements(*nested) if nested else [])


def locked(name):
    """Return the lines of a lock file as (requirement, hashes)."""
    text = (ROOT / "packaging" / name).read_text("utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    parts = [re.split(r"\s+--hash=", line) for line in lines]
    return [(Requirement(first.strip()), hashes) for first, *hashes in parts]


@pytest.mark.parametrize("name", ["test.lock", "oldest.lock"])
def test_locked_versions_lie_within_the_bounds_and_have_hashes(name):
    pins = locked(name)
    assert all(hashes and all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes) for _, hashes in pins)
    versions = {}
    for pin, _ in pins:
        (bound,) = pin.specifier
        assert bound.operator == "=="
        versions.setdefault(canonicalize_name(pin.name), []).append(bound.version)
    for requirement in requirements("mpi", "test"):
        found = versions[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in found), (requirement, found)


def test_the_oldest_lock_has_the_lower_bounds():
    pins = {canonicalize_name(pin.name): Version(next(iter(pin.specifier)).version) for pin, _ in locked("oldest.lock")}
    for requirement in requirements("mpi", "test"):
        (bound,) = requirement.specifier
        lowest = Version(bound.version).release
        assert pins[canonicalize_name(requirement.name)].release[: len(lowest)] == lowest, requirement


@pytest.mark.parametrize("name", ["test.lock", "oldest.lock"])
def test_locks_name_no_registry_and_no_path(name):
    text = (ROOT / "packaging" / name).read_text("utf-8")
    assert not re.search(r"--(extra-)?index-url|--find-links|https?:|file:|(^|\s)/", text, re.MULTILINE)
