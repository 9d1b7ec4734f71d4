from __future__ import annotations

from tests.apps.conftest import folder, no_pictures, with_pictures
from tests.seismic.waves_on_host import on_device

__all__ = ["folder", "no_pictures", "on_device", "with_pictures"]
