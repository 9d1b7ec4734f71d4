"""Programs that import the real PyLops-MPI's names beside ours: `install`, and members of the real Partition."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from enum import Enum

import numpy as np
import pytest

import collops.compat.pylops_mpi as pylops_mpi
from collops.compat.pylops_mpi.DistributedArray import local_split
from tests.launch import run_ranks

OURS = "collops.compat.pylops_mpi"
NEEDS_PEER = pytest.mark.skipif(importlib.util.find_spec("pylops_mpi") is None, reason="PyLops-MPI is not installed")

# A program whose first line has been changed, and no other.
MIXED = """
import collops.compat.pylops_mpi as pylops_mpi{install}
import numpy as np
import pylops
from mpi4py import MPI
from pylops_mpi.DistributedArray import Partition, local_split

size = MPI.COMM_WORLD.Get_size()
x = pylops_mpi.DistributedArray(global_shape=4 * size, partition=Partition.SCATTER)
assert local_split((4 * size,), MPI.COMM_WORLD, Partition.SCATTER, 0) == (4,)
x[:] = 1.0
op = pylops_mpi.MPIVStack([pylops.Identity(3)])
y = pylops_mpi.DistributedArray(global_shape=3, partition=Partition.BROADCAST)
y[:] = np.arange(3.0)
print(float(x.dot(x)) / size, (op.H @ (op @ y)).asarray().tolist() == (size * np.arange(3.0)).tolist())
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@NEEDS_PEER
@pytest.mark.parametrize("name", ["BROADCAST", "UNSAFE_BROADCAST", "SCATTER"])
def test_members_of_the_real_partition(comm, name) -> None:
    theirs = importlib.import_module("pylops_mpi").Partition
    assert theirs is not pylops_mpi.Partition
    ours, values = pylops_mpi.Partition[name], np.arange(12.0).reshape(6, 2)
    for partition in (ours, theirs[name]):
        x = pylops_mpi.DistributedArray((6, 2), partition=partition)
        assert x.partition is ours
        x[:] = 3.0
        assert x.dot(x) == 108.0
        y = pylops_mpi.DistributedArray.to_dist(values, partition=partition, axis=1)
        assert y.partition is ours
        np.testing.assert_array_equal(y.asarray(), values)
        assert local_split((6, 2), None, partition, 0) == x.local_shape


def test_other_partitions_are_refused() -> None:
    Partition = Enum("Partition", ["SCATTERED"])
    Distribution = Enum("Distribution", ["SCATTER"])
    for wrong in (Partition.SCATTERED, Distribution.SCATTER, "SCATTER", None):
        with pytest.raises(ValueError, match="Should be either"):
            pylops_mpi.DistributedArray(4, partition=wrong)


@NEEDS_PEER
def test_objects_of_the_real_package_are_named(comm) -> None:
    theirs = importlib.import_module("pylops_mpi")
    x = theirs.DistributedArray(4)
    remedy = r"a \w+ of the real PyLops-MPI \(call install\(\)"
    for wrong in (
        lambda: pylops_mpi.StackedDistributedArray([x]),
        lambda: pylops_mpi.MPIFirstDerivative(4).matvec(x),
        lambda: pylops_mpi.cgls(pylops_mpi.MPIFirstDerivative(4), x, x),
    ):
        with pytest.raises(TypeError, match=remedy):
            wrong()


@pytest.mark.serial
@NEEDS_PEER
@pytest.mark.parametrize("install", ["", "; pylops_mpi.install()"])
def test_a_program_with_both_kinds_of_imports(install) -> None:
    program = MIXED.format(install=install)
    assert run(program) == "4.0 True\n"
    assert run_ranks(2, program, {}).stdout == "4.0 True\n" * 2


@pytest.mark.serial
@NEEDS_PEER
def test_install_replaces_all_modules() -> None:
    program = f"""
import importlib, sys
import pylops_mpi as real
import pylops_mpi.signalprocessing._baseffts
import {OURS} as ours
assert real.__name__ == "pylops_mpi"
for _ in range(2):
    ours.install()
    import pylops_mpi
    assert pylops_mpi is ours
    for path, names in ours._MODULES.items():
        module = importlib.import_module("pylops_mpi." + path)
        assert module is importlib.import_module("{OURS}." + path), path
        for name in names.split():
            namespace = {{}}
            exec(f"from pylops_mpi.{{path}} import {{name}}", namespace)
            assert namespace[name] is getattr(module, name)
    assert importlib.import_module("pylops_mpi._arrays").Partition is ours.Partition
    for name in ("pylops_mpi.signalprocessing._baseffts", "pylops_mpi.nothing"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            print(error.name)
"""
    assert run(program).split() == ["pylops_mpi.signalprocessing._baseffts", "pylops_mpi.nothing"] * 2


@pytest.mark.serial
def test_install_needs_no_real_package() -> None:
    program = (
        "import sys\n"
        "sys.meta_path.insert(0, type('Refusing', (), {'find_spec': lambda self, name, *_: refuse(name)})())\n"
        "def refuse(name):\n"
        "    assert name.partition('.')[0] != 'pylops_mpi', name\n"
        f"from {OURS} import install\n"
        "install()\n"
        "import pylops_mpi.utils._nccl\n"
        "from pylops_mpi.basicoperators import *\n"
        "from pylops_mpi.utils._nccl import *\n"
        "print(MPIVStack.__name__, halo_block_split.__name__, _prepare_allgather_inputs_nccl.__name__)\n"
    )
    assert run(program) == "MPIVStack halo_block_split _prepare_allgather_inputs_nccl\n"
