"""Processes of a server that has imported everything and computed nothing: a fork of it is ready in milliseconds, and sound."""

import multiprocessing
import sys
import threading
from multiprocessing.process import BaseProcess

_starting = threading.Lock()


def server_context(preloaded: list[str]):
    """A multiprocessing context whose server imports these modules first; on Windows each process imports them itself."""
    context = multiprocessing.get_context(
        "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    )
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(preloaded)
    return context


def start(process: BaseProcess) -> None:
    """Start a process of such a context, in which the program's main file is not run.

    multiprocessing would run it again in every process: seconds for one that imports much, and without an end for a
    script without a `__main__` guard. What the processes of this course need comes to them whole.
    """
    main = sys.modules["__main__"]
    with _starting:
        file, spec = main.__dict__.pop("__file__", None), main.__spec__
        main.__spec__ = None
        try:
            process.start()
        finally:
            main.__spec__ = spec
            if file is not None:
                main.__file__ = file
