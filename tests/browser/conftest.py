"""A real browser for the tests of this folder: Chromium as the system has it, driven by Playwright."""

import os

import pytest
from chromium import MISSING, browser, found


@pytest.fixture(scope="module")
def chromium():
    """Chromium, started once for a file: tests of processes look for what is left running."""
    if not found():
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with browser() as started:
        yield started


@pytest.fixture
def open_page(chromium):
    """`open_page(address, **options)` opens a page; the test fails on any error of its console, and on pages that load from elsewhere."""
    contexts, wrong = [], []

    def opened(address, allowed="http://localhost", **options):
        context = chromium.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: said.type == "error" and wrong.append(said.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: elsewhere(request.url, allowed))
        page.goto(address)
        return page

    def elsewhere(url, allowed):
        if not url.startswith((allowed, "file:", "data:", "blob:")):
            wrong.append(f"loads {url}")

    yield opened
    for context in contexts:
        context.close()
    assert not wrong
