"""Machine code of Numba on disk: compiled again when what it uses of other files changes, and only then."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import numpy as np
import pytest

from collops import _numba_cache as numba_cache

pytest.importorskip("numba")
pytestmark = pytest.mark.serial

CALLED = """
from collops._numba_cache import cached_njit
NUMBER = {number}
@cached_njit(inline={inline!r})
def added(x):
    return x + {step}
"""
GENERATED = """
from numba.extending import intrinsic
NUMBER = {number}
options = "{inline}"
@intrinsic
def added(typing, x):
    def generate(context, builder, signature, arguments):
        return builder.add(arguments[0], context.get_constant(x, {step}))
    return x(x), generate
"""
CALLER = """
from collops._numba_cache import cached_njit
from called_by_numba import NUMBER, added
@cached_njit()
def result(x):
    return NUMBER * added(x)
"""
WITHIN = """
from collops._numba_cache import cached_njit
import called_by_numba
@cached_njit()
def result(x):
    def within(y):
        return called_by_numba.NUMBER * called_by_numba.added(y)
    return within(x)
"""


THROUGH = """
from numba import njit
from collops._numba_cache import cached_njit
from called_by_numba import NUMBER, added
@njit
def helper(x):
    return NUMBER * added(x)
@cached_njit()
def result(x):
    return helper(x)
"""

BELOW = """
from collops._numba_cache import cached_njit
from called_by_numba import NUMBER, added
@cached_njit()
def result(x):
    return below(x)
@cached_njit()
def below(x):
    return NUMBER * added(x)
"""


@pytest.mark.parametrize(
    ("caller", "called"),
    [(CALLER, CALLED), (WITHIN, CALLED), (THROUGH, CALLED), (BELOW, CALLED), (CALLER, GENERATED)],
    ids=["names", "of a module, in an inner function", "in a helper", "in a function below", "of an intrinsic"],
)
def test_changes_of_other_files_are_noticed(tmp_path, monkeypatch, caller, called):
    """Another text or option of a function that is called, and another constant."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "caller_of_numba.py").write_text(caller)

    def run(number, step, inline="never"):
        (tmp_path / "called_by_numba.py").write_text(called.format(number=number, step=step, inline=inline))
        for name in ("caller_of_numba", "called_by_numba"):
            sys.modules.pop(name, None)
        numba_cache._digest_of_file.cache_clear()  # a process reads a file once
        importlib.invalidate_caches()
        module = importlib.import_module("caller_of_numba")
        return module.result(1), sum(module.result.stats.cache_hits.values())

    assert run(1, 1) == (2, 0)
    assert run(1, 1) == (2, 1)
    assert run(1, 2) == (3, 0)
    assert run(5, 2) == (15, 0)
    assert run(5, 2, "always") == (15, 0)
    assert run(5, 2, "always") == (15, 1)


def test_later_processes_find_it():
    """The order of a set differs among processes, and so does the address of an object."""
    program = """
from llvmlite import ir
from numba.extending import intrinsic
from collops._numba_cache import cached_njit
PLACE = object()
@intrinsic
def same(typing, x):
    return x(x), lambda context, builder, signature, arguments: arguments[0] or ir.Undefined or PLACE
def doubled(x):
    return 2 * same(x)
cached_njit(fastmath={"nnan", "nsz", "reassoc", "contract"})(doubled)
print(doubled.__qualname__)
"""
    names = {
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(names) == 1


def test_all_numbers_of_an_array_count():
    """Its text has three from each end only."""
    digests = set()
    for last in (0.0, 1.0):
        table = np.zeros(5000)
        table[2500] = last
        space: dict = {"TABLE": table, "__name__": __name__}
        exec("def first(x):\n    return TABLE[x]", space)
        digests.add(numba_cache._digest(space["first"], {}))
    assert len(digests) == 2
