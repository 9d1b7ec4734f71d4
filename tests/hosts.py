"""Hosts made of this machine's namespaces, to run programs on several hosts in tests.

``done = hosts.run(program, hosts=2, ranks=2)`` runs a Python program on two ranks of each of two hosts. A test that
disturbs them while they run, or starts `collops` itself, makes its own :class:`Hosts`.

Each host has its own host name, network, processes, IPC and ``/dev/shm``; MPI finds by itself that it cannot share
memory with another one. The file system is shared, except for one folder. Everything disappears with the processes that
hold the namespaces, and these end when this one does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.launch import mpiexec, run_ranks

_NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
_NETWORK = "10.20.0."
_LOGIN = f"{_NETWORK}254"
_BRIDGE = "ip link add lan type bridge"
_LOOPBACK = "ip link set lo up"

# Hydra calls it like ssh: with options, a host, and what that host's shell is to run. Each host has a file with the
# process that holds its namespaces; that process is not in its PID namespace itself, but its children are.
_ENTER = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
pid=$(cat "$(dirname "$0")/$1") && shift
exec nsenter --target $pid --mount --uts --ipc --net --pid=/proc/$pid/ns/pid_for_children sh -c "$*"
"""


def run(
    program: str,
    hosts: int = 2,
    ranks: int = 2,
    env: Mapping[str, str] | None = None,
    seconds: float = 200.0,
    private_tmp: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a Python program on `ranks` ranks of each of some new hosts; see :meth:`Hosts.run`."""
    with Hosts(hosts) as made:
        return made.run(program, ranks, env, seconds, private_tmp)


@cache
def refusal() -> str:
    """Return why there can be no such hosts here; empty if there can."""
    if missing := [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]:
        return f"hosts of namespaces need {' and '.join(missing)}"
    if os.geteuid() != 0:
        return "only root can make hosts of namespaces"
    trial = f"mount -t tmpfs trial /dev/shm && {_BRIDGE} && ip link add one type veth peer name other"
    tried = _said(["unshare", *_NAMESPACES, "sh", "-c", trial])
    if tried.returncode:
        return f"this machine refuses hosts of namespaces: {tried.stderr.strip()}"
    is_hydra = "HYDRA" in _said([mpiexec(), "--version"]).stdout
    return "" if is_hydra else "hosts of namespaces are started by MPICH's mpiexec, and this is another one"


class Hosts:
    """Up to 26 hosts in one network, made when a ``with`` statement is entered and removed when it is left.

    The test is skipped, with the reason, where they cannot be made. The launcher runs on a host of its own, which has
    only the network in common with them. `rate` limits what each host sends, for example ``"100mbit"``.

    Attributes
    ----------
    names : list of str
        The host names: nodea, nodeb, …
    shared, private : pathlib.Path
        Folders that all hosts share with this process, and that each host has for itself, at the same path.
    """

    def __init__(self, count: int, rate: str = "") -> None:
        self.names = [f"node{chr(ord('a') + number)}" for number in range(count)]
        self._rate = rate
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if reason := refusal():
            pytest.skip(reason)
        with ExitStack() as stack:
            self.shared = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="collops-hosts-")))
            self.private = self.shared / "private"
            self.private.mkdir()
            self._enter = self.shared / "enter"
            self._enter.write_text(_ENTER)
            self._enter.chmod(0o755)
            network = f"ip address add {_LOGIN}/24 dev lan && ip link set lan up"
            self._login = self._hold(stack, "login", ["--net"], f"{_LOOPBACK} && {_BRIDGE} && {network}")
            for number, name in enumerate(self.names, 1):
                mounts = f"mount -t tmpfs own /dev/shm && mount -t tmpfs own {self.private}"
                holder = self._hold(stack, name, _NAMESPACES, f"hostname {name} && {_LOOPBACK} && {mounts}")
                self._holders[name] = holder
                (self.shared / name).write_text(str(holder.pid))
                self._on_network("ip", "link", "add", name, "type", "veth", "peer", "eth0", "netns", str(holder.pid))
                self._on_network("ip", "link", "set", name, "master", "lan", "up")
                limit = f"&& tc qdisc add dev eth0 root tbf rate {self._rate} burst 256kb latency 50ms"
                address = f"ip address add {_NETWORK}{number}/24 dev eth0 && ip link set eth0 up"
                subprocess.run([self._enter, name, f"{address} {limit if self._rate else ''}"], check=True)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(
        self,
        program: str,
        ranks: int = 2,
        env: Mapping[str, str] | None = None,
        seconds: float = 200.0,
        private_tmp: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a Python program on `ranks` ranks of each host, as :func:`tests.launch.run_ranks` does.

        With `private_tmp` the folder for temporary files is one that hosts do not share.
        """
        own = {"TMPDIR": str(self.private)} if private_tmp else {}
        return run_ranks(ranks * len(self.names), program, {**own, **(env or {})}, seconds, self.launcher(ranks))

    def launcher(self, ranks: int = 2) -> list[str]:
        """Return the command that starts `ranks` ranks on each host, if ``-n N`` and a program follow."""
        places = ",".join(f"{name}:{ranks}" for name in self.names)
        hydra = [mpiexec(), "-localhost", _LOGIN, "-launcher", "ssh", "-launcher-exec", str(self._enter)]
        return [*self._network(), *hydra, "-hosts", places]

    def processes(self, name: str) -> list[int]:
        """Return the processes of a host, by their numbers outside it."""
        own = os.readlink(f"/proc/{self._holders[name].pid}/ns/pid_for_children")
        return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _pid_namespace(folder) == own]

    def disconnect(self, name: str) -> None:
        """Take the network of a host down. Nothing tells the others: no connection is closed."""
        self._on_network("ip", "link", "set", name, "down")

    def kill(self, name: str) -> None:
        """Kill all processes of a host, with the launcher's there, so that its connections are closed."""
        self._holders[name].kill()
        self._holders[name].wait()

    def _hold(self, stack: ExitStack, name: str, options: Sequence[str], script: str) -> subprocess.Popen[str]:
        """Start a process in new namespaces that runs a script, and then lives as long as `stack`."""
        process = subprocess.Popen(
            ["unshare", *options, "sh", "-c", f"{script} && echo made && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(process.wait, 60)  # it ends when its input does, and all in its namespaces with it
        assert process.stdin is not None and process.stdout is not None
        stack.enter_context(process.stdout)
        stack.enter_context(process.stdin)
        assert process.stdout.readline() == "made\n", f"the host {name} cannot be made"
        return process

    def _network(self) -> list[str]:
        return ["nsenter", "--target", str(self._login.pid), "--net"]

    def _on_network(self, *command: str) -> None:
        subprocess.run([*self._network(), *command], check=True)


def _said(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def _pid_namespace(process: Path) -> str:
    try:
        return os.readlink(process / "ns" / "pid")
    except OSError:  # it has ended
        return ""
