"""What every job is, and how it begins: options checked, the folder ready, the engine chosen, somebody who listens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from collops.apps.options import JobOptions
from collops.apps.outputs import prepare_folder
from collops.apps.stages import local_stage, raised_together
from collops.backend import Engine, engine
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.apps.report import Outcome
    from collops.comm import Communicator

__all__ = ["Job", "Listener", "begin", "engine_of_ranks", "warn_of_idle_ranks"]


class Listener(Protocol):
    """Who hears how far the job is."""

    live: bool
    """Whether this rank shows progress as it happens."""

    def note(self, text: str) -> None:
        """Hear what was decided."""

    def warn(self, text: str) -> None:
        """Hear what the user should know."""

    def stage(self, text: str | None) -> None:
        """Hear that a stage begins; None ends the last one."""


class Job(Protocol):
    """A whole job, from options to pictures, as ``collops.apps.NAME.job.run`` is one that ``collops NAME`` runs."""

    def __call__(self, options: Any, comm: Communicator, listener: Listener) -> Outcome:
        """Do what `options` say, and write the results. Collective.

        Parameters
        ----------
        options : JobOptions
            Of this kind of job, the same on every rank.
        comm : Communicator
            The ranks.
        listener : Listener
            Hears of the progress, on every rank.

        Returns
        -------
        Outcome
            The same on every rank, but for the list of files, which are written by the first one.

        Raises
        ------
        InputError
            On every rank, if something the user gave cannot be used.
        """
        ...


def begin(options: JobOptions, comm: Communicator) -> Engine:
    """Check the options, prepare the folder for the results, and return the engine of all ranks. Collective.

    Raises
    ------
    InputError
        On every rank, if an option makes no sense or the folder cannot be written.
    """
    with local_stage(comm):
        options.check()
        if comm.rank == 0:
            prepare_folder(Path(options.out))
    return engine_of_ranks(options.engine, comm)


def engine_of_ranks(name: str, comm: Communicator) -> Engine:
    """Return the engine called `name`, or for ``"auto"`` the best that all ranks have.

    Raises
    ------
    InputError
        On every rank, if some rank lacks what it needs.
    """
    with raised_together():
        # A wire for device arrays means that every rank has a device.
        if name == "auto":
            name = "cupy" if comm.device_transport is not None else "numpy"
        elif name == "cupy" and comm.device_transport is None:
            raise InputError("--engine cupy needs CuPy and a GPU on every rank: use --engine numpy")
        return engine(name)


def warn_of_idle_ranks(listener: Listener, comm: Communicator, parts: int, what: str) -> None:
    """Warn where there are more ranks than parts of the work.

    Parameters
    ----------
    listener : Listener
        Gets the warning.
    comm : Communicator
        The ranks.
    parts : int
        How many ranks can have something to do.
    what : str
        What the parts are, in the plural.
    """
    if comm.size > parts:
        listener.warn(f"{parts} {what} for {comm.size} ranks: {comm.size - parts} of them have nothing to do")
