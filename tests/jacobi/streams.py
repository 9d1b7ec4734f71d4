"""Simulated GPUs: work on a stream runs as late as its order permits, and in an order that is otherwise random.

Reads find old values if an event is missing, and halos are overwritten too early by chance. Rules of CUDA that code for
several devices may break are asserted: a stream is made current on its own device, and an event is recorded on the
device where it was made.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import types
from typing import Any

import numpy as np

from collops.backend import Engine
from collops.jacobi.numpy_sweeps import Sweeps

DEVICES = 3


class _Operation:
    def __init__(self, action: Any, after: list[Any]) -> None:
        self.action = action
        self.after = [each for each in after if each is not None]


class Simulation:
    """A module that plays CuPy, and the streams behind it."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._lock = threading.RLock()
        self._local = threading.local()
        self.streams: list[Any] = []
        self.at_once = True  # whether the caller's stream is not late, as where hosts read what it wrote
        self._arrays: list[Any] = []  # CuPy, too, keeps memory until copies from its address have run
        self.enabled: set[tuple[int, int]] = set()
        self.defaults = [self._stream(device) for device in range(DEVICES)]
        self.cupy: Any = self._module()

    # ---- what is current in a thread

    @property
    def device(self) -> int:
        return self._devices[-1]

    @property
    def _devices(self) -> list[int]:
        return self._local.__dict__.setdefault("devices", [0])

    @property
    def current(self) -> Any:
        stack = self._local.__dict__.setdefault("streams", [])
        return next((stream for stream in reversed(stack) if stream.device == self.device), self.defaults[self.device])

    # ---- operations and their order

    def enqueue(self, action: Any, stream: Any = None, after: Any = None) -> None:
        with self._lock:
            stream = stream or self.current
            stream.last = _Operation(action, [stream.last, after])
            if self.at_once and stream in self.defaults:
                self.finish(stream.last)

    def finish(self, last: Any) -> None:
        """Run an operation and those before it, and no others."""
        with self._lock:
            waiting: list[Any] = [last] if last is not None else []
            for operation in waiting:
                waiting += [each for each in operation.after if each not in waiting]
            while waiting:
                ready = [each for each in waiting if all(before.action is None for before in each.after)]
                chosen = ready[self._random.integers(len(ready))]
                if chosen.action is not None:
                    chosen.action()
                    chosen.action = None
                waiting.remove(chosen)

    # ---- CuPy

    def _stream(self, device: int) -> Any:
        simulation = self

        class Stream:
            def __init__(self) -> None:
                self.device = device
                self.last: Any = None
                simulation.streams.append(self)
                self.ptr = len(simulation.streams)

            def __enter__(self) -> Any:
                assert self.device == simulation.device
                simulation._local.__dict__.setdefault("streams", []).append(self)
                return self

            def __exit__(self, *_: object) -> None:
                simulation._local.streams.pop()

            def wait_event(self, event: Any) -> None:
                simulation.enqueue(lambda: None, self, event.operation)

            def record(self, event: Any) -> None:
                event.record(self)

            def synchronize(self) -> None:
                simulation.finish(self.last)

        return Stream()

    def _module(self) -> Any:
        simulation = self

        class Event:
            def __init__(self, disable_timing: bool) -> None:
                self.device = simulation.device
                self.operation: Any = None

            def record(self, stream: Any = None) -> None:
                stream = stream or simulation.current
                assert stream.device == self.device
                self.operation = stream.last

        class Array(np.ndarray):
            @property
            def data(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
                return types.SimpleNamespace(ptr=self.ctypes.data)

            def __setitem__(self, place: Any, value: Any) -> None:
                simulation.enqueue(lambda: self.view(np.ndarray).__setitem__(place, value))

            def fill(self, value: Any) -> None:
                self[...] = value

            def __iadd__(self, other: Any) -> Any:
                mine = self.view(np.ndarray)
                simulation.enqueue(lambda: np.add(mine, other.view(np.ndarray), out=mine))
                return self

        def empty(shape: Any, dtype: Any = float) -> Any:
            array = np.empty(shape, dtype)
            array.fill(-1)  # no value of the problem
            self._arrays.append(array)
            return array.view(Array)

        def zeros(shape: Any, dtype: Any = float) -> Any:
            array = empty(shape, dtype)
            array.fill(0)
            return array

        def copy(target: int, source: int, size: int, kind: int, stream: int) -> None:
            simulation.enqueue(lambda: ctypes.memmove(target, source, size), simulation.streams[stream - 1])

        @contextlib.contextmanager
        def use(device: int) -> Any:
            simulation._devices.append(device)
            yield
            simulation._devices.pop()

        runtime = types.SimpleNamespace(
            memcpyAsync=copy,
            memcpyDefault=4,
            getDeviceCount=lambda: DEVICES,
            deviceCanAccessPeer=lambda device, peer: {device, peer} != {0, 2},
            deviceEnablePeerAccess=lambda peer: self.enabled.add((self.device, peer)),
            CUDARuntimeError=ZeroDivisionError,
        )
        cupy: Any = types.ModuleType("cupy")
        cupy.ndarray = Array
        cupy.empty, cupy.zeros, cupy.empty_like = empty, zeros, lambda like: empty(like.shape, like.dtype)
        cupy.asarray = np.asarray
        cupy.cuda = types.SimpleNamespace(
            Device=use,
            Event=Event,
            Stream=lambda **_: self._stream(self.device),
            get_current_stream=lambda: self.current,
            runtime=runtime,
        )
        return cupy

    def engine(self) -> Engine:
        engine = Engine("cupy", self.cupy, "device")
        engine.streams = True
        return engine

    def sweeps(self, engine: Any, grid: Any) -> Any:
        """Sweeps that are enqueued on the current stream; those of NumPy do the work."""
        real = Sweeps(grid)
        device = self.device

        def enqueued(name: str) -> Any:
            def launch(*arguments: Any) -> None:
                assert self.device == device
                assert self.current not in self.defaults
                plain = [each.view(np.ndarray) if isinstance(each, np.ndarray) else each for each in arguments]
                self.enqueue(lambda: getattr(real, name)(*plain))

            return launch

        names = ("full", "boundary", "inner", "into_halos")
        return types.SimpleNamespace(**{name: enqueued(name) for name in names})
