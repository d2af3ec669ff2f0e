"""Pages of ours, looked at in a browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'fastcar[test]'")
    found = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
    if found is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def look(browser: Any) -> Iterator[Open]:
    """Open a file; every request beyond it and every error of the page fails the test."""
    contexts, outside, errors = [], [], []

    def open_page(file: Path, width: int = 1200, **options: Any) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, **{"reduced_motion": "reduce", **options}
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(300_000)
        page.on("request", lambda r: None if r.url.startswith(("data:", file.as_uri())) else outside.append(r.url))
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert outside == []
    assert errors == []
