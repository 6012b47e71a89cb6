"""What the explorer offers, and the widgets that offer it. Another setting joins by another line in CONTROLS."""

from collections.abc import Callable
from dataclasses import dataclass, field

import ipywidgets as widgets

from trainlean.costs.runs import MiB, Run
from trainlean.pictures.explorer_state import FIXED_BATCH, FIXED_MEMORY, ExplorerState
from trainlean.pictures.link_controls import LinkControls
from trainlean.setup import recorded


@dataclass(frozen=True)
class Control:
    """A setting that the explorer offers: a field of `TrainingSetup`, its label, and the values as records write them, the usual one first.

    `names` maps values to what the control calls them.
    """

    setting: str
    label: str
    values: tuple
    names: dict = field(default_factory=dict)
    always: bool = True  # False: only shown once a run has another value than the usual one
    known: bool = True  # False: no setting of the chosen point either, while it is not shown

    @property
    def options(self) -> tuple:
        """The values as the control names them, the usual one first."""
        return tuple(self.names.get(value, value) for value in self.values)

    @property
    def in_words(self) -> bool:
        """Whether it names all its values in texts, and not in numbers."""
        return all(isinstance(option, str) for option in self.options)

    def of(self, run: Run):
        """The value that a run has for this control, as the control names it."""
        value = recorded(self.setting, run.settings.get(self.setting))
        return self.names.get(value, self.options[0] if value is None else value)

    def written(self, option):
        """A value of this control as records write it."""
        return next((value for value, name in self.names.items() if name == option), option)


CONTROLS = (  # in the order in which they are shown
    Control("micro_batch", "micro-batch", (1, 2, 4, 8, 16, 32)),
    Control("accumulation_steps", "accumulation steps", (1, 2, 4, 8, 16)),
    Control("checkpointing", "checkpointing", ("off", "every layer"), always=False),
    Control(
        "local_steps",
        "local steps (H)",
        (None, 1, 2, 4, 8, 16, 32),
        names={None: "DDP"},
        always=False,
        known=False,
    ),
)


class ControlPanel:
    """The widgets of a state: `columns` holds them; what a person moves goes into the state, and `changed` is called.

    `changed(reframe)`: whether the limits of the picture change as well, as they do with the model.
    """

    def __init__(self, state: ExplorerState, changed: Callable[[bool], None]):
        self.state, self.changed, self._quiet = state, changed, True
        # Every widget has a layout of its own, because controls are hidden one by one.
        labels, wide = {"description_width": "130px"}, lambda: widgets.Layout(width="450px")
        toggles = {**labels, "button_width": "105px"}
        self.model = widgets.Dropdown(description="model", style=labels, layout=wide())
        self.controls = {}
        for control in state.controls:
            kind = widgets.ToggleButtons if control.in_words else widgets.SelectionSlider
            self.controls[control.setting] = kind(
                options=control.options[:1],
                description=control.label,
                style=toggles if control.in_words else labels,
                layout=wide(),
            )
        self.network = LinkControls(self._take_network, state.devices, state.link)
        self.mode = widgets.ToggleButtons(
            options=[FIXED_BATCH, FIXED_MEMORY],
            description="compare at",
            tooltips=[
                "Runs with the same effective batch",
                "The best throughput that fits the budget, at any batch",
            ],
            style=toggles,
            layout=wide(),
        )
        self.budget = widgets.FloatSlider(
            description="budget (MiB)", readout_format=",.0f", style=labels, layout=wide()
        )
        for setting, widget in self.controls.items():
            widget.observe(
                lambda change, setting=setting: self._take(state.move, setting, change["new"]),
                "value",
            )
        self.model.observe(
            lambda change: self._take(state.choose_model, change["new"], reframe=True), "value"
        )
        self.mode.observe(lambda change: self._take(state.compare_at, change["new"]), "value")
        self.budget.observe(
            lambda change: self._take(state.set_budget, change["new"] * MiB), "value"
        )
        self._quiet = False

    @property
    def columns(self) -> list[list[widgets.Widget]]:
        """The widgets in two columns: what is trained, and how runs are compared."""
        return [[self.model, *self.controls.values()], [self.mode, self.budget, self.network]]

    def _take(self, into: Callable, *values, reframe: bool = False):
        if self._quiet:
            return
        into(*values)
        self.show_values()
        self.changed(reframe)

    def _take_network(self):
        if not self._quiet:
            self._take(self.state.connect, self.network.devices.value, self.network.link)

    def show_options(self):
        """Offer what the state offers, and show its values."""
        self._quiet = True
        state = self.state
        self.model.options = [(str(model or "unnamed model"), model) for model in state.models]
        self.model.layout.display = None if len(state.models) > 1 else "none"
        for control in state.controls:
            widget = self.controls[control.setting]
            widget.options = state.options(control)
            widget.layout.display = None if state.offers(control) else "none"
        self.network.layout.display = None if state.communicates else "none"
        self.network.offer(*state.counts_of_devices)
        self._quiet = False
        self.show_values()

    def show_values(self):
        """Set every widget to what the state says."""
        quiet, self._quiet = self._quiet, True
        self.model.value, self.mode.value = self.state.model, self.state.mode
        for setting, widget in self.controls.items():
            widget.value = self.state.values[setting]
        if self.network.devices.value != self.state.devices:
            self.network.devices.value = self.state.devices
        self._quiet = quiet

    def limit_budget(self, most: float, budget: float | None = None):
        """Let the budget's slider reach `most` MiB, and set it to `budget` bytes or to three quarters of that."""
        self._quiet = True
        step = 10.0 ** max(-1, len(str(int(most))) - 3)
        self.budget.min, self.budget.max, self.budget.step = (
            0,
            max(1.15 * most, (budget or 0) / MiB),
            step,
        )
        self.budget.value = round(0.75 * most / step) * step if budget is None else budget / MiB
        self.state.set_budget(self.budget.value * MiB)
        self._quiet = False
