"""Messages from one rank to another, by the methods of a communicator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from collops.backend import Engine, engine_of
from collops.comm.buffers import check_kind, prepared
from collops.comm.entry import or_traced
from collops.comm.ranks import Ranks
from collops.comm.transport import FIRST_USER_TAG
from collops.errors import CommunicationError, InputError, LayoutError, UnsupportedTypeError
from collops.profile import messages

__all__ = ["PointToPoint"]

_USER_TAGS = 1 << 20


class PointToPoint(Ranks):
    """Sends, receives, and groups of them."""

    @or_traced
    def send(self, x: Any, dest: int, tag: int = 0) -> None:
        """Send `x` to rank `dest`, which calls :meth:`recv`. Not collective."""
        self._check_rank(dest, "dest")
        source, engine = prepared(x, self._pending)
        if messages.active:
            messages.record("send", source.size, source.nbytes)
        self._message(engine, [(dest, source)], [], tag)

    @or_traced
    def recv(self, out: Any, source: int, tag: int = 0) -> Any:
        """Receive from rank `source` into `out`, and return it. Not collective.

        Inside :meth:`group` the values are there when the group ends.
        """
        self._check_rank(source, "source")
        engine = engine_of(out)
        check_kind(out.dtype)
        if messages.active:
            messages.record("recv", out.size, out.nbytes)
        return self._receive(engine, [], out, source, tag)

    @or_traced
    def sendrecv(self, x: Any, dest: int, out: Any, source: int, tag: int = 0) -> Any:
        """Send `x` to `dest` and receive `out` from `source` at once; return `out`. Not collective."""
        self._check_rank(dest, "dest")
        self._check_rank(source, "source")
        given, engine = prepared(x, self._pending)
        if engine_of(out) is not engine:
            raise UnsupportedTypeError("sendrecv needs both arrays of one engine")
        check_kind(out.dtype)
        if messages.active:
            messages.record("sendrecv", given.size, given.nbytes)
        return self._receive(engine, [(dest, given)], out, source, tag)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Merge the calls inside: NCCL launches them at once, and no send waits for its receive.

        Inside, arrays must be contiguous, and results are there when the group ends. NCCL has no reductions of
        booleans, 16-bit integers and logical operations inside. An error that leaves the group does not wait for what
        has been started; nothing can be sent any more then.
        """
        if self._pending is not None:
            raise CommunicationError("groups cannot be nested")
        self._pending = pending = []
        try:
            with ExitStack() as stack:
                if self._device is not None:
                    stack.enter_context(self._device.group())
                yield
        except BaseException as error:
            if pending and self._failures is not None:
                self._failures.leave_behind(pending, f"a group was left by {type(error).__name__}: {error}")
            raise
        finally:
            self._pending = None
        for message in pending:
            message.wait()

    def _receive(self, engine: Engine, sends: list[tuple[int, Any]], out: Any, source: int, tag: int) -> Any:
        landing = out if out.flags.c_contiguous else engine.xp.empty(out.shape, out.dtype)
        if landing is not out and self._pending is not None:
            raise LayoutError("inside a group, recv needs a contiguous array")
        self._message(engine, sends, [(source, landing)], tag)
        if landing is not out:
            out[...] = landing
        return out

    def _message(self, engine: Engine, sends: list[tuple[int, Any]], receives: list[tuple[int, Any]], tag: int) -> None:
        if not 0 <= tag < _USER_TAGS:
            raise InputError(f"a tag must be between 0 and {_USER_TAGS - 1}, not {tag}")
        pending = self._wire(engine).start_exchange(sends, receives, FIRST_USER_TAG + tag)
        if self._pending is None:
            pending.wait()
        else:
            self._pending.append(pending)
