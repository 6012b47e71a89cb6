"""Python's garbage collector looks at everything that lives: with torch imported that takes longer than many a training here, and a meter calls it before each."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

OWN = 10_000  # Python 3.12 freezes some hundreds of objects itself when it starts; with torch there are hundreds of thousands

_lock = threading.Lock()
_inside = 0  # blocks of `spared` that are open, in all threads
_for_good = False  # somebody else has frozen what was there: so do processes that fork, and tests


@contextmanager
def spared() -> Iterator[None]:
    """What is already there is kept from the collector inside; what somebody has frozen for good stays frozen."""
    global _inside, _for_good
    with _lock:
        if not _inside and not _for_good:
            # Counts them one by one, so it is asked no more once there are any.
            _for_good = gc.get_freeze_count() > OWN
            if not _for_good:
                gc.freeze()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and not _for_good:
                gc.unfreeze()
