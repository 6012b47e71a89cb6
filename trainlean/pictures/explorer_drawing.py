"""The explorer's picture: points and front, the chosen run's memory by category, the times of a step, and their sentences."""

from dataclasses import replace

from trainlean.costs.links import Link
from trainlean.costs.runs import Run
from trainlean.pictures.explorer_data import sent_words
from trainlean.pictures.explorer_state import FIXED_BATCH, FREE, ExplorerState
from trainlean.pictures.front import FrontPlot, origin_legend
from trainlean.pictures.memory import StackPlot
from trainlean.pictures.ranks import StepTimesPlot
from trainlean.pictures.style import LINES, SOFT, Picture, count_text, course_style, mib, three

MOST_ROWS = 8  # of times of a step


class ExplorerDrawing:
    """The picture of a state. `draw` gives its PNG; `fit` fits the axes to the runs, and rebuilds the picture where it needs more room."""

    WIDTH = 10  # inches

    def __init__(self, state: ExplorerState):
        self.state = state
        self._build()

    def _build(self):
        rows = self._rows
        below = 0.6 + 0.21 * rows if rows else 0.0  # inches for the times of a step
        high = 4.7 + below
        with course_style():
            self.picture = Picture(self.WIDTH, high, "")
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

            def line(inches, words, **style):
                return self.picture.text(0.02, 1 - inches / high, words, va="center", **style)

            self.title = line(0.21, "Memory against speed", weight="bold", size=12)
            self.sentence = line(0.5, "", size=9.5, color=SOFT)
            self.stack_title = right.text(
                0.04, 1.04, "", transform=right.transAxes, size=9.5, va="bottom", color=LINES[0]
            )
            self.steps = None
            if rows:
                box = (0.09, 0.1 / high, 0.9, (below - 0.5) / high)
                self.steps = StepTimesPlot(self.picture.add_axes(box), rows)
                self.steps_title = line(high - below + 0.31, "", size=9.5)

    @property
    def _rows(self) -> int:
        """How many times of a step can stand below each other: one for every number of local steps that is offered."""
        if not self.state.communicates:
            return 0
        return min(MOST_ROWS, len(self.state.options(self.state.control("local_steps"))))

    def fit(self):
        """Fit the limits of the axes to the runs of the model, so that the picture stands still while controls move."""
        state = self.state
        if self._rows > (self.steps.rows if self.steps else 0):
            self._build()
        runs = state.shown_runs()
        if state.communicates:  # from standstill to the speed without any communication
            runs = state.own_runs()
            timed = [(run, state.step_time(run, FREE)) for run in runs if run.collectives]
            fastest = [
                replace(run, seconds=(time.seconds * run.optimizer_steps,))
                for run, time in timed
                if time
            ]
            runs = [*runs, *fastest, *(replace(run, seconds=(1e9,)) for run in runs[:1])]
        with course_style():
            axes = self.front.axes
            self.front.set_limits(runs, None)
            if state.communicates:
                right = axes.get_xlim()[1]
                axes.set_xlim(-0.015 * right, right)
            axes.set_xlabel("samples/second" + " of one device" * state.communicates)
            origin_legend(axes, state.shown_runs())

    def draw(self) -> bytes:
        """The picture for the present state, as a PNG file."""
        state = self.state
        with course_style():
            compared, shown = state.compared_runs(), state.shown_runs()
            run = state.chosen_run()
            stand_in = run or state.nearest_run()
            others = [other for other in shown if other not in compared]
            budget = state.budget if shown else None
            self.front.draw(compared, budget=budget, others=others, chosen=stand_in)
            self.stack.draw(stand_in, faded=run is None)
            self.sentence.set_text(self._sentence(compared))
            self.stack_title.set_text(self._chosen_words(run, stand_in))
            limits = (
                *self.front.axes.get_xlim(),
                *self.front.axes.get_ylim(),
                *{run.origin for run in shown},
            )
            animated = [*self.front.animated, *self.stack.animated, self.sentence, self.stack_title]
            if self.steps is not None:
                self._draw_steps(self.steps, stand_in)
                animated += [*self.steps.animated, self.steps_title]
            return self.picture.png(animated, limits)

    def _draw_steps(self, steps, chosen):
        state = self.state
        control = state.control("local_steps")
        runs = state.local_steps_runs(chosen)
        rows = [
            (_local_steps(control.of(run)), state.step_time(run), sent_words(run)) for run in runs
        ]
        steps.draw(rows, next((i for i, run in enumerate(runs) if run is chosen), None))
        if rows:
            words = f"Time of a step, {state.devices:,} devices, {_link_words(state.link)}"
        elif chosen is not None and state.devices == 1:
            words = "This run does not communicate."
        else:
            words = "No run of this point has communicated."
        self.steps_title.set_text(words)

    def _name(self, run: Run) -> str:
        """What the picture calls the run."""
        shown = self.state.shown_runs()
        return FrontPlot.names(shown)[shown.index(run)]

    def _sentence(self, compared) -> str:
        state = self.state
        batch = "any batch"
        if state.mode == FIXED_BATCH:
            batch = f"effective batch {state.setup.effective_batch}"
        if not compared:
            return f"{state.mode}, {batch}: no run yet.".capitalize()
        fit = state.fitting(compared)
        words = f"{state.mode}, {batch}: {len(fit)} of {len(compared)} runs fit into {mib(state.budget)}"
        timed = [run for run in fit if run.samples_per_second]
        if timed:
            best = max(timed, key=lambda run: run.samples_per_second or 0.0)
            words += f"; the fastest of them is {self._name(best)} with {three(best.samples_per_second or 0.0)} samples/s"
        return words[0].upper() + words[1:] + "."

    def _chosen_words(self, run, stand_in) -> str:
        if run is not None and run.collectives:
            return f"{self._name(run)}, time modelled"
        if run is not None:
            return f"{self._name(run)}, {run.origin}"
        nearest = f";\nnearest: {self._name(stand_in)}, {stand_in.origin}" if stand_in else ""
        return f"{self.state.setup.label} was not run{nearest}"


def state_text(state: ExplorerState) -> str:
    """The state in one line, the same on every machine: what stands in place of the picture in plain text."""
    chosen = ", ".join(
        f"{control.label} {state.settings[control.setting]}"
        for control in state.controls
        if state.offers(control)
    )
    if state.communicates:
        chosen += f", devices {state.devices}, link {state.link}"
    compared = state.compared_runs()
    missing = "" if state.chosen_run() else " (not run)"
    return (
        f"Memory against speed: {count_text(state.runs)}; chosen: {chosen}{missing}; "
        f"{state.mode}: {len(state.fitting(compared))} of {len(compared)} fit into {mib(state.budget)}"
    )


def _local_steps(value) -> str:
    return value if isinstance(value, str) else f"H = {value}"


def _link_words(link: Link) -> str:
    nameless = Link(link.latency, link.bandwidth)
    return f"{link}, {nameless}" if link.name else str(link)
