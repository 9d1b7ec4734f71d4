"""Monitoring of jobs without a terminal: a line a minute, and metrics in the text format of Prometheus.

Rank 0 reports. Its solver updates a `Monitor` as it would update a progress bar: the host then already knows the
residual, so that the device need not be synchronised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from collops.apps.stages import local_stage
from collops.comm import Communicator
from collops.errors import InputError
from collops.profile.messages import MessageCounts, count_messages

_LOCALHOST = "127.0.0.1"
_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_METRICS = 60.0, 1.0
_GAUGES = {
    "iterations": "Completed iterations of the solver.",
    "iteration_limit": "Largest number of iterations of the solver.",
    "residual_norm": "Norm of the residual after these iterations.",
    "solver_seconds": "Seconds since the start of the solver.",
}


class Metrics:
    """The numbers of a job on rank 0, which `prometheus_client` collects for a file or for HTTP requests."""

    def __init__(self, labels: dict[str, str], counts: MessageCounts) -> None:
        self.values: dict[str, float] = {}  # of the gauges
        self.write: Callable[[], None] = lambda: None  # replaces the file, if there is one
        self._labels, self._counts, self._begun = labels, counts, time.monotonic()

    def collect(self) -> Iterator[Any]:
        """Yield all metrics; called by `prometheus_client`, also in its own thread."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        yield InfoMetricFamily("collops_job", "The command and its ranks.", self._labels)
        yield GaugeMetricFamily("collops_job_seconds", "Seconds since the start.", time.monotonic() - self._begun)
        for name, value in self.values.copy().items():
            yield GaugeMetricFamily(f"collops_{name}", _GAUGES[name], value)
        messages = CounterMetricFamily("collops_messages", "Messages in which rank 0 took part.", labels=["operation"])
        for operation, number in self._counts.counts().items():
            messages.add_metric([operation], number)
        yield messages
        yield CounterMetricFamily("collops_message_bytes", "Bytes of them that rank 0 sent.", self._counts.nbytes)


@contextmanager
def open_metrics(
    target: str | None, labels: dict[str, str], comm: Communicator, warn: Callable[[str], None]
) -> Iterator[Metrics | None]:
    """Yield the metrics of a job on rank 0 if there is a `target`, a port of this host or a file; otherwise ``None``.

    Collective. Raises `InputError` if `prometheus_client` is missing, or if the port or the file cannot be used.
    """
    with ExitStack() as stack:
        metrics: Metrics | None = None
        if target is not None:
            with local_stage(comm):
                if comm.rank == 0:
                    metrics = Metrics(labels, stack.enter_context(count_messages(records=False)))
                    stack.callback(_publish(metrics, target, warn))
        yield metrics


def _publish(metrics: Metrics, target: str, warn: Callable[[str], None]) -> Callable[[], None]:
    """Write the metrics to a file, or answer HTTP requests of this host; return the function that ends it."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
    except ImportError:
        raise InputError('--metrics needs prometheus_client: run pip install "collops[metrics]"') from None
    registry: Any = CollectorRegistry()
    registry.register(metrics)
    lost = False

    def rewrite() -> None:
        nonlocal lost
        try:
            write_to_textfile(target, registry)
        except OSError as problem:  # such as a full disk, which must not end the job
            if not lost:
                warn(f"--metrics {target} can no longer be written: {problem.strerror}")
            lost = True

    try:
        if not target.isdigit():
            write_to_textfile(target, registry)
            metrics.write = rewrite
            return rewrite
        server, thread = start_http_server(int(target), addr=_LOCALHOST, registry=registry)
    except OSError as problem:
        raise InputError(f"--metrics {target}: {problem.strerror}") from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


class Monitor:
    """Shows the progress of a solver on rank 0: in place of a progress bar or beside it."""

    def __init__(self, name: str, total: int, note: Callable[..., None], metrics: Metrics | None, bar: Any) -> None:
        self.display: AbstractContextManager[object] = nullcontext() if bar is None else bar.display
        self._name, self._total, self._note, self._metrics, self._bar = name, total, note, metrics, bar
        self._begun = time.monotonic()
        self._next_line, self._next_metrics = self._begun + _SECONDS_BETWEEN_LINES, self._begun
        if metrics is not None:
            metrics.values["iteration_limit"] = total

    @property
    def due(self) -> bool:
        """Whether an update is due."""
        now = time.monotonic()
        shown = now >= self._next_line if self._bar is None else self._bar.due
        return shown or (self._metrics is not None and now >= self._next_metrics)

    def announce(self, text: str) -> None:
        """Show a message, such as the name of a checkpoint."""
        (self._note if self._bar is None else self._bar.announce)(text)

    def update(self, iteration: int, residual_norm: float | None) -> None:
        """Show an iteration."""
        now = time.monotonic()
        seconds = now - self._begun
        if self._metrics is not None:
            values = {"iterations": iteration, "solver_seconds": seconds}
            self._metrics.values |= values if residual_norm is None else values | {"residual_norm": residual_norm}
            self._metrics.write()
            self._next_metrics = now + _SECONDS_BETWEEN_METRICS
        if self._bar is not None:
            self._bar.update(iteration, residual_norm)
        elif now >= self._next_line:
            residual = "" if residual_norm is None else f", residual {residual_norm:.3e}"
            numbers = {"iteration": iteration, "residual_norm": residual_norm, "seconds": seconds}
            text = f"{self._name}: iteration {iteration} of {self._total}{residual}, after {seconds:.0f} s"
            self._note(text, **numbers)
            self._next_line = now + _SECONDS_BETWEEN_LINES
