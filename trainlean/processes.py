"""Processes of a server that has imported everything and computed nothing: a fork of it is ready in milliseconds, and sound."""

import multiprocessing


def server_context(preloaded: list[str]):
    """A multiprocessing context whose server imports these modules first; on Windows each process imports them itself."""
    context = multiprocessing.get_context(
        "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    )
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(preloaded)
    return context
