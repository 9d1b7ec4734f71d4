"""Label parts of a program; open recordings collect the duration of each execution."""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, TypeVar, overload

from collops.errors import CollopsError, UnsupportedTypeError
from collops.profile.device import CudaClock, Stamp

__all__ = ["Span", "active"]

P = ParamSpec("P")
T = TypeVar("T")

active: list[Any] = []
"""The open recordings, outermost first. An empty list means that nothing records."""

# Module variables, not arguments, so that tests can replace them by a simulated clock and device.
clock: Callable[[], int] = time.perf_counter_ns
device = CudaClock()


class _OpenSpans(threading.local):
    """The open spans of this thread, outermost first, and the thread's name."""

    def __init__(self) -> None:
        self.stack: list[Span] = []
        self.thread = threading.current_thread().name


_open = _OpenSpans()


class Mark:
    """A label for a ``with`` statement or a function. This base class records nothing."""

    __slots__ = ("label",)

    def __init__(self, label: str) -> None:
        self.label = label

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Mark every call of `function`; see `benchmark`."""
        return benchmark(function, label=self.label)


class Span(Mark):
    """One execution of a marked part of the program, in nanoseconds of the host's clock."""

    __slots__ = ("_ranges", "_stack", "begin", "device_begin", "device_end", "device_times", "end", "parent", "thread")

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self._stack: list[Span] | None = None
        self._ranges: Any = None
        self.parent: Span | None = None  # the innermost span that was open in this thread
        self.thread = ""  # the thread's name
        self.begin = 0
        self.end: int | None = None  # None while the span is open
        self.device_begin: Stamp | None = None  # the same moments on the device's stream
        self.device_end: Stamp | None = None
        self.device_times: tuple[int, int] | None = None  # their times; see `recording.set_device_times`

    @property
    def captured(self) -> bool:
        """Whether the span began or ended inside a stream capture, where only the host's time is known."""
        return any(stamp is not None and stamp.event is None for stamp in (self.device_begin, self.device_end))

    def __enter__(self) -> None:
        """Begin the span in every open recording."""
        if self._stack is not None:
            raise CollopsError(f"mark {self.label!r} was entered twice; call mark() anew for each with statement")
        stack = self._stack = _open.stack
        self.parent = stack[-1] if stack else None
        self.thread = _open.thread
        stack.append(self)
        for recording in active:
            recording.spans.append(self)
            if self._ranges is None and recording.ranges is not None:
                self._ranges = recording.ranges
                self._ranges.push(self.label)
        self.device_begin = device.stamp()
        self.begin = clock()

    def __exit__(self, *error: object) -> None:
        """End the span, also if the recordings have been closed."""
        self.end = clock()
        self.device_end = device.stamp()
        stack = self._stack
        # A suspended generator can leave a span open above this one, and another thread may close this one. The stack
        # is therefore truncated here, and the removed spans record their ends later.
        if stack is not None and self in stack:
            while True:
                top = stack.pop()
                if top._ranges is not None:
                    top._ranges.pop()
                if top is self:
                    break


_idle = functools.lru_cache(maxsize=1024)(Mark)


def mark(label: str) -> Mark:
    """Label a piece of code: ``with mark("modelling"): ...``, or ``@mark("modelling")`` on a function.

    Without an open recording (see `collops.profile.record` and ``COLLOPS_PROFILE``) a mark takes about 0.3 us in all;
    with one, about 3 us on the host, plus two events if the thread uses a device. It never waits for the device.

    Parameters
    ----------
    label : str
        The name in reports. Times of marks with one label inside one parent are summed.

    Returns
    -------
    Mark
        A context for one ``with`` statement, or a decorator.

    Notes
    -----
    Events time work on the current CUDA stream. Other asynchronous work (JAX) is timed by the host's clock, which
    measures its dispatch only.

    Examples
    --------
    >>> from collops import profile
    >>> with profile.record() as recording:
    ...     with profile.mark("outer"), profile.mark("inner"):
    ...         pass
    >>> recording.report().row("outer", "inner").calls
    (1,)
    """
    return Span(label) if active else _idle(label)


@overload
def benchmark(function: Callable[P, T], *, label: str | None = None) -> Callable[P, T]: ...
@overload
def benchmark(function: None = None, *, label: str | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def benchmark(function: Callable[..., Any] | None = None, *, label: str | None = None) -> Any:
    """Mark every call of a function: ``@benchmark`` or ``@benchmark(label="modelling")``.

    Parameters
    ----------
    function : callable
        The function. Each resumption of a generator counts as a call, so that the consumer's work is not included.
    label : str, optional
        The name in reports; the function's qualified name by default.

    Returns
    -------
    callable
        The marked function; it takes about 0.15 us longer without an open recording.

    Raises
    ------
    UnsupportedTypeError
        For ``async`` functions, whose calls interleave.

    Examples
    --------
    >>> from collops import profile
    >>> @profile.benchmark
    ... def work():
    ...     return 3
    >>> with profile.record() as recording:
    ...     work()
    3
    >>> [row.label for row in recording.report().rows]
    ['work']
    """
    if function is None:
        return functools.partial(benchmark, label=label)
    name = label or getattr(function, "__qualname__", type(function).__qualname__)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise UnsupportedTypeError(f"{name} is asynchronous; mark the parts of it that do not await")
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generate(*args: Any, **keywords: Any) -> Generator[Any, Any, Any]:
            return _marked(function(*args, **keywords), name)

        return generate

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if not active:
            return function(*args, **keywords)
        with Span(name):
            return function(*args, **keywords)

    return call


def _marked(generator: Generator[Any, Any, T], label: str) -> Generator[Any, Any, T]:
    """Run `generator` with a mark around each of its steps; forward values and exceptions of the consumer."""
    step: Callable[[], Any] = functools.partial(next, generator)
    while True:
        with mark(label):
            try:
                item = step()
            except StopIteration as stop:
                return stop.value
        try:
            step = functools.partial(generator.send, (yield item))
        except GeneratorExit:
            generator.close()
            raise
        except BaseException as error:  # anything that the consumer throws
            step = functools.partial(generator.throw, error)
