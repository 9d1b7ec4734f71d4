"""The folder of a solver's checkpoints: writes are atomic, and reads verify checksums.

A checkpoint is a folder with a Zarr group and a seal. It is written under a temporary name, synchronised to disk, and
renamed; only then is the previous checkpoint removed. Every chunk of the group has a checksum; the seal has the
checksums of all metadata.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from collops.array import Array, load
from collops.array.store import chunk_files, open_node, write_store
from collops.backend import Engine
from collops.comm import Communicator
from collops.comm.agreement import collective_errors, collective_values, raised_together
from collops.comm.bounded import in_time
from collops.comm.files import Lock, atomic_together, check_seen
from collops.errors import CheckpointError, CollopsError, CommunicationError, InputError
from collops.limits import free_room, in_words
from collops.operators.base import AnyLayout

_NAME = re.compile(r"iteration-(\d{9,})")
_LOCK, _STORE, _SEAL, _RECORD = ".lock", "arrays.zarr", "seal.json", "checkpoint"
# Files left by killed runs, of this version or an older one, and by network file systems for removed files.
_LEFTOVER = re.compile(r"\.(?:unfinished|iteration-\d{9,}-.*|collops-.*)")
_HIDDEN = re.compile(r"\.(?:lock|nfs.*)")
_CHECKSUM_BYTES = 4  # behind each chunk


class CheckpointFolder:
    """A folder on a file system shared by all ranks, created if it does not exist.

    Every method is collective, and an error on one rank is raised on all of them.
    """

    def __init__(self, path: str, comm: Communicator) -> None:
        self.path = path
        self._comm = comm
        self._folder = Path(path)
        self._lock: Lock | None = None

    def begin(self, resume: bool) -> dict[str, Any] | None:
        """Lock the folder until `close`, and return the record of the checkpoint to resume from, if any.

        This is the newest checkpoint or, with a warning on rank 0, an older one if the newest is damaged.
        Raises CheckpointError if another process has locked the folder, if it holds other files, is not writable, or
        differs between ranks; if it holds a checkpoint although `resume` is false, or only a damaged checkpoint.
        """

        def find() -> list[Any]:
            if self._comm.rank:
                return []
            try:
                record = in_time(lambda: self._latest(resume), self.path)
            except OSError as problem:
                raise CheckpointError(f"checkpoints cannot be written to {self.path}: {_reason(problem)}") from problem
            assert self._lock is not None
            return [record, self._lock.text]

        record, text = collective_values(self._comm, find)[0]
        try:
            check_seen(self._folder, self._folder / _LOCK, text, self._comm)
        except InputError as problem:
            with raised_together():
                raise CheckpointError(str(problem)) from problem
        return record

    def close(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the lock at the end of a context. Collective, unless `error` ends the context on this rank only."""
        if self._lock is not None:
            with suppress(OSError):
                in_time(self._lock.release, self.path)
        shared = getattr(error, "on_all_ranks", False) and not isinstance(error, CommunicationError)
        if error is None or shared:
            self._comm.barrier()  # no rank continues while the folder is locked

    def check_space(self, needed: int) -> None:
        """Raise CheckpointError unless the disk has space for so many bytes."""
        with collective_errors(self._comm, OSError):
            if self._comm.rank == 0 and needed > (free := free_room(self._folder)):
                raise CheckpointError(
                    f"the checkpoints need {in_words(needed)}, and {self.path} has room for {in_words(free)}: make "
                    "room, or name another folder"
                )

    def write(self, iteration: int, arrays: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Write arrays by name, in nested dictionaries, and a record for JSON; then remove the previous checkpoint.

        `iteration` is larger than in the previous checkpoint, which still exists if CheckpointError is raised.
        """
        path = self._path_of(iteration)
        try:
            # A damaged checkpoint of this iteration, found at the start, may be replaced.
            with atomic_together(path, self._comm, complete=_seal) as unfinished:
                write_store(unfinished / _STORE, arrays, {_RECORD: dict(record)}, compressed=False)
            with collective_errors(self._comm, OSError):
                if self._comm.rank == 0:
                    in_time(lambda: self._remove_others(path), self.path)
        except CommunicationError:
            raise
        except (OSError, CollopsError) as problem:
            with raised_together():
                raise CheckpointError(f"checkpoints cannot be written to {self.path}: {_reason(problem)}") from problem

    def read(self, iteration: int, name: str, layout: AnyLayout | None, engine: Engine | str) -> Array:
        """Return an array of a checkpoint in a layout; raise CheckpointError if it is damaged or does not fit."""
        path = self._path_of(iteration)
        try:
            return load(path / _STORE / name, layout, comm=self._comm, engine=engine)
        except CommunicationError:
            raise
        except CollopsError as problem:
            with raised_together():
                raise CheckpointError(_damaged(path, problem)) from problem

    def _path_of(self, iteration: int) -> Path:
        return self._folder / f"iteration-{iteration:09d}"

    def _latest(self, resume: bool) -> dict[str, Any] | None:
        if self._folder.exists() and not self._folder.is_dir():
            raise CheckpointError(f"{self.path} is a file: name a folder for checkpoints")
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._folder):
            pass
        names = sorted(entry.name for entry in self._folder.iterdir())
        for name in names:
            if not any(kind.fullmatch(name) for kind in (_NAME, _LEFTOVER, _HIDDEN)):
                raise CheckpointError(f"{self.path} holds other files than checkpoints ({name}): name a new folder")
        self._lock = Lock.acquire(self._folder / _LOCK)
        if self._lock is None:
            holder = Lock.holder(self._folder / _LOCK)
            raise CheckpointError(f"{self.path} is in use by {holder}: wait for its end, or name another folder")
        for name in filter(_LEFTOVER.fullmatch, names):  # their writers have exited, since the lock was free
            _remove(self._folder / name)
        iterations = [int(match[1]) for match in map(_NAME.fullmatch, names) if match]
        if not iterations:
            return None
        newest, *others = sorted(iterations, reverse=True)
        if not resume:
            raise CheckpointError(
                f"{self.path} holds a checkpoint of iteration {newest}: pass resume=True (--resume) to resume from it, "
                "or remove it"
            )
        try:
            return _examined(self._path_of(newest))
        except CheckpointError as damage:
            # Two exist if the machine failed before the older one was removed.
            if not others:
                raise
            record = _examined(self._path_of(others[0]))
            warnings.warn(f"{damage}; resuming from iteration {others[0]}", RuntimeWarning, stacklevel=2)
            return record

    def _remove_others(self, path: Path) -> None:
        """Remove all checkpoints but one."""
        for other in self._folder.iterdir():
            if _NAME.fullmatch(other.name) and other != path:
                # Rename it first, so that no reader mistakes a partly removed folder for a checkpoint.
                renamed = other.with_name(f".{other.name}-removed")
                os.replace(other, renamed)
                _remove(renamed)


def _remove(path: Path) -> None:
    """Remove a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _seal(unfinished: Path) -> None:
    """Write the checksums of the metadata of a checkpoint."""
    digests = {str(path.relative_to(unfinished)): _digest(path) for path in unfinished.rglob("*.json")}
    (unfinished / _SEAL).write_text(json.dumps(digests))


def _examined(folder: Path) -> dict[str, Any]:
    """Return the record of a complete checkpoint; raise CheckpointError if something is missing or damaged.

    The checksums of its chunks are checked when they are read.
    """
    import zarr

    try:
        digests = json.loads((folder / _SEAL).read_text())
        for name, digest in digests.items():
            if _digest(folder / name) != digest:
                raise ValueError(f"{name} has changed since it was written")
        group = open_node(folder / _STORE)
        for _, node in group.members(max_depth=None):
            if isinstance(node, zarr.Array):
                expected = math.prod(node.chunks) * node.dtype.itemsize + _CHECKSUM_BYTES
                for path in chunk_files(node, [slice(0, extent) for extent in node.shape]):
                    if path.stat().st_size != expected:
                        raise ValueError(f"{path.relative_to(folder)} does not have the size with which it was written")
        record: Any = group.attrs[_RECORD]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise CheckpointError(_damaged(folder, problem)) from problem
    return record


def _damaged(path: Path, problem: Exception) -> str:
    return f"{path} is damaged ({_reason(problem)}): remove it to start from the beginning"


def _reason(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror
    return str(problem)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
