"""Simulated time for the profile's tests."""

from __future__ import annotations

import pytest

from collops.profile import marks
from tests.profile.simulated import Clock, Device


@pytest.fixture
def clock(monkeypatch):
    """Host time that moves only when the test says so, and no device."""
    clock = Clock()
    device = Device(clock)
    device.in_use = False
    monkeypatch.setattr(marks, "clock", clock)
    monkeypatch.setattr(marks, "device", device)
    return clock


@pytest.fixture
def device(clock, monkeypatch):
    """A device that works while the host continues."""
    device = Device(clock)
    monkeypatch.setattr(marks, "device", device)
    return device
