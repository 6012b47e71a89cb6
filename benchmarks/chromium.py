"""The system's Chromium, driven by Playwright, for benchmarks and for the tests of widgets and pages."""

import os
import shutil
from contextlib import contextmanager

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
MISSING = "No Chromium is found: install it (Debian and Ubuntu: apt install chromium), or say where it is: CHROMIUM=/path/to/chromium"


def found() -> str | None:
    """Where Chromium is: $CHROMIUM, else the first of its usual names."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def browser():
    """Chromium, until the block ends; SystemExit where there is none."""
    if not (path := found()):
        raise SystemExit(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root in a container there is no sandbox; the pages are our own.
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()
