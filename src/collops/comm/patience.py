"""The deadline of kernels that wait for other devices: what is put before their source."""

from __future__ import annotations

from pathlib import Path

from collops.comm.failure import default_timeout

__all__ = ["patience"]

_LONGER_SECONDS = 30.0  # than the host, whose error says more


def patience() -> str:
    """Return the definition of ``WAIT_WHILE(condition)`` for CUDA sources, with the deadline of this process.

    Empty where waits have no deadline; sources define a plain loop then.
    """
    timeout = default_timeout()
    if timeout is None:
        return ""
    nanoseconds = round((timeout + _LONGER_SECONDS) * 1e9)
    return f"#define PATIENCE {nanoseconds}ull\n" + Path(__file__).with_name("patience.cu").read_text(encoding="utf-8")
