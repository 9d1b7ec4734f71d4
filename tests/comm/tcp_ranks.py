"""Start programs on ranks without MPI, which find no mpi4py either."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping

LAUNCHERS = ("PMI_", "PMIX_", "OMPI_", "MPI_LOCAL", "SLURM_", "FLUX_", "COLLOPS_RANK_PROCESS", "RANK", "WORLD_SIZE")
WITHOUT_MPI = "import sys; sys.modules['mpi4py'] = None\n"


def plain_environment(**more: str) -> dict[str, str]:
    """Return this environment without what a launcher put into it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)} | more


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def meeting(size: int, **more: str) -> dict[str, str]:
    """Return the environment of ranks that meet at a port of this host."""
    common = {"COLLOPS_BOOTSTRAP": f"tcp://127.0.0.1:{free_port()}", "COLLOPS_SECRET": secrets.token_hex(16)}
    return plain_environment(**common, WORLD_SIZE=str(size), COLLOPS_TIMEOUT="60") | more


class Ranks:
    """Processes that run a program, each with an environment of its own; leaving the block ends all."""

    def __init__(self, program: str, environments: Iterable[Mapping[str, str]], arguments: Iterable[str] = ()) -> None:
        command = [sys.executable, "-c", WITHOUT_MPI + program, *arguments]
        self.processes = [
            subprocess.Popen(
                command, env=each, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for each in environments
        ]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def results(self, seconds: float = 120.0) -> list[tuple[int, str, str]]:
        """Return code, output and errors of every rank; fail if one takes longer."""
        end = time.monotonic() + seconds
        found = []
        for process in self.processes:
            out, err = process.communicate(timeout=max(1.0, end - time.monotonic()))
            found.append((process.returncode, out, err))
        return found


def run_tcp_ranks(program: str, environment: Mapping[str, str], ranks: Iterable[int], seconds: float = 120.0):
    """Run a program as these ranks; return code, output and errors of each."""
    with Ranks(program, [{**environment, "RANK": str(rank)} for rank in ranks]) as started:
        return started.results(seconds)
