"""Files that repeat versions, dependencies and bounds, against `pyproject.toml`."""

from __future__ import annotations

import hashlib
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import collops
from collops_bench.record import read_record
from collops_bench.speed import time_in_words

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


RECIPES = ROOT / "packaging" / "recipes"
# Distributions that a packager names differently.
RENAMED = {"matplotlib-base": "matplotlib"}
# A version in the text of each recipe of collops and of collops-native.
VERSIONS = {
    "conda/collops/recipe.yaml": r'version: "(.*)"',
    "conda/collops-native/recipe.yaml": r'version: "(.*)"',
    "spack/py_collops/package.py": r'version\("(.*?)"',
    "spack/py_collops_native/package.py": r'version\("(.*?)"',
    "easybuild/collops-0.1.0-foss-2026.1.eb": r"^version = '(.*)'",
    "containers/Dockerfile": r"collops\[\S+\]==(\S+)\"",
    "containers/collops.def": r"collops\[\S+\]==(\S+)\"",
    "containers/collops-cuda.def": r"collops\[\S+\]==(\S+)\"",
    "modules/0.1.0.lua": r'^local version = "(.*)"',
}


def lower_bounds(*extras):
    """Return the lower bound of each requirement, by name."""
    return {canonicalize_name(each.name): next(iter(each.specifier)).version for each in requirements(*extras)}


def recipe(name):
    return (RECIPES / name).read_text("utf-8")


@pytest.mark.parametrize(("name", "pattern"), VERSIONS.items())
def test_a_recipe_is_of_this_version(name, pattern):
    native = tomllib.loads((ROOT / "native" / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert re.findall(pattern, recipe(name), re.MULTILINE) == [native if "native" in name else collops.__version__]
    assert collops.__version__ in name or "0.1.0" not in name


def test_every_recipe_has_its_version_tested():
    files = {str(path.relative_to(RECIPES)) for path in RECIPES.rglob("*") if path.is_file()}
    assert files - set(VERSIONS) == {"README.md", "conda/collops/conda_build_config.yaml"}


def test_recipes_of_conda_have_the_bounds():
    text = recipe("conda/collops/recipe.yaml")
    (run,) = re.findall(r"  run:\n(.*?)  run_constraints:\n", text, re.DOTALL)
    found = {RENAMED.get(name, name): bound for name, bound in re.findall(r"- ([\w-]+) >=(\S+)", run)}
    assert found.pop("python") == PROJECT["requires-python"].removeprefix(">=")
    mpi = {"mpi4py": lower_bounds("mpi")["mpi4py"]}
    assert found == lower_bounds() | mpi
    (optional,) = re.findall(r"  run_constraints:\n(.*?)\n\n", text, re.DOTALL)
    everything = lower_bounds("jax", "numba", "segy")
    for name, bound in re.findall(r"- ([\w-]+) >=(\S+)", optional):
        assert everything[name] == bound
    assert re.findall(r"    - jaxlib >=(\S+)", recipe("conda/collops-native/recipe.yaml")) == [everything["jax"]]


def test_recipes_of_spack_have_the_bounds():
    found = re.findall(
        r'depends_on\("py-([\w-]+)@([\d.]+):"(?:, when="\+(\w+)")?\)', recipe("spack/py_collops/package.py")
    )
    assert {name: bound for name, bound, extra in found if not extra} == lower_bounds()
    extras = {(extra, name): bound for name, bound, extra in found if extra and name not in OURS}
    assert set(extras) == {("mpi", "mpi4py"), ("jax", "jax"), ("numba", "numba"), ("segy", "segyio")}
    assert all(lower_bounds(extra)[name] == bound for (extra, name), bound in extras.items())
    native = recipe("spack/py_collops_native/package.py")
    assert re.findall(r"py-jaxlib@([\d.]+):", native) == [lower_bounds("jax")["jax"]]
    for text in (native, recipe("spack/py_collops/package.py")):
        assert re.findall(r'"python@([\d.]+):"', text) == [PROJECT["requires-python"].removeprefix(">=")]


def test_recipes_of_easybuild_have_versions_within_the_bounds():
    text = recipe("easybuild/collops-0.1.0-foss-2026.1.eb")
    found = {
        canonicalize_name(name): version for name, version in re.findall(r"^    \('([\w-]+)', '([\d.]+)'", text, re.M)
    }
    bundled = {
        "numpy",
        "scipy",
        "rich",
        "jinja2",
        "threadpoolctl",
        "mpich",
    }  # by SciPy-bundle, Python-bundle-PyPI, foss
    for requirement in requirements("mpi", "numba"):
        if canonicalize_name(requirement.name) not in bundled:
            assert requirement.specifier.contains(found[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("name", ["containers/Dockerfile", "containers/collops.def", "containers/collops-cuda.def"])
def test_recipes_of_containers_name_extras_that_exist(name):
    text = recipe(name)
    extras = re.findall(r"collops\[([\w,-]+)\]|EXTRAS=([\w,-]+)", text)
    assert extras
    for extra in ",".join(first or second for first, second in extras).split(","):
        assert extra in PROJECT["optional-dependencies"]


def test_recipes_get_the_hashes_of_built_files(tmp_path):
    for name in ("collops-0.1.0.tar.gz", "collops_native-0.1.0.tar.gz"):
        (tmp_path / name).write_text(name)
    command = [sys.executable, ROOT / "packaging" / "recipes.py", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    filled = "".join((tmp_path / "recipes" / name).read_text("utf-8") for name in VERSIONS)
    assert "@SHA256" not in filled
    for name, times in (("collops-0.1.0.tar.gz", 3), ("collops_native-0.1.0.tar.gz", 2)):
        assert filled.count(hashlib.sha256(name.encode()).hexdigest()) == times
    for name in ("collops", "collops-native"):
        folder = tmp_path / "recipes" / "conda" / name
        (path,) = re.findall(
            r"^  path: (\S+\$\{\{ version \}\}\S+)", (folder / "recipe.yaml").read_text("utf-8"), re.MULTILINE
        )
        assert (folder / path.replace("${{ version }}", "0.1.0")).is_file()
    (tmp_path / "collops-0.1.0.tar.gz").unlink()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "must contain one source distribution of collops, not 0" in done.stderr


def test_every_step_of_a_workflow_is_run_here_or_skipped_with_a_reason():
    workflows = runpy.run_path(str(ROOT / "packaging" / "workflows.py"))
    jobs = {}
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text("utf-8"))
        jobs |= {(workflow["name"], name): job["steps"] for name, job in workflow["jobs"].items()}
    assert set(workflows["SKIPPED"]) <= set(jobs)
    steps = [step for job, found in jobs.items() if job not in workflows["SKIPPED"] for step in found]
    assert {step["uses"].partition("@")[0] for step in steps if "uses" in step} == set(workflows["STAND_INS"])
    scripts = {step["name"]: step["run"] for step in steps if "run" in step}
    assert set(workflows["SKIPPED_STEPS"]) <= set(scripts)
    assert not any("${{" in script for script in scripts.values())
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for line in "\n".join(scripts.values()).splitlines():
        if line.startswith("make "):
            assert {word for word in line.split()[1:] if "=" not in word} <= targets


PAPER = (ROOT / "paper" / "paper.md").read_text("utf-8")
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?): (.+?) \| `(.+?)` \|$", PAPER, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[-1])
def test_times_of_the_paper_are_those_of_their_records(row):
    *_, ours, peer, theirs, name = row
    record = read_record(ROOT / "benchmarks" / "results" / f"{name}.json")
    found = [{program: time_in_words(each, program) for program in each.timings} for each in record.measurements]
    assert any(
        ours in {time for program, time in times.items() if program.startswith("collops")}
        and theirs in {time for program, time in times.items() if program.startswith(peer)}
        for times in found
    ), found


def test_the_paper_is_whole():
    assert len(ROWS) == PAPER.count("nvidia-h") + PAPER.count("`lsm-cpu") + PAPER.count("`solvers-cpu") == 5
    citations = set(re.findall(r"@(\w+)\]", PAPER))
    assert citations == set(
        re.findall(r"^@\w+{(\w+),", (ROOT / "paper" / "paper.bib").read_text("utf-8"), re.MULTILINE)
    )
    assert all((ROOT / "paper" / path).is_file() for path in re.findall(r"\]\((\.\./\S+)\)", PAPER))
    assert len(PAPER.split()) < 1000  # two pages
