"""A real browser for the tests of this folder: Chromium as the system has it, driven by Playwright."""

import os
import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from chromium import MISSING, browser, found

STARTED = ExitStack()
BROWSERS: list = []
PAGES: dict = {}  # that no test uses, by their options


@pytest.fixture(scope="module")
def chromium():
    """Chromium, started once for the tests of this folder that follow one another."""
    if not found():
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    if not BROWSERS:
        BROWSERS.append(STARTED.enter_context(browser()))
    return BROWSERS[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Elsewhere tests of processes look for what is left running."""
    try:
        return (yield)
    finally:
        if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
            BROWSERS.clear()
            PAGES.clear()
            STARTED.close()


def _open_page(chromium):
    """`open_page(address, **options)` opens a page; the test fails on any error of its console, and on pages that load from elsewhere.

    `own`: an expression for what the page may say in its console.
    """
    contexts, used, wrong = [], [], []

    def opened(address, allowed="http://localhost", own="(?!)", **options):
        def said(words):
            if not re.search(own, words):
                wrong.append(words)

        def elsewhere(request):
            if not request.url.startswith((allowed, "file:", "data:", "blob:")):
                wrong.append(f"loads {request.url}")

        listeners = {
            "console": lambda one: (
                one.type == "error" and said(f"{one.text} {one.location['url']}")
            ),
            "pageerror": lambda error: said(str(error)),
            "request": elsewhere,
        }
        # Of files, which keep nothing, one page shows one after the other: a new one takes a process.
        key = None if address.startswith("http") else str(options)
        page = PAGES.pop(key, None)
        if page is None:
            context = chromium.new_context(**options)
            page = context.new_page()
            if key is None:
                contexts.append(context)
        else:
            page.set_viewport_size(options.get("viewport", {"width": 1280, "height": 720}))
            page.emulate_media(color_scheme=options.get("color_scheme", "light"))
            page.mouse.move(0, 0)
        for event, heard in listeners.items():
            page.on(event, heard)
        used.append((key, page, listeners))
        page.goto(address)
        return page

    yield opened
    for key, page, listeners in used:
        if key is not None and not page.is_closed():
            for event, heard in listeners.items():
                page.remove_listener(event, heard)
            PAGES[key] = page
    for context in contexts:
        context.close()
    assert not wrong


open_page = pytest.fixture(_open_page)
open_page_of_module = pytest.fixture(_open_page, scope="module")
