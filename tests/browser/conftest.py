"""A headless browser, and pages opened in it that may ask for nothing from outside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser that COLLOPS_BROWSER names, that is on the path, or that playwright has installed."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[browser]'")
    found = os.environ.get("COLLOPS_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    with api.sync_playwright() as playwright:
        try:
            # Containers have no sandbox of the kernel; what is opened is what the tests have written.
            opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except api.Error as problem:
            pytest.skip(f"there is no browser: {str(problem).splitlines()[0]}")
        yield opened
        opened.close()


@pytest.fixture
def visit(browser) -> Iterator[Callable[..., Any]]:
    """Open a file, and when the test ends make sure that nothing went wrong in it and nothing was fetched."""
    contexts, said, asked = [], [], []

    def opened(path: Path, *, width: int = 1280, dark: bool = False) -> Any:
        scheme = "dark" if dark else "light"
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, device_scale_factor=1
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
