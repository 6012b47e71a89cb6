"""Functions of libraries that a prediction replaces, for its own thread alone: what another one trains meanwhile is as ever."""

import functools
import os
import threading
from unittest import mock

# Two predictions at once would take each other's replacements for the libraries' own functions, and leave them there.
TURN = threading.RLock()
if hasattr(os, "register_at_fork"):  # a process that is forked meanwhile waits for nobody
    os.register_at_fork(after_in_child=TURN._at_fork_reinit)  # type: ignore[attr-defined]


def instead(owner, **functions):
    """A context in which functions of a module or class are these, in the thread that opens it and holds TURN."""
    here = threading.get_ident()

    def of_one_thread(new, original):
        @functools.wraps(original)
        def function(*args, **kwargs):
            chosen = new if threading.get_ident() == here else original
            return chosen(*args, **kwargs)

        return function

    return mock.patch.multiple(
        owner, **{name: of_one_thread(new, getattr(owner, name)) for name, new in functions.items()}
    )
