"""The clock of a time loop on a device, by which one recording of several steps serves the whole loop; the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from collops.extend.arrays import LocalArray
from collops.extend.engines import engine_of
from collops.profile import messages
from collops.seismic.graphs import recorded, side_streams
from collops.seismic.waves.cuda.storage import download, empty_on_host, upload

_SIDES = 7  # streams for the receivers, and for the kinds of points that layers reach
_RECORDED = 16  # steps that are recorded together; even, so that the two fields have their places again


class State:
    """The state of the scheme on a device between two steps: two fields, of which number `turn` is the present one.

    Copies are on the device or, if `copies_far`, on the host.
    """

    def __init__(self, shape: tuple[int, ...], memory: tuple[int, int], dtype: np.dtype, xp: Any) -> None:
        self.fields, self.memory, self.turn = xp.zeros((2, *shape), dtype), xp.zeros(memory, dtype), 0
        self.copies_far = False

    @property
    def now(self) -> LocalArray:
        """The present field."""
        return self.fields[self.turn]

    @property
    def before(self) -> LocalArray:
        """The field before, in whose memory the next one is computed."""
        return self.fields[1 - self.turn]

    @property
    def bytes(self) -> int:
        """The memory of a copy."""
        return self.fields.nbytes + self.memory.nbytes

    def swap(self) -> None:
        """Make the field that a step computed the present one."""
        self.turn = 1 - self.turn

    def copy(self) -> State:
        """Return a copy."""
        other = object.__new__(State)
        for name in ("fields", "memory"):
            array = getattr(self, name)
            copied = empty_on_host(array.shape, array.dtype) if self.copies_far else array.copy()
            setattr(other, name, copied)
        other.copies_far = self.copies_far
        other.restore(self)
        return other

    def restore(self, other: State) -> None:
        """Take the values of another state."""
        for name in ("fields", "memory"):
            target, source = getattr(self, name), getattr(other, name)
            if not self.copies_far:
                target[...] = source
            elif isinstance(target, np.ndarray):
                download(source, target)
            else:
                upload(target, source)
        self.turn = other.turn


class Clock:
    """The number of the present step on the device, and loops of steps that read it there.

    Parameters
    ----------
    time : array
        Memory on the device for two numbers of type int32: of the step, and of the step whose wavefield is the first
        one stored.
    tick : callable
        ``tick(by)`` launches the kernel that moves the clock on. It must not refer to the owner of the clock, whose
        memory would be free only when Python collects cycles: wavefields may be most of the device.
    recordable : bool
        Whether steps can be recorded as a CUDA graph.
    """

    def __init__(self, time: LocalArray, tick: Callable[[int], None], recordable: bool) -> None:
        self.time, self._tick, self._recordable = time, tick, recordable

    def run(
        self,
        step: Callable[[int, int, Sequence[Any]], None],
        states: Sequence[State],
        first: int,
        count: int,
        graphs: dict[Any, Callable[[], None]] | None = None,
        name: object = None,
        *,
        direction: int = 1,
        base: int | None = None,
    ) -> int:
        """Do steps from number `first` on; wavefields are stored from number `base` on.

        ``step(turn, ahead, sides)`` computes from field number `turn` the step whose number is the clock's plus
        `ahead`. Recordings are kept in `graphs` by `name`. Returns the number of steps since the time on the clock.
        """
        self.time[...] = engine_of(self.time).from_host(np.array([first, first if base is None else base], np.int32))
        turn, graphs = states[0].turn, {} if graphs is None else graphs

        def several(turn: int, count: int, sides: Sequence[Any]) -> None:
            for number in range(count):
                step((turn + number) % 2, direction * number, sides)

        since = count
        # Messages are counted where they are sent from the host.
        if self._recordable and not messages.active and count > 2 * _RECORDED:
            # While the device computes these, the others are recorded.
            eager = count % _RECORDED + _RECORDED
            several(turn, eager, ())
            self._tick(direction * eager)
            then, since = (turn + eager) % 2, 0

            def recorded_steps() -> None:
                several(then, _RECORDED, side_streams(_SIDES))
                self._tick(direction * _RECORDED)

            if (name, then) not in graphs:
                graphs[name, then] = recorded(recorded_steps)
            for _ in range((count - eager) // _RECORDED):
                graphs[name, then]()
        else:
            several(turn, count, ())
        for state in states:
            state.turn = (turn + count) % 2
        return since
