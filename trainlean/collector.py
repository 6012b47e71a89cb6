"""Python's garbage collector looks at everything that lives: with torch imported that takes longer than many a training here, and a meter calls it before each."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def spared() -> Iterator[None]:
    """What is already there is kept from the collector inside."""
    if _imports_are_spared():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@cache
def _imports_are_spared():
    # In a process forked after its imports, and in tests: for good. Asked once, since it counts them one by one.
    return gc.get_freeze_count() > 0
