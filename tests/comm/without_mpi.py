"""Start programs on ranks without MPI, which find no mpi4py either."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping

LAUNCHERS = ("PMI", "OMPI_", "MPI_LOCAL", "SLURM_", "FLUX_", "COLLOPS_", "RANK", "WORLD_SIZE", "LOCAL_RANK")
NO_MPI4PY = "import sys; sys.modules['mpi4py'] = None\n"
SUITE = """
import pytest
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-m", "not serial", *sys.argv[1:]]))
"""
WORLD = "import numpy as np, collops\ncomm = collops.world()\n"


def meeting(size: int, **more: str) -> dict[str, str]:
    """Return the environment of ranks that meet at a free port of this host, without what a launcher put into it."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"tcp://127.0.0.1:{found.getsockname()[1]}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    secret = secrets.token_hex(16)
    kept |= {"COLLOPS_BOOTSTRAP": address, "COLLOPS_SECRET": secret, "WORLD_SIZE": str(size), "COLLOPS_TIMEOUT": "60"}
    return kept | more


class Processes:
    """Processes that run a program, each with an environment of its own; leaving the block ends all."""

    def __init__(self, program: str, environments: Iterable[Mapping[str, str]], arguments: Iterable[str] = ()) -> None:
        command = [sys.executable, "-c", NO_MPI4PY + program, *arguments]
        self.processes, self.written = [], []
        for each in environments:
            # Files, since ranks that end all others wait until somebody has read their pipes.
            out, err = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115 (closed with the processes)
            self.written.append((out, err))
            self.processes.append(subprocess.Popen(command, env=each, stdin=subprocess.DEVNULL, stdout=out, stderr=err))

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process, files in zip(self.processes, self.written, strict=True):
            process.kill()
            process.wait()
            for file in files:
                file.close()

    def results(self, seconds: float = 200.0) -> list[tuple[int, str, str]]:
        """Return code, output and errors of every process; fail if one takes longer."""
        end = time.monotonic() + seconds
        codes = [process.wait(max(1.0, end - time.monotonic())) for process in self.processes]
        for files in self.written:
            for file in files:
                file.seek(0)
        return [(code, out.read(), err.read()) for code, (out, err) in zip(codes, self.written, strict=True)]


def run(program: str, environment: Mapping[str, str], ranks: Iterable[int], *arguments: str):
    """Run a program as these ranks; return code, output and errors of each."""
    with Processes(program, [{**environment, "RANK": str(rank)} for rank in ranks], arguments) as started:
        return started.results()


def run_suite(size: int, *tests: str) -> None:
    """Run tests of this suite on so many ranks, and fail if one of them fails."""
    # With these flags, the suite does not import JAX before it needs it.
    more = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "COLLOPS_EXAMPLES": "8"}
    environment = meeting(size, **more)
    results = run(SUITE, environment, range(size), *tests)
    assert [code for code, _, _ in results] == [0] * size, "\n".join(out + err for _, out, err in results)
    assert " passed" in results[0][1]
