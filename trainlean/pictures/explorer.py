"""The memory-against-speed explorer: its state, controls, drawing and measuring put together."""

from collections.abc import Callable, Sequence
from functools import partial

import ipywidgets as widgets

from trainlean.costs.runs import MiB, Run, load_runs
from trainlean.pictures.explorer_controls import CONTROLS, ControlPanel
from trainlean.pictures.explorer_drawing import ExplorerDrawing, state_text
from trainlean.pictures.explorer_measuring import PointMeasuring, takes
from trainlean.pictures.explorer_state import ExplorerState
from trainlean.pictures.widget import Shown, image_of


class Explorer(Shown):
    """Memory against speed of many runs; `explorer()` makes one.

    `state` says what is chosen and compared, `drawing` has the picture, `measuring` the button; `controls` (by setting),
    `model`, `mode`, `budget` (MiB) and `network` are the widgets that a person moves.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        measure: Callable[..., Run] | None = None,
        budget: float | None = None,
    ):
        self.state = ExplorerState(runs, CONTROLS, partial(takes, measure) if measure else None)
        self.panel = panel = ControlPanel(self.state, self._changed)
        self.controls, self.model, self.mode = panel.controls, panel.model, panel.mode
        self.budget, self.network = panel.budget, panel.network
        self.measuring = PointMeasuring(self.state, measure, self.add)
        self.drawing = ExplorerDrawing(self.state)
        self.image = image_of(self.drawing.picture)
        left, right = panel.columns
        column = widgets.Layout(width="470px")
        boxes = [
            widgets.VBox(left, layout=column),
            widgets.VBox([*right, *self.measuring.widgets], layout=column),
        ]
        side_by_side = widgets.Layout(flex_flow="row wrap", align_items="flex-start")
        super().__init__([widgets.HBox(boxes, layout=side_by_side), self.image])
        panel.show_options()
        self._reframe(budget)

    def _changed(self, reframe: bool):
        if reframe:
            self._reframe()
        else:
            self.redraw()

    def _reframe(self, budget: float | None = None):
        self.panel.limit_budget(self.state.largest_peak, budget)
        self.drawing.fit()
        self.redraw()

    def redraw(self):
        """Draw the picture for the present state."""
        self.image.value = self.drawing.draw()

    def shown_runs(self) -> list[Run]:
        """The runs of the chosen model, as the chosen network would make them."""
        return self.state.shown_runs()

    def choose(self, run: Run):
        """Set the controls to the point of a run."""
        self.state.choose(run)
        self.panel.show_values()
        self.redraw()

    def add(self, run: Run):
        """Add a run to the picture and choose it."""
        self.state.add(run)
        self.panel.show_options()
        self.budget.max = max(self.budget.max, 1.15 * run.peak_bytes / MiB)
        self.drawing.fit()
        self.redraw()

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
    there is no button. `budget` in bytes; without it three quarters of the largest peak.

    Runs that have communicated (`Run.collectives`, settings `devices` and `local_steps`) bring devices, local steps and a link
    along: their time is then modelled (`trainlean.costs.links`), from the bytes that were counted and the time that one device alone,
    or else the run itself, was measured to take. `measure` is then asked for `local_steps` (None: DDP) and `devices`, too.
    """
    return Explorer(load_runs() if runs is None else runs, measure, budget)
