"""A word to whoever waits for a prediction that takes long: of a recurrent layer every step is an operation."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainlean.costs.measuring import progress_bar, somebody_watches

AFTER = 5.0  # seconds without a word
EVERY = 256  # operations between two looks at the clock
_told = threading.local()  # who is told of a thread's operations


@contextmanager
def with_a_word(name: str) -> Iterator[None]:
    """Show how many operations were followed, once the predictions within have taken some seconds and where somebody watches."""
    before, word = _told.__dict__.get("word"), _Word(name)
    _told.word = word if somebody_watches() else None
    try:
        yield
    finally:
        _told.word = before
        word.end()


def teller() -> Callable[[], None] | None:
    """What is to be called at each operation of this thread's predictions; None where nobody watches."""
    return _told.__dict__.get("word")


class _Word:
    def __init__(self, name):
        self.name, self.count, self.bar = name, 0, None
        self.began = time.monotonic()

    def __call__(self):
        self.count += 1
        if self.count % EVERY:
            return
        if self.bar is None and time.monotonic() - self.began > AFTER:
            form = dict(unit=" operations", initial=self.count)
            self.bar = progress_bar(None, f"predicting {self.name}", True, **form)
        if self.bar is not None:
            self.bar.update(self.count - self.bar.n)

    def end(self):
        if self.bar is not None:
            self.bar.close()
