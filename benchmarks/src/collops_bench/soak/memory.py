"""The search for leaks: memory of host and device, and live objects that hold resources of MPI, NCCL or NVSHMEM."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from collops.backend import Engine

__all__ = ["Sample", "Watch", "take_sample"]

_COUNTED = (
    *("Communicator", "DistributedArray", "Exchange", "ExchangePlan", "InFlight", "IndexScatter", "MpiTransport"),
    *("NcclTransport", "Pattern", "Pending", "PersistentMessages", "StarForest", "Symmetric", "SharedWindow"),
    *("DeviceHeap", "Comm", "Intracomm", "Request", "Prequest", "Win", "CapturedStep", "Graph", "GraphExec"),
)
_MAX_GROWTH = 0.01


@dataclass(frozen=True)
class Sample:
    """Memory and live objects of one rank at one moment."""

    seconds: float  # since the run began
    host: int  # bytes that the process has, and that CuPy and all other programs have of the device
    device: int
    objects: dict[str, int]  # live objects by class


def take_sample(seconds: float, engine: Engine) -> Sample:
    """Collect garbage, give free memory back to the system, and take a sample of the rest."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)
    device = 0
    if engine.name == "cupy":
        engine.synchronize()
        engine.xp.get_default_memory_pool().free_all_blocks()
        free, total = engine.xp.cuda.Device().mem_info
        device = total - free
    result = Counter(type(item).__name__ for item in gc.get_objects())
    return Sample(seconds, _resident(), device, {name: result[name] for name in _COUNTED if result[name]})


def _resident() -> int:
    """Bytes of this process that are in memory; the most that there have been where only that is known."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        # Memory mapped from files (libraries, memory that ranks share) comes and goes with its use.
        return 1024 * int(fields["RssAnon"].split()[0])
    except (OSError, KeyError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most


@dataclass
class Watch:
    """Samples of one rank, and whether they grow.

    Objects that are kept on purpose (plans, kernels, communicators of groups) are made during the warm-up. Among the
    samples after it, the median of the last third is compared with the median of the first third.
    """

    warm_up: float  # seconds
    samples: list[Sample] = field(default_factory=list)

    def growth(self) -> dict[str, float]:
        """Return the relative growth of memory and numbers of objects; nothing with too few samples."""
        warm = [sample for sample in self.samples if sample.seconds >= self.warm_up]
        if len(warm) < 6:
            return {}
        third = len(warm) // 3
        before, after = warm[:third], warm[-third:]

        def share(values: list[float], later: list[float]) -> float:
            low, high = median(values), median(later)
            return (high - low) / low if low else float(high > 0)

        result = {
            kind: share([getattr(s, kind) for s in before], [getattr(s, kind) for s in after])
            for kind in ("host", "device")
        }
        for name in _COUNTED:
            result[name] = share([s.objects.get(name, 0) for s in before], [s.objects.get(name, 0) for s in after])
        return {name: value for name, value in result.items() if value}

    def leaks(self) -> list[str]:
        """Return a line for each quantity that has grown by more than a hundredth."""
        return [f"{name} grew by {100 * value:.2f} %" for name, value in self.growth().items() if value > _MAX_GROWTH]
