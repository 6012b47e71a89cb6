"""The explorer's button: measures the chosen point with the learner's function and says how it goes."""

import contextvars
import html
import inspect
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import ipywidgets as widgets

from trainlean.costs.runs import Run
from trainlean.pictures.explorer_state import ExplorerState


def takes(function: Callable, setting: str) -> bool:
    """Whether a function takes an argument of this name."""
    parameters = inspect.signature(function).parameters.values()
    return any(one.name == setting or one.kind is one.VAR_KEYWORD for one in parameters)


class PointMeasuring:
    """Button, progress bar and sentence. `measure(**settings)` gives a `Run` of the state's point, and `done(run)` takes it.

    The settings that are not in `measure`'s signature are left out. Without `measure` nothing is shown.
    """

    def __init__(
        self,
        state: ExplorerState,
        measure: Callable[..., Run] | None,
        done: Callable[[Run], None],
    ):
        self.state, self.measure, self.done = state, measure, done
        self.button = widgets.Button(
            description="measure this point", icon="play", layout=widgets.Layout(width="180px")
        )
        self.button.on_click(lambda _: self.measure_point())
        self.progress = widgets.FloatProgress(
            min=0, max=1, layout=widgets.Layout(width="180px", visibility="hidden")
        )
        self.status = widgets.HTML()

    @property
    def widgets(self) -> list[widgets.Widget]:
        """What is shown."""
        return [widgets.HBox([self.button, self.progress] if self.measure else []), self.status]

    def measure_point(self):
        """Measure the chosen point; what goes wrong becomes a sentence."""
        state, point = self.state, self.state.setup.label
        settings, model = state.written, state.model
        self.button.disabled, self.progress.layout.visibility = True, "visible"
        self.progress.value, self.progress.bar_style = 0.0, "info"
        self.status.value = f"Measuring {point}."
        stopped = threading.Event()
        # The thread carries this call's context, so that its messages reach the same output.
        ticker = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._tick, stopped, self._expected_seconds(), point),
            daemon=True,
        )
        ticker.start()
        try:
            run, problem = self._measured(settings)
        finally:
            stopped.set()
            ticker.join()
            self.button.disabled = False
        if run is None:
            self.progress.bar_style = "danger"
            self.status.value = html.escape(f"{point} could not be measured. {problem}")
            return
        self.progress.value, self.progress.bar_style = 1.0, "success"
        self.status.value = f"{point} measured."
        self.done(replace(run, settings={"model": model, **settings, **run.settings}))

    def _measured(self, settings) -> tuple[Run | None, str]:
        """The run, or None and what went wrong."""
        measure = cast(Callable[..., Run], self.measure)  # without one there is no button
        controls = {control.setting for control in self.state.controls}
        # `devices` is no control: a function that does not take it says so.
        taken = {
            name: value
            for name, value in settings.items()
            if name not in controls or takes(measure, name)
        }
        try:
            run = measure(**taken)
        except (Exception, KeyboardInterrupt) as error:
            said = str(error).strip().splitlines()
            silent = "interrupted" if isinstance(error, KeyboardInterrupt) else "no message"
            return None, f"{type(error).__name__}: {said[0] if said else silent}"
        if not isinstance(run, Run):
            return None, f"measure() returned {type(run).__name__}, not a Run."
        return run, ""

    def _expected_seconds(self) -> float:
        nearest = self.state.nearest_run()
        if nearest is None or nearest.median_seconds is None:
            return 10.0
        return nearest.median_seconds * (len(nearest.seconds) + 2)

    def _tick(self, stopped, expected, point):
        start = time.monotonic()
        while not stopped.wait(0.2):
            spent = time.monotonic() - start
            self.progress.value = min(0.95, spent / expected)
            self.status.value = (
                f"Measuring {point}: {spent:.0f} s of about {max(expected, 1):.0f} s."
            )
