"""A real browser for the tests of this folder: Chromium as the system has it, driven by Playwright."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def found() -> str | None:
    """Where Chromium is: $CHROMIUM, else the first of its usual names."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def chromium():
    """Chromium, started once."""
    if not (path := found()):
        reason = "No Chromium is found: install it (Debian and Ubuntu: apt install chromium), or say where it is: CHROMIUM=/path/to/chromium"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root in a container there is no sandbox; the pages are our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


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
