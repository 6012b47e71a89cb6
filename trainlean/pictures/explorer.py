"""The memory-against-speed explorer."""

import contextvars
import html
import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import log2

import ipywidgets as widgets

from trainlean.costs.links import Link, StepTime, step_time, total
from trainlean.costs.runs import MiB, Run, load_runs
from trainlean.pictures.front import FrontPlot, origin_key
from trainlean.pictures.link_controls import LinkControls
from trainlean.pictures.memory import StackPlot
from trainlean.pictures.ranks import StepTimesPlot
from trainlean.pictures.style import (
    LINES,
    SOFT,
    Picture,
    count_text,
    course_style,
    mib,
)
from trainlean.pictures.widget import Shown, image_of
from trainlean.setup import TrainingSetup, recorded

FIXED_BATCH, FIXED_MEMORY = "fixed batch", "fixed memory"


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
    def usual(self):
        """The value of a run that says nothing about it."""
        return self.values[0]

    @property
    def in_words(self) -> bool:
        """Whether its values are texts, not numbers."""
        return all(isinstance(value, str) for value in self.values)

    def of(self, run: Run):
        """The value that a run has for this control, as the control names it."""
        value = recorded(self.setting, run.settings.get(self.setting))
        return self.names.get(value, self.usual if value is None else value)

    def written(self, value):
        """A value of this control as records write it."""
        return next((one for one, name in self.names.items() if name == value), value)


# What the explorer offers, in this order. Another setting joins by another line here.
CONTROLS = (
    Control("micro_batch", "micro-batch", (1, 2, 4, 8, 16, 32)),
    Control("accumulation_steps", "accumulation steps", (1, 2, 4, 8, 16)),
    Control("checkpointing", "checkpointing", ("off", "every layer"), always=False),
    Control(
        "local_steps",
        "local steps (H)",
        ("DDP", 1, 2, 4, 8, 16, 32),
        names={None: "DDP"},
        always=False,
        known=False,
    ),
)


class Explorer(Shown):
    """Memory against speed of many runs; `explorer()` makes one."""

    def __init__(
        self,
        runs: Sequence[Run],
        measure: Callable[..., Run] | None = None,
        budget: float | None = None,
    ):
        self.runs, self.measure = newest(runs), measure
        self._modelled = (
            None,
            [],
        )  # the runs as the chosen network would make them, and for which network
        self._quiet = True
        self._make_controls()
        self._make_picture()
        self.image = image_of(self.picture)
        super().__init__([self._controls_box, self.image])
        self._start()
        self._quiet = False
        self._reframe(budget)

    # Building

    def _make_controls(self):
        # Every widget has a layout of its own, because controls are hidden one by one.
        labels, wide = {"description_width": "130px"}, lambda: widgets.Layout(width="450px")
        toggles = {**labels, "button_width": "105px"}
        self.model = widgets.Dropdown(description="model", style=labels, layout=wide())
        self.controls = {}
        for control in CONTROLS:
            start = {
                "options": [control.usual],
                "value": control.usual,
                "description": control.label,
            }
            if control.in_words:
                self.controls[control.setting] = widgets.ToggleButtons(
                    **start, style=toggles, layout=wide()
                )
            else:
                self.controls[control.setting] = widgets.SelectionSlider(
                    **start, style=labels, layout=wide()
                )
        counted = [run.settings.get("devices") or 2 for run in self.runs if run.collectives]
        self.network = LinkControls(self.redraw, max(counted, default=2))
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
        self.button = widgets.Button(
            description="measure this point", icon="play", layout=widgets.Layout(width="180px")
        )
        self.button.on_click(lambda _: self.measure_point())
        self.progress = widgets.FloatProgress(
            min=0, max=1, layout=widgets.Layout(width="180px", visibility="hidden")
        )
        self.status = widgets.HTML()
        self._update_options()
        for setting, widget in self.controls.items():
            widget.observe(
                lambda change, setting=setting: self._on_control(setting, change), "value"
            )
        self.model.observe(lambda _: self._on_model(), "value")
        self.mode.observe(lambda _: self.redraw(), "value")
        self.budget.observe(lambda _: self.redraw(), "value")
        measuring = widgets.HBox([self.button, self.progress] if self.measure else [])
        column = widgets.Layout(width="470px")
        self._controls_box = widgets.HBox(
            [
                widgets.VBox([self.model, *self.controls.values()], layout=column),
                widgets.VBox(
                    [self.mode, self.budget, self.network, measuring, self.status], layout=column
                ),
            ],
            layout=widgets.Layout(flex_flow="row wrap", align_items="flex-start"),
        )

    def _make_picture(self):
        below = (
            0.6 + 0.21 * self._step_rows if self.communicates else 0.0
        )  # inches for the times of a step
        high = 4.7 + below
        with course_style():
            self.picture = Picture(10, high, "")
            grid = {
                "width_ratios": (2.35, 1),
                "left": 0.09,
                "right": 0.995,
                "bottom": (below + 4.7 * 0.125) / high,
                "top": (below + 4.7 * 0.8) / high,
                "wspace": 0.04,
            }
            left, right = self.picture.subplots(1, 2, sharey=True, gridspec_kw=grid)
            self.front, self.stack = FrontPlot(left), StackPlot(right)
            line = lambda inches, words, **look: self.picture.text(
                0.02, 1 - inches / high, words, va="center", **look
            )
            self.title = line(0.21, "Memory against speed", weight="bold", size=12)
            self.sentence = line(0.5, "", size=9.5, color=SOFT)
            self.stack_title = right.text(
                0.04, 1.04, "", transform=right.transAxes, size=9.5, va="bottom", color=LINES[0]
            )
            self.steps = None
            if self.communicates:
                self.steps = StepTimesPlot(
                    self.picture.add_axes((0.09, 0.1 / high, 0.9, (below - 0.5) / high)),
                    self._step_rows,
                )
                self.steps_title = line(high - below + 0.31, "", size=9.5)

    def _update_options(self):
        """Offer every value that a run has, and the usual ones as well where they could be measured."""
        models = list(dict.fromkeys(run.settings.get("model") for run in self.runs))
        was = self.model.value
        self.model.options = [(str(model or "unnamed model"), model) for model in models or [None]]
        self.model.value = was if was in models or not models else models[0]
        self.model.layout.display = None if len(models) > 1 else "none"
        for control in CONTROLS:
            widget, values = self.controls[control.setting], {control.of(run) for run in self.runs}
            differs = any(value != control.usual for value in values)
            more = (
                control.values if self._measures(control) or not values or control.in_words else ()
            )
            offered = [v for v in control.values if v in more or v in values]
            offered += sorted(values - set(control.values), key=str)
            texts = [v for v in offered if isinstance(v, str)]
            options = texts + sorted(v for v in offered if not isinstance(v, str))
            was = widget.value
            widget.options = options
            widget.value = was if was in options else options[0]
            useful = control.always and (self._measures(control) or not self.measure)
            widget.layout.display = None if useful or differs else "none"
        self.network.layout.display = None if self.communicates else "none"
        alone = any(not run.collectives for run in self.runs)
        self.network.offer(
            alone, {run.settings.get("devices") or 1 for run in self.runs if run.collectives}
        )

    def _start(self):
        """Begin at the effective batch that most runs share, with the first of its runs; at fixed memory where none is shared."""
        runs = self.shown_runs()
        if runs:
            batches = Counter(_effective_batch(run) for run in runs)
            common = max(batches, key=lambda batch: (batches[batch], batch or 0))
            self.mode.value = FIXED_BATCH if batches[common] > 1 or len(runs) == 1 else FIXED_MEMORY
            self.choose(next(run for run in runs if _effective_batch(run) == common))

    # State

    @property
    def settings(self) -> dict:
        """The chosen point: a value for each control."""
        shown = {
            c.setting: self.controls[c.setting].value
            for c in CONTROLS
            if c.known or self._offers(c)
        }
        return shown | ({"devices": self.network.devices.value} if self.communicates else {})

    def _written(self) -> dict:
        """The chosen point in the words of `Run.settings`."""
        controls = {control.setting: control for control in CONTROLS}
        return {
            name: controls[name].written(value) if name in controls else value
            for name, value in self.settings.items()
        }

    @property
    def setup(self) -> TrainingSetup:
        """The chosen point as a setup."""
        return TrainingSetup.read(self._written())

    def _point(self) -> str:
        """The short label of the chosen point."""
        return self.setup.label

    def _measures(self, control: Control) -> bool:
        """Whether the given function takes this setting."""
        if self.measure is None:
            return False
        taken = inspect.signature(self.measure).parameters.values()
        return any(one.name == control.setting or one.kind is one.VAR_KEYWORD for one in taken)

    def _offers(self, control: Control) -> bool:
        return self.controls[control.setting].layout.display != "none"

    @property
    def communicates(self) -> bool:
        """Whether a run has communicated: only then are there a link and times of a step."""
        return any(run.collectives for run in self.runs)

    @property
    def _step_rows(self) -> int:
        """How many times of a step can stand below each other: one for every number of local steps that is offered."""
        return min(8, len(self.controls["local_steps"].options))

    def shown_runs(self) -> list[Run]:
        """The runs of the chosen model; runs of different models are not compared.

        Those that have communicated are shown as they would be with the chosen devices and link: with the memory that was
        measured and the time that is modelled, as predicted runs.
        """
        key = (
            tuple(map(id, self.runs)),
            self.model.value,
            self.network.devices.value,
            self.network.link,
        )
        if self._modelled[0] != key:
            runs = [run for run in self.runs if run.settings.get("model") == self.model.value]
            self._modelled = key, [self._model(run) if run.collectives else run for run in runs]
        return [run for run in self._modelled[1] if run is not None]

    def _model(self, run: Run) -> Run | None:
        devices = self.network.devices.value
        if devices == 1:
            return None
        time = self._step_time(run)
        seconds = (time.seconds * run.optimizer_steps,) if time else ()
        return replace(
            run, seconds=seconds, settings=run.settings | {"devices": devices}, origin="predicted"
        )

    def _step_time(self, run: Run, link: Link | None = None) -> StepTime | None:
        """The modelled time of a step of a run that has communicated; computing takes what one device alone was measured to take."""
        # What sends and who sends is another matter: all the rest must be alike.
        on_one_device = lambda one: one.setup and replace(one.setup, devices=1, local_steps=None)
        like = lambda other: on_one_device(other) == on_one_device(run)
        alone = [
            one
            for one in self.runs
            if not one.collectives and one.seconds and one.optimizer_steps and like(one)
        ]
        timed = alone[-1] if alone else run
        if not timed.seconds or not run.optimizer_steps:
            return None
        compute = timed.median_seconds / timed.optimizer_steps
        return step_time(
            run, link or self.network.link, ranks=self.network.devices.value, compute=compute
        )

    def compared_runs(self) -> list[Run]:
        """The runs that are compared: those of the chosen effective batch, or all of them at fixed memory."""
        batch = self.setup.effective_batch
        if self.mode.value == FIXED_MEMORY:
            return self.shown_runs()
        return [run for run in self.shown_runs() if _effective_batch(run) == batch]

    def chosen_run(self) -> Run | None:
        """The run of the chosen point, or None: a measured one before a published one before a predicted one."""
        runs = [run for run in self.shown_runs() if self._distance(run) == 0]
        order = {"measured": 0, "published": 1, "predicted": 2}
        return min(runs, key=lambda run: order[run.origin], default=None)

    def nearest_run(self) -> Run | None:
        """The run nearest to the chosen point, in doublings of each setting."""
        return min(self.shown_runs(), key=self._distance, default=None)

    def fitting(self, runs: Sequence[Run]) -> list[Run]:
        """Those of the runs that fit into the budget."""
        return [run for run in runs if run.peak_bytes <= self.budget.value * MiB]

    def choose(self, run: Run):
        """Set the controls to the point of a run."""
        quiet, self._quiet = self._quiet, True
        for control in CONTROLS:
            self.controls[control.setting].value = control.of(run)
        if self.communicates:
            self.network.devices.value = run.settings.get("devices") or 1
        self._quiet = quiet
        self.redraw()

    def _distance(self, run: Run) -> float:
        distance, lone = 0.0, self.communicates and self.network.devices.value == 1
        for control in CONTROLS:
            if control.setting == "local_steps" and lone:
                continue  # one device has nobody to average with
            wanted, has = self.controls[control.setting].value, control.of(run)
            numbers = isinstance(wanted, (int, float)) and isinstance(has, (int, float))
            distance += abs(log2(wanted) - log2(has)) if numbers else 1.5 * (wanted != has)
        return distance + 1.5 * (self.communicates and lone == bool(run.collectives))

    def _on_control(self, setting, change):
        if self._quiet:
            return
        if setting == "micro_batch" and self.mode.value == FIXED_BATCH:
            # At a fixed batch the accumulation steps give way, so that moving the slider walks along one comparison.
            steps = self.controls["accumulation_steps"]
            wanted = change["old"] * steps.value / change["new"]
            self._quiet = True
            steps.value = min(steps.options, key=lambda value: abs(log2(value) - log2(wanted)))
            self._quiet = False
        self.redraw()

    def _on_model(self):
        if self._quiet:
            return
        self._quiet = True
        self._start()
        self._quiet = False
        self._reframe()

    # Drawing

    def _reframe(self, budget: float | None = None):
        """Fit limits and budget slider to the runs of the model; redraw."""
        top = max([run.peak_bytes for run in self.shown_runs()], default=100 * MiB) / MiB
        step = 10.0 ** max(-1, len(str(int(top))) - 3)
        self._quiet = True
        self.budget.min, self.budget.max, self.budget.step = (
            0,
            max(1.15 * top, (budget or 0) / MiB),
            step,
        )
        self.budget.value = round(0.75 * top / step) * step if budget is None else budget / MiB
        self._quiet = False
        self._limits()
        self.redraw()

    def _limits(self):
        runs = self.shown_runs()
        if self.communicates:  # from standstill to the speed without any communication, so that the picture stands still
            runs = [run for run in self.runs if run.settings.get("model") == self.model.value]
            free = [
                (run, self._step_time(run, Link(0.0, float("inf"))))
                for run in runs
                if run.collectives
            ]
            runs = [
                *runs,
                *(replace(run, seconds=(t.seconds * run.optimizer_steps,)) for run, t in free if t),
            ]
            runs += [replace(run, seconds=(1e9,)) for run in runs[:1]]
        with course_style():
            self.front.frame(runs, None)
            if self.communicates:
                right = self.front.axes.get_xlim()[1]
                self.front.axes.set_xlim(-0.015 * right, right)
            self.front.axes.set_xlabel("samples/second" + " of one device" * self.communicates)
            origin_key(self.front.axes, self.shown_runs())

    def redraw(self):
        """Draw the picture for the present state of the controls."""
        if self._quiet:
            return
        with course_style():
            compared, shown = self.compared_runs(), self.shown_runs()
            run = self.chosen_run()
            stand_in = run or self.nearest_run()
            others = [other for other in shown if other not in compared]
            self.front.draw(
                compared,
                budget=self.budget.value * MiB if shown else None,
                others=others,
                chosen=stand_in,
            )
            self.stack.draw(stand_in, faded=run is None)
            self.sentence.set_text(self._sentence(compared))
            self.stack_title.set_text(self._chosen_words(run, stand_in))
            limits = (
                *self.front.axes.get_xlim(),
                *self.front.axes.get_ylim(),
                *{run.origin for run in shown},
            )
            moving = [*self.front.moving, *self.stack.moving, self.sentence, self.stack_title]
            if self.steps is not None:
                self._draw_steps(stand_in)
                moving += [*self.steps.moving, self.steps_title]
            self.image.value = self.picture.png(moving, limits)

    def _draw_steps(self, chosen):
        """The modelled times of a step of the runs that differ from the chosen one in nothing but the local steps."""
        without = lambda run: run.setup and replace(run.setup, local_steps=None)
        like = lambda run: chosen is not None and without(run) == without(chosen)
        control = next(control for control in CONTROLS if control.setting == "local_steps")
        runs = [run for run in self.shown_runs() if run.collectives and run.seconds and like(run)]
        runs.sort(key=lambda run: run.settings.get("local_steps") or 0)
        rows = [
            (_local_steps(control.of(run)), self._step_time(run), _sent_words(run)) for run in runs
        ]
        self.steps.draw(rows, next((i for i, run in enumerate(runs) if run is chosen), None))
        devices = self.network.devices.value
        self.steps_title.set_text(
            f"Time of a step, {devices:,} devices, {_link_words(self.network.link)}"
            if rows
            else "This run does not communicate."
            if chosen is not None and devices == 1
            else "No run of this point has communicated."
        )

    def _name(self, run: Run) -> str:
        """What the picture calls the run."""
        shown = self.shown_runs()
        return FrontPlot.names(shown)[shown.index(run)]

    def _sentence(self, compared) -> str:
        batch = (
            f"effective batch {self.setup.effective_batch}"
            if self.mode.value == FIXED_BATCH
            else "any batch"
        )
        if not compared:
            return f"{self.mode.value}, {batch}: no run yet.".capitalize()
        fit = self.fitting(compared)
        words = f"{self.mode.value}, {batch}: {len(fit)} of {len(compared)} runs fit into {mib(self.budget.value * MiB)}"
        timed = [run for run in fit if run.samples_per_second]
        if timed:
            best = max(timed, key=lambda run: run.samples_per_second)
            words += f"; the fastest of them is {self._name(best)} with {best.samples_per_second:,.3g} samples/s"
        return words[0].upper() + words[1:] + "."

    def _chosen_words(self, run, stand_in) -> str:
        point = self._point()
        if run is not None and run.collectives:
            return f"{self._name(run)}, time modelled"
        if run is not None:
            return f"{self._name(run)}, {run.origin}"
        return f"{point} was not run" + (
            f";\nnearest: {self._name(stand_in)}, {stand_in.origin}" if stand_in else ""
        )

    def __repr__(self) -> str:
        chosen = ", ".join(
            f"{c.label} {self.settings[c.setting]}" for c in CONTROLS if self._offers(c)
        )
        if self.communicates:
            chosen += f", devices {self.network.devices.value}, link {self.network.link}"
        compared, budget = self.compared_runs(), mib(self.budget.value * MiB)
        state = "" if self.chosen_run() else " (not run)"
        return (
            f"Memory against speed: {count_text(self.runs)}; chosen: {chosen}{state}; "
            f"{self.mode.value}: {len(self.fitting(compared))} of {len(compared)} fit into {budget}"
        )

    # Measuring

    def measure_point(self):
        """Measure the chosen point with the given function and add it; what goes wrong becomes a sentence."""
        settings, point = self._written(), self._point()
        nearest = self.nearest_run()
        expected = (
            nearest.median_seconds * (len(nearest.seconds) + 2)
            if nearest and nearest.seconds
            else 10.0
        )
        self.button.disabled, self.progress.layout.visibility, self.progress.value = (
            True,
            "visible",
            0.0,
        )
        self.progress.bar_style = "info"
        self.status.value = f"Measuring {point}."
        done = threading.Event()
        # The thread carries this call's context, so that its messages reach the same output.
        ticker = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._tick, done, expected, point),
            daemon=True,
        )
        ticker.start()
        try:
            not_taken = {control.setting for control in CONTROLS if not self._measures(control)}
            run, problem = (
                self.measure(
                    **{name: value for name, value in settings.items() if name not in not_taken}
                ),
                None,
            )
            if not isinstance(run, Run):
                problem = f"measure() returned {type(run).__name__}, not a Run."
        except (Exception, KeyboardInterrupt) as error:
            first = (
                str(error).strip().splitlines()
                or ["interrupted" if isinstance(error, KeyboardInterrupt) else "no message"]
            )[0]
            problem = f"{type(error).__name__}: {first}"
        finally:
            done.set()
            ticker.join()
            self.button.disabled = False
        if problem:
            self.progress.bar_style = "danger"
            self.status.value = html.escape(f"{point} could not be measured. {problem}")
            return
        self.progress.value, self.progress.bar_style = 1.0, "success"
        self.status.value = f"{point} measured."
        self.add(replace(run, settings={"model": self.model.value, **settings, **run.settings}))

    def _tick(self, done, expected, point):
        start = time.monotonic()
        while not done.wait(0.2):
            spent = time.monotonic() - start
            self.progress.value = min(0.95, spent / expected)
            self.status.value = (
                f"Measuring {point}: {spent:.0f} s of about {max(expected, 1):.0f} s."
            )

    def add(self, run: Run):
        """Add a run to the picture and choose it."""
        self.runs = newest([*self.runs, run])
        self._quiet = True
        self._update_options()
        if self.communicates and (self.steps is None or self.steps.rows < self._step_rows):
            self._make_picture()
        self.model.value = run.settings.get("model")
        self.budget.max = max(self.budget.max, 1.15 * run.peak_bytes / MiB)
        self.choose(run)
        self._quiet = False
        self._limits()
        self.redraw()


def _effective_batch(run: Run) -> int | None:
    return run.setup.effective_batch if run.setup else None


def _local_steps(value) -> str:
    return value if isinstance(value, str) else f"H = {value}"


def _link_words(link: Link) -> str:
    nameless = Link(link.latency, link.bandwidth)
    return f"{link}, {nameless}" if link.name else str(link)


def _sent_words(run: Run) -> str:
    """What one device hands over per optimizer step, and in how many messages."""
    count, steps = total(run.collectives), run.optimizer_steps
    calls = count["calls"] / steps
    often = (
        f"{calls:.3g} call{'s' * (calls != 1)} a step"
        if calls >= 1
        else f"a call in {1 / calls:.3g} steps"
    )
    return f"{mib(count['payload'] / steps)} a step, {often}"


def newest(runs: Sequence[Run]) -> list[Run]:
    """The runs without those that were made again later: same name, origin and settings."""
    latest = {(run.name, run.origin, repr(sorted(run.settings.items()))): run for run in runs}
    return list(latest.values())


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
