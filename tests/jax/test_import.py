"""``import collops.jax`` changes nothing in JAX for programs that only import it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.serial

MODULES = """
import sys
import collops, collops.jax, collops.array
print(*(name for name in sys.modules if name.partition(".")[0] in ("jax", "jaxlib") and sys.modules[name]))
"""
COMPARE = """
import importlib, sys, types
for name in sys.argv[1:]:
    importlib.import_module(name)
import jax

def registries(value):
    # The entries of a dictionary or set of JAX, such as handlers by primitive or by type.
    if isinstance(value, dict):
        return dict(value)
    return set(value) if isinstance(value, set) else None

def seen():
    names = {}
    for name in sys.argv[1:]:
        for attribute, value in vars(sys.modules[name]).items():
            names[name, attribute] = value, registries(value)
    for name, value in jax.config.values.items():
        names["jax.config", name] = value, None
    return names

before = seen()
import collops, collops.jax, collops.array
after = seen()
changed = []
for place, (value, entries) in after.items():
    if place not in before:
        if not isinstance(value, types.ModuleType):
            changed.append((*place, "is new"))
        continue
    earlier, known = before[place]
    if earlier is not value and earlier != value:
        changed.append((*place, "was replaced"))
    elif isinstance(known, dict):
        changed += [(*place, key) for key in known if entries.get(key) is not known[key]]
    elif known is not None and known - entries:
        changed.append((*place, "lost entries"))
assert before.keys() <= after.keys()
print(changed)
shard_map = sys.modules["jax._src.shard_map"]
api = shard_map.api
joined = collops.jax.clique()
print(shard_map.api is not api)
"""


def run(program, *arguments):
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_importing_replaces_nothing():
    (modules,) = run(MODULES)
    assert "jax._src.shard_map" in modules.split() and "jax._src.interpreters.mlir" in modules.split()
    imported, joined = run(COMPARE, *modules.split())
    assert imported == "[]"
    assert joined == "True"  # at the first clique, as docs/jax.md says
