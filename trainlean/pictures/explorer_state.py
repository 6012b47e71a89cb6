"""What the explorer shows, without widgets and pictures: the runs, the chosen point, and which runs are compared with it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log2
from typing import Any

from trainlean.costs.links import LINKS, Link, StepTime, step_time
from trainlean.costs.runs import MiB, Run
from trainlean.setup import TrainingSetup

FIXED_BATCH, FIXED_MEMORY = "fixed batch", "fixed memory"
FREE = Link(0.0, float("inf"))


def newest(runs: Sequence[Run]) -> list[Run]:
    """The runs without those that were made again later: same name, origin and settings."""
    latest = {(run.name, run.origin, repr(sorted(run.settings.items()))): run for run in runs}
    return list(latest.values())


class ExplorerState:
    """The runs (`newest`), and the point that is chosen among them: a value for each control, and a network.

    `controls`: what is offered (`trainlean.pictures.explorer_controls.Control`). `measures` says of a setting's name whether a
    point can be measured with it; without it nothing can be measured. `budget` is in bytes.
    """

    def __init__(
        self, runs: Sequence[Run], controls: Sequence, measures: Callable[[str], bool] | None = None
    ):
        self.runs, self.controls, self.measures = newest(runs), tuple(controls), measures
        self.values = {control.setting: control.options[0] for control in self.controls}
        self.model = self.models[0]
        self.mode, self.budget = FIXED_BATCH, 0.0
        counted = [run.settings.get("devices") or 2 for run in self.runs if run.collectives]
        self.devices, self.link = max(counted, default=2), LINKS[2]
        # The runs as the chosen network would make them, kept for as long as that is the same.
        self._cache_key: tuple | None = None
        self._cache: list[Run] = []
        self._records: dict[int, Run] = {}  # by the id of what was modelled from it
        self._keep_to_options()
        self.start()

    # What can be chosen

    @property
    def models(self) -> list:
        """The models of the runs, in the order in which they came; [None] without runs."""
        return list(dict.fromkeys(run.settings.get("model") for run in self.runs)) or [None]

    def options(self, control) -> list:
        """The values of a control that are offered: those that some run has, and the usual ones where they could be measured."""
        seen = {control.of(run) for run in self.runs}
        usual = self._can_measure(control) or not seen or control.in_words
        offered = [value for value in control.options if usual or value in seen]
        offered += sorted(seen - set(control.options), key=str)
        texts = [value for value in offered if isinstance(value, str)]
        return texts + sorted(value for value in offered if not isinstance(value, str))

    def offers(self, control) -> bool:
        """Whether a control is shown at all."""
        measured = self._can_measure(control)
        if control.always and (measured or not self.measures):
            return True
        # A word that all runs share is no choice where no other can be measured.
        shared = control.in_words and len({control.of(run) for run in self.runs}) == 1
        return self._is_used(control) and (measured or not shared)

    def _is_used(self, control) -> bool:
        """Whether some run has another value than the usual one."""
        return any(control.of(run) != control.options[0] for run in self.runs)

    def _can_measure(self, control) -> bool:
        return self.measures is not None and self.measures(control.setting)

    @property
    def communicates(self) -> bool:
        """Whether a run has communicated: only then are there a link and times of a step."""
        return any(run.collectives for run in self.runs)

    @property
    def counts_of_devices(self) -> tuple[bool, set[int]]:
        """Whether there are runs on one device alone, and how many devices the others had."""
        counts = {run.settings.get("devices") or 1 for run in self.runs if run.collectives}
        return any(not run.collectives for run in self.runs), counts

    def control(self, setting: str):
        """The control of a setting."""
        return next(control for control in self.controls if control.setting == setting)

    # What is chosen

    @property
    def settings(self) -> dict:
        """The chosen point as the controls name it: a value for each control, and the devices."""
        shown = {
            control.setting: self.values[control.setting]
            for control in self.controls
            if control.known or self._is_used(control)
        }
        return shown | ({"devices": self.devices} if self.communicates else {})

    @property
    def written(self) -> dict:
        """The chosen point in the words of `Run.settings`."""
        shown = self.settings
        return shown | {
            control.setting: control.written(shown[control.setting])
            for control in self.controls
            if control.setting in shown
        }

    @property
    def setup(self) -> TrainingSetup:
        """The chosen point as a setup."""
        # There is always a control of the micro-batch.
        return TrainingSetup.read(self.written)  # type: ignore[return-value]

    def start(self):
        """Begin at the effective batch that most runs share, with the first of its runs; at fixed memory where none is shared."""
        runs = self.shown_runs()
        if runs:
            batches = Counter(map(_effective_batch, runs))
            common = max(batches, key=lambda batch: (batches[batch], batch or 0))
            self.mode = FIXED_BATCH if batches[common] > 1 or len(runs) == 1 else FIXED_MEMORY
            self.choose(next(run for run in runs if _effective_batch(run) == common))

    def choose(self, run: Run):
        """Choose the point of a run."""
        self.values = {control.setting: control.of(run) for control in self.controls}
        if self.communicates:
            self.devices = run.settings.get("devices") or 1

    def choose_model(self, model: str | None):
        """Show the runs of another model, from its own start."""
        self.model = model
        self.start()

    def take(
        self, model: str | None, mode: str, values: dict, devices: int, link: Link, budget: float
    ):
        """Be in another state: `values` by control, `budget` in bytes. ValueError: what is not offered."""
        offered = {control.setting: self.options(control) for control in self.controls}
        if model not in self.models or mode not in (FIXED_BATCH, FIXED_MEMORY):
            raise ValueError(f"The explorer shows no {mode} of {model!r}.")
        if wrong := [name for name, of in offered.items() if values.get(name) not in of]:
            raise ValueError(f"The explorer does not offer {wrong[0]}={values.get(wrong[0])!r}.")
        self.model, self.mode, self.values = model, mode, {name: values[name] for name in offered}
        self.devices, self.link, self.budget = devices, link, budget

    def add(self, run: Run):
        """Add a run and choose its point."""
        self.runs = newest([*self.runs, run])
        self._keep_to_options()
        self.model = run.settings.get("model")
        self.choose(run)

    def _keep_to_options(self):
        for control in self.controls:
            options = self.options(control)
            if self.values[control.setting] not in options:
                self.values[control.setting] = options[0]

    # Which runs these are

    def shown_runs(self) -> list[Run]:
        """The runs of the chosen model; runs of different models are not compared.

        Those that have communicated are shown as they would be with the chosen devices and link: with the memory that was
        measured and the time that is modelled, as predicted runs.
        """
        key = (tuple(map(id, self.runs)), self.model, self.devices, self.link)
        if self._cache_key != key:
            modelled = [
                (self._modelled(run) if run.collectives else run, run) for run in self.own_runs()
            ]
            self._cache_key, self._cache = key, [run for run, _ in modelled if run is not None]
            self._records = {id(run): record for run, record in modelled if run is not None}
        return list(self._cache)

    def own_runs(self) -> list[Run]:
        """The runs of the chosen model as they were made."""
        return [run for run in self.runs if run.settings.get("model") == self.model]

    def _modelled(self, run: Run) -> Run | None:
        if self.devices == 1:
            return None
        time = self.step_time(run)
        seconds = (time.seconds * run.optimizer_steps,) if time else ()
        settings = run.settings | {"devices": self.devices}
        return replace(run, seconds=seconds, settings=settings, origin="predicted")

    def step_time(self, run: Run, link: Link | None = None) -> StepTime | None:
        """The modelled time of a step of a run that has communicated; None where its computing was not timed."""
        compute = self.compute_seconds(run)
        if compute is None:
            return None
        return step_time(run, link or self.link, world_size=self.devices, compute=compute)

    def compute_seconds(self, run: Run) -> float | None:
        """Seconds that computing a step of a run that has communicated takes: what one device alone was measured to take, else the run itself.

        None where neither was timed.
        """
        alone = [
            one
            for one in self.runs
            if not one.collectives
            and one.seconds
            and one.optimizer_steps
            and _without(one, "devices", "local_steps") == _without(run, "devices", "local_steps")
        ]
        # A modelled time contains communication already: its record was timed.
        timed = alone[-1] if alone else self._records.get(id(run), run)
        seconds = timed.median_seconds
        if seconds is None or not run.optimizer_steps:
            return None
        return seconds / timed.optimizer_steps

    def compared_runs(self) -> list[Run]:
        """The runs that are compared: those of the chosen effective batch, or all of them at fixed memory."""
        if self.mode == FIXED_MEMORY:
            return self.shown_runs()
        batch = self.setup.effective_batch
        return [run for run in self.shown_runs() if _effective_batch(run) == batch]

    def chosen_run(self) -> Run | None:
        """The run of the chosen point, or None: a measured one before a published one before a predicted one."""
        runs = [run for run in self.shown_runs() if self._distance(run) == 0]
        order = {"measured": 0, "published": 1, "predicted": 2}
        return min(runs, key=lambda run: order[run.origin], default=None)

    def nearest_run(self) -> Run | None:
        """The run nearest to the chosen point, in doublings of each setting; None without runs."""
        return min(self.shown_runs(), key=self._distance, default=None)

    def fitting(self, runs: Sequence[Run]) -> list[Run]:
        """Those of the runs that fit into the budget."""
        return [run for run in runs if run.peak_bytes <= self.budget]

    def local_steps_runs(self, chosen: Run | None) -> list[Run]:
        """The runs that differ from the chosen one in nothing but the local steps, DDP first."""
        runs = [
            run
            for run in self.shown_runs()
            if chosen is not None
            and run.collectives
            and run.seconds
            and _without(run, "local_steps") == _without(chosen, "local_steps")
        ]
        return sorted(runs, key=lambda run: run.settings.get("local_steps") or 0)

    @property
    def largest_peak(self) -> float:
        """The largest peak of the shown runs in MiB; 100 without runs."""
        return max([run.peak_bytes for run in self.shown_runs()], default=100 * MiB) / MiB

    def _distance(self, run: Run) -> float:
        distance, alone = 0.0, self.communicates and self.devices == 1
        for control in self.controls:
            if control.setting == "local_steps" and alone:
                continue  # one device has nobody to average with
            wanted, has = self.values[control.setting], control.of(run)
            numbers = isinstance(wanted, (int, float)) and isinstance(has, (int, float))
            distance += _octaves(wanted, has) if numbers else 1.5 * (wanted != has)
        return distance + 1.5 * (self.communicates and alone == bool(run.collectives))


def _octaves(one: float, other: float) -> float:
    """How far two numbers are from each other in powers of two; a 0 lies one below the 1."""
    return abs(log2(max(one, 0.5)) - log2(max(other, 0.5)))


def _effective_batch(run: Run) -> int | None:
    return run.setup.effective_batch if run.setup else None


def _without(run: Run, *settings: str) -> TrainingSetup | None:
    """The setup of a run with the usual values of these settings."""
    usual: dict[str, Any] = {"devices": 1, "local_steps": None}
    return run.setup and replace(run.setup, **{name: usual[name] for name in settings})
