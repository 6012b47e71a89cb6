"""The memory-against-speed explorer: its state, what the browser gets of it, its picture and its measuring put together."""

import sys
from collections.abc import Callable, Sequence
from functools import partial

import traitlets

from trainlean.arguments import shown
from trainlean.costs.runs import Run, load_runs
from trainlean.pictures.explorer_controls import CONTROLS
from trainlean.pictures.explorer_data import handed_over, said, starting_budget, take
from trainlean.pictures.explorer_drawing import ExplorerDrawing, state_text
from trainlean.pictures.explorer_measuring import (
    expected_seconds,
    measured,
    on_main_thread,
    takes,
)
from trainlean.pictures.explorer_state import ExplorerState
from trainlean.pictures.style import listed
from trainlean.pictures.widget import Live, script
from trainlean.workspace import CourseError


class Explorer(Live):
    """Memory against speed of many runs; `explorer()` makes one.

    `state` says what is chosen and compared. The browser moves it: `data` and `chosen` are what it gets and gives back,
    `status` says how the measuring goes.
    """

    _esm = script("explorer")
    name, handed_over = "explorer", ("data", "chosen")
    data = traitlets.Dict().tag(sync=True)
    chosen = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict({"state": "idle", "words": "", "count": 0}).tag(sync=True)

    def __init__(
        self,
        runs: Sequence[Run],
        measure: Callable[..., Run] | None = None,
        budget: float | None = None,
    ):
        self.state = ExplorerState(runs, CONTROLS, partial(takes, measure) if measure else None)
        self.state.budget = starting_budget(self.state) if budget is None else budget
        self.measure, self._count, self._measuring = measure, 0, False
        super().__init__(data=handed_over(self.state), chosen=said(self.state))
        self.on_msg(self._heard)

    @traitlets.observe("chosen")
    def _chosen(self, change):
        if change["new"] != said(self.state):
            take(self.state, change["new"])

    @property
    def drawing(self) -> ExplorerDrawing:
        """The drawing of the present state."""
        drawing = ExplorerDrawing(self.state)
        drawing.fit()
        return drawing

    @property
    def width(self) -> int:
        """The picture's width in pixels of the page."""
        return round(96 * ExplorerDrawing.WIDTH)

    def png(self) -> bytes:
        """The picture of the present state, as a PNG file."""
        return self.drawing.draw()

    def shown_runs(self) -> list[Run]:
        """The runs of the chosen model, as the chosen network would make them."""
        return self.state.shown_runs()

    def choose(self, run: Run):
        """Choose the point of a run."""
        self.state.choose(run)
        self.chosen = said(self.state)

    def add(self, run: Run):
        """Add a run to the picture and choose it."""
        self.state.add(run)
        with self.hold_sync():
            self.data, self.chosen = handed_over(self.state), said(self.state)

    def _heard(self, _, message: dict, buffers):
        """Answer the browser: that there is a kernel, and a press of the button."""
        self.send({"kind": "here"})
        # A press that was made before the last measurement ended is the second half of a double click.
        pressed = message.get("kind") == "measure" and message.get("after") == self._count
        if pressed and not self._measuring and self.measure is not None:
            self._measuring = True
            self._say(
                "measuring", "", point=self.state.setup.label, expected=expected_seconds(self.state)
            )
            on_main_thread(partial(self.measure_point, message.get("chosen")))

    def measure_point(self, chosen: dict | None = None):
        """Measure the chosen point, or the one that the browser says; what goes wrong becomes a sentence. ValueError: there is nothing to measure with."""
        if self.measure is None:
            raise ValueError(
                "This explorer was made without a function to measure with: explorer(runs, measure=...)."
            )
        self._measuring = True
        try:
            if chosen is not None:
                take(self.state, chosen)
            point = self.state.setup.label
            self._say("measuring", "", point=point, expected=expected_seconds(self.state))
            run, problem = measured(self.state, self.measure)
        finally:
            self._measuring = False
            self._count += 1
        if run is None:
            self._say("failed", f"{point} could not be measured. {problem}")
            return
        self.add(run)
        self._say("done", f"{point} measured.")

    def _say(self, state: str, words: str, **more):
        self.status = {"state": state, "words": words, "count": self._count, **more}

    def __repr__(self) -> str:
        return state_text(self.state)


def explorer(
    runs: Sequence[Run] | None = None,
    measure: Callable[..., Run] | None = None,
    budget: float | None = None,
) -> Explorer:
    """The memory-against-speed explorer: a point per run, a budget, the Pareto front, memory by category of one point.

    `runs`: measured, predicted and published ones together; without them the saved runs (`load_runs()`).
    `measure(micro_batch=..., accumulation_steps=..., checkpointing=...)` makes a `Run` for the button; without it
    there is no button. `budget` in bytes; without it three quarters of the largest peak. CourseError: what is no list of runs,
    no function, no number of bytes.

    Runs that have communicated (`Run.collectives`, settings `devices` and `local_steps`) bring devices, local steps and a link
    along: their time is then modelled (`trainlean.costs.links`), from the bytes that were counted and the time that one device alone,
    or else the run itself, was measured to take. `measure` is then asked for `local_steps` (None: DDP) and `devices`, too.
    """
    if measure is not None and not callable(measure):
        raise CourseError(
            f"measure is a function that measures a point and returns its Run, not {shown(measure)}."
        )
    return Explorer(
        load_runs() if runs is None else listed(runs, "explorer"), measure, in_bytes(budget)
    )


def in_bytes(budget):
    """A budget as it is, or None; CourseError: no number of bytes."""
    if budget is not None and (
        isinstance(budget, bool)
        or not isinstance(budget, (int, float))
        or not 0 <= budget <= sys.float_info.max
    ):
        raise CourseError(f"budget is a number of bytes, such as 30 * 2**20, not {shown(budget)}.")
    return budget
