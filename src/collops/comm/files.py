"""Atomic writes of files and folders, and locks that are released at the end of the process that holds them.

A file or folder is written in a scratch folder next to its destination, and renamed when it is complete. The scratch
folder has a lock: the next writer of the same file removes the scratch folders of killed writers, but not those of
running ones.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import re
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from collops.comm.agreement import collective_errors, collective_values, name_ranks, raised_together
from collops.comm.bounded import in_time
from collops.errors import CommunicationError, InputError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = [
    "Lock",
    "atomic",
    "atomic_together",
    "check_seen",
    "is_seen",
    "name_blind_ranks",
    "resolved",
    "scratch_lock",
    "sync",
]

_SECONDS_TO_APPEAR = 5.0
_PREVIOUS = "previous"
_LOCK_SUFFIX = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
_JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
_held: dict[str, tuple[int, str]] = {}
"""The locks of this process by path, with its process ID, since a forked child holds none, and the text of the file.

POSIX locks do not conflict within a process, and opening and closing such a file releases the lock.
"""


class Lock:
    """A lock file; `acquire` returns one, or ``None`` while another process holds it.

    The lock is a POSIX record lock: the system releases it whenever its process ends, and it is visible to other hosts
    on network file systems. On a file system without such locks, the file counts as held while the process named in it
    runs on this host; whether a process of another host still runs is unknown, which causes a warning.

    Attributes
    ----------
    path : pathlib.Path
    text : str
        The contents of the file, unique to this lock: its holder.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor
        job = next((os.environ[name] for name in _JOB_IDS if name in os.environ), None)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = {**_process(os.getpid()), "since": since, "job": job, "id": secrets.token_hex(8)}
        self.text = json.dumps(holder)
        self._key = os.path.realpath(path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, self.text.encode(), 0)
        _held[self._key] = os.getpid(), self.text

    @classmethod
    def acquire(cls, path: Path) -> Lock | None:
        """Return the lock of a file, created if necessary, or ``None`` while another process holds it."""
        if _own_text(path) is not None:
            return None
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if not _lock(descriptor, path):
                    os.close(descriptor)
                    return None
                # Between opening and locking, the holder may have removed the file, and others may have created
                # another.
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                        return cls(path, descriptor)
            except OSError:
                os.close(descriptor)
                raise
            os.close(descriptor)

    @staticmethod
    def holder(path: Path) -> str:
        """Return a description of the holder of a lock, from the file."""
        holder = _holder(path)
        if holder is None:
            return "another process"
        job = f" of job {holder['job']}" if holder.get("job") else ""
        return f"process {holder['pid']} on {holder['host']}{job}, since {holder['since']}"

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """Remove the file and release the lock."""
        _held.pop(self._key, None)
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _own_text(path: Path) -> str | None:
    """Return the text of a lock of this process, or ``None`` if it does not hold it."""
    process, text = _held.get(os.path.realpath(path), (0, ""))
    return text if process == os.getpid() else None


def _lock(descriptor: int, path: Path) -> bool:
    """Lock an open file; return whether that succeeded."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if problem.errno not in _NO_LOCKS:
            raise
        holder, process = _holder(path), _process(os.getpid())
        if holder is None:
            return True
        if any(holder.get(key) != process[key] for key in ("host", "boot", "namespace")):
            warnings.warn(
                f"the file system of {path} has no locks: make sure that {Lock.holder(path)}, does not use it",
                RuntimeWarning,
                stacklevel=2,
            )
            return True
        return _process(holder["pid"])["start"] != holder["start"]
    return True


def _holder(path: Path) -> dict | None:
    """Return the contents of a lock file; ``None`` if it is incomplete."""
    try:
        holder = json.loads(_own_text(path) or path.read_text())
        return holder if isinstance(holder, dict) and {"pid", "host", "since", "start"} <= holder.keys() else None
    except (OSError, ValueError):
        return None


def _process(pid: int) -> dict[str, str | int | None]:
    """Return an identity of a process of this host and container that is unique even if process IDs are reused."""
    try:
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        start = None
    try:
        boot, namespace = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")
    except OSError:
        boot, namespace = None, None
    return {"host": platform.node(), "boot": boot, "namespace": namespace, "pid": pid, "start": start}


def scratch_lock(path: Path) -> Lock:
    """Return a new scratch lock for a writer of `path`, after removing the scratch folders of ended writers."""
    _remove_leftovers(path)
    while True:
        folder = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        lock = None if folder.exists() else Lock.acquire(folder.with_name(folder.name + _LOCK_SUFFIX))
        if lock is not None:  # a writer that looks for leftovers may hold it briefly
            return lock


class _Scratch:
    """A scratch folder next to `path`, with a lock; `temporary` in it is renamed to `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lock = scratch_lock(path)  # first: a folder without a lock has no writer
        self._folder = self.lock.path.with_name(self.lock.path.name.removesuffix(_LOCK_SUFFIX))
        self.temporary = self._folder / path.name
        try:
            self._folder.mkdir()
        except OSError:
            self.lock.release()
            raise

    def publish(self, replace: bool = True) -> None:
        """Rename `temporary` to `path`; without `replace`, raise OSError if `path` exists."""
        if replace and os.path.lexists(self._path) and (self.temporary.is_dir() or self._path.is_dir()):
            # A folder cannot be renamed over a file or over a folder that is not empty: move the old one away first.
            os.replace(self._path, self._folder / _PREVIOUS)
        os.replace(self.temporary, self._path)

    def discard(self) -> None:
        """Remove the folder with its contents."""
        _discard(self._folder, self._path)
        self.lock.release()


def _discard(folder: Path, path: Path) -> None:
    """Remove a scratch folder, and restore a previous file that has not been replaced."""
    if os.path.lexists(folder / _PREVIOUS) and not os.path.lexists(path):
        os.replace(folder / _PREVIOUS, path)
    shutil.rmtree(folder, ignore_errors=True)


def _entries(folder: Path) -> list[str]:
    """Return the names in a folder; none if its writer has removed it, which may happen at any time."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _remove_leftovers(path: Path) -> None:
    """Remove the scratch folders of `path` whose writers have ended."""
    pattern = re.compile(rf"(\.{re.escape(path.name)}-[a-z0-9_]{{8}})(?:{re.escape(_LOCK_SUFFIX)})?")
    for name in sorted({match[1] for match in map(pattern.fullmatch, os.listdir(path.parent)) if match}):
        folder = path.with_name(name)
        with suppress(PermissionError, NotADirectoryError):  # another user's, or not a scratch folder
            if not {path.name, _PREVIOUS} >= set(_entries(folder)):
                continue
            lock = Lock.acquire(path.with_name(name + _LOCK_SUFFIX))
            if lock is not None:
                _discard(folder, path)
                lock.release()


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path, with the suffix of `path`, for a file or folder, and rename it to `path` after the body.

    If the body raises, the temporary file is removed, and `path` is unchanged. After a kill, the next writer of `path`
    removes the temporary file.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from collops.extend.applications import atomic
    >>> path = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with atomic(path) as temporary:
    ...     size = temporary.write_text("all or nothing")
    >>> path.read_text()
    'all or nothing'
    """
    scratch = _Scratch(path)
    try:
        yield scratch.temporary
        scratch.publish()
    finally:
        scratch.discard()


def operating_system_errors(comm: Communicator) -> AbstractContextManager[None]:
    """Raise errors of the body, file errors included, on every rank; see `collective_errors`. Collective."""
    return collective_errors(comm, OSError)


@contextmanager
def atomic_together(
    path: Path,
    comm: Communicator,
    *,
    check: Callable[[], None] = lambda: None,
    replace: bool = True,
    complete: Callable[[Path], None] = lambda path: None,
    stage: Callable[[Communicator], AbstractContextManager[None]] = operating_system_errors,
) -> Iterator[Path]:
    """Yield a temporary path for a folder that all ranks write, renamed to `path` after the body. Collective.

    The folder and its entries are flushed to disk before it replaces another one; the body flushes the files that it
    writes.

    Parameters
    ----------
    path : pathlib.Path
        The folder, the same on all ranks. Its parent must exist.
    comm : Communicator
        The ranks.
    check : callable
        Called on rank 0 before the body, and again before the renaming; raises an error unless `path` may be replaced.
    replace : bool
        Whether `path` may be replaced if another writer has created it after the last check.
    complete : callable
        Called on rank 0 with the temporary path, after the body of all ranks.
    stage : callable
        ``stage(comm)`` is a context manager that raises the errors of its body on every rank.

    Raises
    ------
    InputError
        On every rank, if some ranks pass another path, or do not see the same folder. It names these ranks.
    OSError
        On every rank, if rank 0 cannot write; a TimeoutError if a file system does not respond.
    """
    scratch: _Scratch | None = None

    def begin() -> _Scratch:
        check()
        return _Scratch(path)

    def finish(scratch: _Scratch) -> None:
        check()
        complete(scratch.temporary)
        for file in scratch.temporary.rglob("*.json"):
            sync(file)
        for folder, _, _ in os.walk(scratch.temporary):
            sync(Path(folder))
        scratch.publish(replace)
        sync(path.parent)
        scratch.discard()

    try:
        with stage(comm):
            if comm.rank == 0:
                scratch = in_time(begin, path)
        about = [] if scratch is None else [scratch.lock.path.name, scratch.lock.text]
        lock, text = comm.allgather_metadata(about)[0]
        check_seen(path, path.with_name(lock), text, comm)
        yield path.with_name(lock.removesuffix(_LOCK_SUFFIX)) / path.name
        with stage(comm):
            if scratch is not None:
                in_time(partial(finish, scratch), path)
    except BaseException as error:
        if scratch is not None:
            with suppress(OSError):
                in_time(scratch.discard, path)
        if getattr(error, "on_all_ranks", False) and not isinstance(error, CommunicationError):
            comm.barrier()  # all ranks wait until the files have been removed
        raise


def resolved(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path without symbolic links; raise InputError if the current folder has been removed."""
    try:
        return Path(os.path.realpath(path))
    except FileNotFoundError:
        raise InputError("the current folder has been removed: change to another one") from None


def check_seen(path: Path, file: Path, text: str, comm: Communicator) -> None:
    """Raise InputError on every rank unless all of them can read the text of rank 0 in a file next to `path`.

    Collective. `text` is used on rank 0 and must be in `file`. The error names the ranks that see another folder.
    """

    def describe() -> list[object]:
        return [path.name, platform.node(), in_time(lambda: is_seen(file, text), path)]

    answers = collective_values(comm, describe, OSError)
    name, host, _ = answers[0]
    blind = name_blind_ranks(
        [answer[1] for answer in answers], [sees and answer == name for answer, _, sees in answers]
    )
    if blind:
        with raised_together():
            raise InputError(
                f"{path} is not the same folder on rank 0 on {host} and on {blind}: pass the same shared path on all "
                "ranks, for example an absolute one"
            )


def is_seen(file: Path, text: str) -> bool:
    """Return whether this rank can read a file with this text, and could write into its folder.

    A client of a network file system may cache for a while that the folder did not exist; listing its parent folder
    refreshes the cache.
    """
    deadline = time.monotonic() + _SECONDS_TO_APPEAR
    while True:
        try:
            return (_own_text(file) or file.read_text()) == text and os.access(file.parent, os.W_OK)
        except OSError:
            if time.monotonic() > deadline:
                return False
        time.sleep(0.1)
        with suppress(OSError):
            os.listdir(file.parent.parent)


def name_blind_ranks(hosts: Sequence[str], seen: Sequence[bool]) -> str:
    """Return the ranks that have not seen a file, with their hosts; empty if all have."""
    blind: dict[str, list[int]] = {}
    for rank, (host, sees) in enumerate(zip(hosts, seen, strict=True)):
        if not sees:
            blind.setdefault(host, []).append(rank)
    return ", ".join(f"{name_ranks(ranks)} on {host}" for host, ranks in blind.items())


def sync(path: Path) -> None:
    """Write a file, or the entries of a directory, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
