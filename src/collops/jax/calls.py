"""The calls of compiled programs in the failure protocol: ranks compare calls, and every wait has a deadline.

A native transport passes the text of a call, which :func:`text_of` has embedded in the program, to the :class:`Watch`
of its communicator: before sending data, if calls are checked, and periodically while it waits. A Python error cannot
propagate through native code, so that its text becomes the text of an XLA failure; :func:`raise_error_behind` recovers
the error.
"""

from __future__ import annotations

import ctypes
import functools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias

import jax

from collops._forks import register_at_exit
from collops.comm import Communicator
from collops.comm.call import Call, in_elements
from collops.comm.checked import RECEIVE, SEND, Expectation, described_call, described_message
from collops.comm.failure import Cause, Located, call_site, call_site_of_main_thread, library_folders, site_in
from collops.errors import CommunicationError, CommunicationTimeout, InputError
from collops.jax import native
from collops.jax.versions import LoweringContext

library_folders.append(f"{Path(jax.__file__).parent}/")  # calls of users pass through JAX

_Failure: TypeAlias = Any
"""A pointer to the address of the text of a failure."""

_CALL = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_size_t)
_Agree = ctypes.CFUNCTYPE(None, *_CALL)
_Look = ctypes.CFUNCTYPE(None, *_CALL, ctypes.c_int64, ctypes.c_int, ctypes.c_double, ctypes.c_char_p)
_REFUSED, _DIFFER = -1, -2  # of native/src/api.h
_OURS = "INTERNAL: collops."  # begins the text of every failure of the native library
_errors: deque[tuple[str, BaseException]] = deque(maxlen=16)
_watches: list[Watch] = []  # native transports live as long as the process

checking: list[Watch] = []
"""The watches that check calls. If there are any, programs run one by one, so that each raises its own errors."""

eager_site: ContextVar[str] = ContextVar("eager_site", default="")
"""The line of a call outside compiled functions, if calls are checked."""


class Watch:
    """Watches the calls of a communicator's native transports; the first of their `numbers` is the host transport.

    `settle` waits for the programs with collectives started by this rank.
    """

    def __init__(self, comm: Communicator, numbers: Sequence[int], settle: Callable[[], None]) -> None:
        assert comm.failures is not None
        self._failures = comm.failures
        self._agreement = comm.calls
        self._numbers = numbers
        # By thread: several devices of a process may wait at once.
        self._looks: dict[int, tuple[bytes, Iterator[None]]] = {}
        self._messages: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._error: BaseException | None = None
        # Referenced, since the native library calls them.
        self._functions = _Agree() if comm.calls is None else _Agree(self._agree), _Look(self._look)
        if comm.calls is not None:
            comm.calls.settle = settle
        for number in numbers:
            native.library().collops_watch(ctypes.c_int64(number), *self._functions)
        comm.failures.compiled = self
        _watches.append(self)
        if comm.calls is not None:
            checking.append(self)
        _settle_at_exit(settle)

    def count(self) -> int:
        """Return the number of collective calls that this rank has begun on hosts."""
        return native.library().collops_calls(ctypes.c_int64(self._numbers[0]))

    def close(self, why: str) -> None:
        """Make all later calls fail."""
        self._error = CommunicationError(why)
        for number in self._numbers:
            native.library().collops_break(ctypes.c_int64(number))

    def _agree(self, failure: _Failure, address: int, length: int) -> None:
        """Return when all ranks are about to make a call, or with a failure."""
        assert self._agreement is not None
        try:
            call = json.loads(ctypes.string_at(address, length))
            if call["messages"] is None:
                site = call["site"].rpartition(" (")[0]
                self._agreement.collective(_located(call), call["facts"], *call["pieces"], site=site)
            else:
                expectations: dict[int, list[Expectation]] = {}
                for kind, peer, facts in call["messages"]:
                    expectations.setdefault(peer, []).append(Expectation(kind, facts))
                self._agreement.agree(_located(call), expectations, compiled=True)
        except BaseException as error:  # no exception can be raised through native code
            failure[0] = self._message_of(error)
        else:
            failure[0] = None

    def _look(
        self, failure: _Failure, address: int, length: int, calls: int, looks: int, seconds: float, note: bytes
    ) -> None:
        """Set the failure of a wait that cannot succeed, or of a call after a failed one."""
        try:
            if looks == _REFUSED:
                closed = "this communicator can no longer be used: a compiled call was interrupted"
                raise self._error or CommunicationError(closed)
            thread = threading.get_ident()
            if looks <= 0 or self._looks[thread][0] != note:
                call = json.loads(ctypes.string_at(address, length))
                operation = _located(call)
                if looks == _DIFFER:
                    reason = f"cannot continue because {note.decode()}"
                    self._failures.abort(Cause.REJECTION, operation, reason)
                if note:
                    operation = Located(f"{operation}, {note.decode()}")
                start = time.monotonic() - seconds
                looking = self._failures.looks(operation, start, call["peers"], compiled=calls)
                self._looks[thread] = note, looking
            next(self._looks[thread][1])
        except BaseException as error:  # as above; among others KeyboardInterrupt
            if not self._failures.failure:
                self._failures.leave_behind((), f"a compiled call was left by {type(error).__name__}: {error}")
            if isinstance(error, CommunicationError):
                self._error = error
            failure[0] = self._message_of(error)
        else:
            failure[0] = None

    def _message_of(self, error: BaseException) -> int:
        text = f"{type(error).__name__}: {error}"
        _errors.append((text, error))
        self._messages[threading.get_ident()] = message = ctypes.create_string_buffer(text.encode())
        return ctypes.addressof(message)


def text_of(kind: str, comm: Any, context: LoweringContext, parameters: dict[str, Any]) -> str:
    """Return the text that identifies a call of a `NativeComm` in a program: JSON with the data for :class:`Watch`."""
    if not comm.watched:
        return ""
    frames = () if context.traceback is None else context.traceback.frames
    site = site_in(((frame.file_name, frame.function_name, frame.line_num) for frame in frames), True)
    call: dict[str, Any] = {"text": kind, "site": site or eager_site.get(), "peers": None}
    if kind == "exchange":
        ends = [(SEND, *end, x) for end, x in zip(parameters["destinations"], context.avals_in, strict=False)]
        ends += [(RECEIVE, *end, y) for end, y in zip(parameters["sources"], context.avals_out, strict=False)]
        ends = [end for end in ends if end[1] != comm.rank]
        from_any = any(peer < 0 for _, peer, _, _ in ends)
        if from_any and comm.checked:
            raise InputError("COLLOPS_CHECK cannot check a message from any rank: name the source")
        call["peers"] = [] if from_any else sorted({peer for _, peer, _, _ in ends})
        call["text"] = " and ".join(
            described_message(way, peer, x) + f", tag {tag}" * (tag > 0) for way, peer, tag, x in ends
        )
        call["messages"] = [
            (way, peer, {"dtype": x.dtype.name, "elements": x.size, "tag": tag if tag >= 0 else None, "by": "jax"})
            for way, peer, tag, x in ends
        ]
    elif comm.checked:
        record = _record(kind, comm, context, parameters)
        text, facts = described_call(record, "host")
        facts["by"] = "jax"
        if comm.joined is not None:
            text += f" between {comm.size} devices"
            facts["devices"] = comm.joined.counts
        pieces = () if record.receive_counts is None else (record.counts, record.receive_counts)
        call.update(text=f"{text} by JAX", facts=facts, pieces=pieces, messages=None)
    return json.dumps(call)


def raise_error_behind(error: Exception) -> None:
    """Raise the collops error that caused `error` of JAX; return if there is none."""
    text = str(error)
    for known, cause in reversed(_errors):
        if known in text:
            raise cause from None
    _, kind_name, reason = text.partition(_OURS)
    if reason.startswith(KeyboardInterrupt.__name__):
        raise KeyboardInterrupt from None
    if kind_name:
        kind = CommunicationTimeout if reason.startswith(CommunicationTimeout.__name__) else CommunicationError
        raise kind(reason.removeprefix(f"{kind.__name__}: ")) from None


def _record(kind: str, comm: Any, context: LoweringContext, parameters: dict[str, Any]) -> Call:
    """Describe a compiled call like other calls: equal blocks without counts, a scatter by its result."""
    x: Any = context.avals_out[0] if kind == "scatter" else next(iter(context.avals_in), None)
    call = Call(kind, x, None, parameters.get("op"), parameters.get("root"))
    counts = parameters.get("counts", ())
    if len(set(counts)) > 1:
        call.counts = in_elements(counts, x.shape)
    if kind == "alltoall" and comm.joined is None:
        call.counts = in_elements(parameters["leaving"], x.shape)
        call.receive_counts = in_elements(parameters["arriving"], x.shape)
    return call


def _located(call: dict[str, Any]) -> Located:
    site = call["site"] or call_site() or call_site_of_main_thread()
    return Located(f"{call['text']} at {site}" if site else call["text"])


@functools.cache
def _settle_at_exit(settle: Callable[[], None]) -> None:
    """Complete this rank's programs before it reports its number of calls to the other ranks."""
    register_at_exit(settle)
