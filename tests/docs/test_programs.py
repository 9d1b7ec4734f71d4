"""Every program in the documentation runs, on any number of ranks."""

from __future__ import annotations

import pytest

from collops import backend
from tests.docs.pages import PAGES, ROOT, blocks

# Pages whose programs other tests run, and which those are.
ELSEWHERE = {
    "README.md": "tests/test_readme.py",
    "bridge-sharded.md": "tests/bridges/test_sharded.py",
    "bridge-sharding.md": "tests/bridges/test_sharding.py",
    "from-pylops-mpi.md": "tests/compat/test_page.py",
    "tutorial-failures.md": "tests/docs/test_failures.py",
}
FOLDER = 'comm.allgather_metadata(__import__("tempfile").mkdtemp())[0]'
# What is written for GPUs, as it is run where there are none, and in little time.
ON_HOSTS = {
    "jacobi.md": {
        '"persistent", Problem(nx=4096, ny=8192)': '"shared", Problem(nx=64, ny=96)',
        'engine("cupy")': 'engine("numpy")',
    },
    "symmetric.md": {'engine("cupy")': 'engine("numpy")', 'engine="cupy"': 'engine="numpy"'},
    "checkpoints.md": {'"/scratch/line"': FOLDER},
    "own-application.md": {'"/scratch/fit"': FOLDER},
    "lsm-methods.md": {'"/scratch"': FOLDER},
    "bridge-chunked.md": {"comm = collops.world()": f"comm = collops.world(); __import__('os').chdir({FOLDER})"},
    "tutorial-segy.md": {"comm = collops.world()": f"comm = collops.world(); __import__('os').chdir({FOLDER})"},
}
# What a page's programs cannot run without.
NEEDS = {
    "bridge-torch.md": "torch",
    "bridge-torch-distributed.md": "torch",
    "jax.md": "jax",
    "from-mpi4jax.md": "collops_native",
    "own-kernels.md": "numba jax",
    "tutorial-jax.md": "collops_native",
    "bridge-lineax.md": "optimistix",
    "bridge-petsc.md": "petsc4py",
    "bridge-chunked.md": "xarray",
}
# Blocks that are shown as Python and not run: mpi4jax itself, for comparison; kernels of GPUs, which tests/gpu run.
SHOWN = {"from-mpi4jax.md": 1, "own-kernels.md": 1}
HERE = [path for path in PAGES if path.name not in ELSEWHERE and blocks(path, "python")]


@pytest.mark.serial
def test_pages_elsewhere_have_their_tests():
    for page, test in ELSEWHERE.items():
        assert page in (ROOT / test).read_text("utf-8")


@pytest.mark.parametrize("path", HERE, ids=lambda path: path.stem)
def test_they_run(comm, path, capsys, tmp_path, monkeypatch):
    """The programs of a page share their names, as they do for a reader."""
    for need in NEEDS.get(path.name, "").split():
        pytest.importorskip(need, reason=f"the programs of {path.name} need {need}")
    monkeypatch.chdir(tmp_path)
    if path.name.startswith("tutorial"):  # the pages have these pictures
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)
    names: dict = {"__name__": path.stem, "comm": comm}
    for program in blocks(path, "python"):
        for written, here in ON_HOSTS.get(path.name, {}).items():
            program = program.replace(written, here)
        exec(compile(program, str(path), "exec", dont_inherit=True), names)
    # A page says only what is true, where it prints whether something is.
    assert "False" not in capsys.readouterr().out


@pytest.mark.serial
def test_no_program_is_left_out():
    shown = {path.name: len(blocks(path, "py")) for path in PAGES if blocks(path, "py")}
    assert shown == SHOWN


@pytest.mark.serial
def test_what_is_replaced_is_written():
    for page, replacements in ON_HOSTS.items():
        text = (ROOT / "docs" / page).read_text("utf-8")
        assert [written for written in replacements if written not in text] == []
    assert backend.engine("numpy").name == "numpy"
