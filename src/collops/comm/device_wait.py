"""The deadline of kernels that wait for other devices."""

from __future__ import annotations

from pathlib import Path

from collops.comm.failure import default_timeout

_EXTRA_SECONDS = 30.0  # after the deadline of the host, whose error is more informative


def wait_while_source() -> str:
    """Return CUDA source to prepend to kernels that wait for other devices.

    It defines ``WAIT_WHILE(condition)``, a loop that ends with a device error half a minute after the deadline of the
    host's waits (``COLLOPS_TIMEOUT``). Empty if waits have no deadline: then define a plain loop.

    Examples
    --------
    >>> from collops.comm import wait_while_source
    >>> source = wait_while_source() + "__global__ void wait(volatile int* flag) { WAIT_WHILE(*flag < 1); }"
    >>> "__trap" in source or "WAIT_WHILE" not in wait_while_source()
    True
    """
    timeout = default_timeout()
    if timeout is None:
        return ""
    nanoseconds = round((timeout + _EXTRA_SECONDS) * 1e9)
    definition = Path(__file__).with_name("device_wait.cu").read_text(encoding="utf-8")
    return f"#define DEADLINE {nanoseconds}ull\n{definition}"
