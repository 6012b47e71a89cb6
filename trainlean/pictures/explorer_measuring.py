"""Measuring a point of the explorer with the learner's function: on the kernel's main thread, once for one press."""

import inspect
import signal
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace

from trainlean.costs.runs import Run
from trainlean.pictures.explorer_state import ExplorerState


def takes(function: Callable, setting: str) -> bool:
    """Whether a function takes an argument of this name."""
    parameters = inspect.signature(function).parameters.values()
    return any(one.name == setting or one.kind is one.VAR_KEYWORD for one in parameters)


def measured(state: ExplorerState, measure: Callable[..., Run]) -> tuple[Run | None, str]:
    """The run of the state's point, which `measure(**settings)` makes, or None and in words what went wrong.

    The settings that are not in `measure`'s signature are left out.
    """
    settings = state.written
    controls = {control.setting for control in state.controls}
    # `devices` is no control: a function that does not take it says so.
    taken = {
        name: value
        for name, value in settings.items()
        if name not in controls or takes(measure, name)
    }
    try:
        run = measure(**taken)
    except KeyboardInterrupt:
        return None, "It was interrupted."
    except (Exception, SystemExit) as error:  # who leaves the program leaves only the measurement
        said = str(error).strip().splitlines()
        return None, f"{type(error).__name__}: {said[0] if said else 'no message'}"
    if not isinstance(run, Run):
        return None, f"measure() returned {type(run).__name__}, not a Run."
    return replace(run, settings={"model": state.model, **settings, **run.settings}), ""


def expected_seconds(state: ExplorerState) -> float:
    """About how long measuring the state's point takes: as the run nearest to it took, with its repeats."""
    nearest = state.nearest_run()
    if nearest is None or nearest.median_seconds is None:
        return 10.0
    return nearest.median_seconds * (len(nearest.seconds) + 2)


def on_main_thread(function: Callable[[], None]) -> None:
    """Call a function on the kernel's main thread, after the cell that runs there; here and now where this is that thread.

    JupyterLab hands a widget's messages to a thread of their own. Interrupt reaches the main thread alone, and what is
    counted there is not mixed with a cell.
    """
    from IPython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    loop = getattr(kernel, "io_loop", None)
    if threading.current_thread() is threading.main_thread() or loop is None:
        function()
        return
    loop.add_callback(_interruptible, function)


def _interruptible(function):
    with _interrupts():
        function()


@contextmanager
def _interrupts():
    """Between two cells a kernel ignores Interrupt; here it raises KeyboardInterrupt, as within a cell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
