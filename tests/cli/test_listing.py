"""The list of commands is read from their sources, and errors name the distribution that has the command."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer

from collops.cli.main import application
from collops.cli.table import commands, guests, owner_of, summary_of
from tests.cli.commands import environment

pytestmark = pytest.mark.serial

HELP = """
import atexit, sys
sys.argv = ["collops", "--help"]
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
import collops.__main__
collops.__main__.main()
"""
GUEST = {
    "works.py": 'def command():\n    """Do it."""\n    print("done")\n',
    "crashes.py": 'def command():\n    """Crash."""\n    from collops.cli.command import with_world\n'
    '    with_world("collops crashes", lambda comm: 1 // 0, ranks=None, transport="auto", debug=False)\n',
    "does_not_load.py": '"""A module."""\nimport no_such_package\nfrom works import command\n',
    "no_python.py": "def (",
    "alone.dist-info/METADATA": "Metadata-Version: 2.1\nName: alone\nVersion: 1.2\n",
    "alone.dist-info/entry_points.txt": "[collops.commands]\nworks = works:command\ncrashes = crashes:command\n"
    "unloadable = does_not_load:command\nbroken = no_python\ngone = no_such_module.command\n",
}


@pytest.fixture
def guest(tmp_path):
    """The environment in which a distribution is installed that has several commands."""
    for name, text in GUEST.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    given = environment()
    return {**given, "PYTHONPATH": f"{tmp_path}:{given.get('PYTHONPATH', '')}", "COLUMNS": "200"}


def run(*arguments, env):
    return subprocess.run(
        [sys.executable, "-m", "collops", *arguments], capture_output=True, text=True, check=False, env=env
    )


def test_the_list_imports_no_command():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    for name in commands():
        assert f"\n  {name} " in done.stdout
    loaded = set(done.stderr.split())
    heavy = {"numpy", "scipy", "pylops", "jax", "numba", "matplotlib", "mpi4py", "rich", "collops_bench"}
    rooms = {f"collops.{room}" for room in ("array", "comm", "jacobi", "seismic", "solvers", "apps.solve", "cli.info")}
    assert not (heavy | rooms) & loaded


@pytest.mark.parametrize("name", commands())
def test_the_line_is_that_of_the_help(name):
    command = typer.main.get_command(application()).commands[name]
    assert summary_of(commands()[name]) == " ".join(command.help.split("\n\n")[0].split())


def test_commands_of_a_guest_are_listed_even_if_they_do_not_load(guest):
    done = run("--help", env=guest)
    assert done.returncode == 0, done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert {"works Do it.", "crashes Crash.", "unloadable Do it."} <= {*lines}
    assert "broken The source of no_python cannot be read." in lines
    assert "gone The module no_such_module.command is missing: install its distribution again." in lines


@pytest.mark.parametrize("name", ["crashes", "unloadable", "broken", "gone"])
def test_who_must_mend_a_crash(guest, name):
    assert run("works", env=guest).stdout == "done\n"
    done = run(name, env=guest)
    assert done.returncode == 1 and done.stdout == ""
    *trace, last = done.stderr.splitlines()
    assert last == f"collops {name}: this is a bug in alone 1.2; please report it with the lines above"
    assert trace[0].startswith("Traceback") and "collops;" not in done.stderr


def test_distributions_with_commands_are_in_the_report_of_the_machine(guest):
    done = run("info", "--json", env=guest)
    assert json.loads(done.stdout)["distributions_of_commands"] == {"alone": "1.2", **guests()}


def test_our_own_crashes_are_ours():
    assert [owner_of(f"collops{command}") for command in ("", " lsm", " solve", " nothing")] == ["collops"] * 4
