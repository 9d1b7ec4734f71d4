from __future__ import annotations

from tests.apps.conftest import folder, no_pictures, with_pictures

__all__ = ["folder", "no_pictures", "with_pictures"]
