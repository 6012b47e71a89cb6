"""What the explorer hands over to the browser, and how the browser's state comes back; web/explorer.js reads and writes it.

Only JSON: everything of a run that a rule or a picture needs, and what each control offers.
"""

from dataclasses import replace

from trainlean.costs.links import LINKS, Link, total
from trainlean.costs.runs import MiB, Run
from trainlean.pictures.explorer_controls import Control
from trainlean.pictures.explorer_state import ExplorerState
from trainlean.pictures.front import timed_twins
from trainlean.pictures.link_controls import COUNTS
from trainlean.pictures.style import COLOURS, UNDIVIDED, mib, parts, point_label, three
from trainlean.setup import SETTINGS, TrainingSetup


def handed_over(state: ExplorerState) -> dict:
    """The runs and controls of a state, as JSON."""
    # In a state of its own, since the start of every model is looked at.
    starts = [
        _start(ExplorerState(state.runs, state.controls, state.measures), model)
        for model in state.models
    ]
    alone, counts = state.counts_of_devices
    return {
        "runs": _runs(state),
        "models": [model or "unnamed model" for model in state.models],
        "starts": starts,
        "controls": [_control(state, control) for control in state.controls],
        "communicates": state.communicates,
        "counts": sorted({*COUNTS, *counts, *([1] if alone else [])}),
        "links": [_link(link) for link in LINKS],
        "colours": COLOURS | {"": UNDIVIDED},
        "measures": state.measures is not None,
    }


def said(state: ExplorerState) -> dict:
    """What is chosen in a state, as JSON."""
    return {
        "model": state.models.index(state.model),
        "mode": state.mode,
        "values": state.values,
        "devices": state.devices,
        "link": _link(state.link),
        "budget": state.budget,
    }


def take(state: ExplorerState, chosen: dict) -> None:
    """Bring a state to what the browser says. ValueError: something that it does not offer, KeyError: something that it does not say."""
    link = chosen["link"]
    known = next((one for one in LINKS if _link(one) == link), None)
    state.take(
        dict(enumerate(state.models)).get(chosen["model"], chosen["model"]),
        chosen["mode"],
        chosen["values"],
        chosen["devices"],
        known or Link(link["latency"], link["bandwidth"]),
        chosen["budget"],
    )


def starting_budget(state: ExplorerState) -> float:
    """Three quarters of the largest shown peak in bytes, rounded to three digits of MiB."""
    step = 10.0 ** max(-1, len(str(int(state.largest_peak))) - 3)
    return round(0.75 * state.largest_peak / step) * step * MiB


def _start(state: ExplorerState, model) -> dict:
    state.choose_model(model)
    start = said(state) | {"budget": starting_budget(state)}
    return {name: start[name] for name in ("mode", "values", "devices", "budget")}


def _link(link: Link) -> dict:
    return {"name": link.name, "latency": link.latency, "bandwidth": link.bandwidth}


def _control(state: ExplorerState, control: Control) -> dict:
    options = state.options(control)
    # The labels of local steps begin where those of the devices stand.
    names = list(SETTINGS)
    order = names.index("devices" if control.setting == "local_steps" else control.setting)
    return {
        "setting": control.setting,
        "label": control.label,
        "options": options,
        "words": control.in_words,
        "offered": state.offers(control),
        "labels": [_label(control, option) for option in options],
        "order": order,
    }


def _label(control: Control, option) -> str:
    """What a value adds to the short label of a point; nothing for those that stand before the ×."""
    if control.setting in ("micro_batch", "accumulation_steps"):
        return ""
    settings = {"micro_batch": 1, "devices": 2, control.setting: control.written(option)}
    if control.setting != "local_steps":
        del settings["devices"]
    return TrainingSetup(**settings).label.removeprefix("1×1")


def _runs(state: ExplorerState) -> list[dict]:
    runs = state.runs
    index = {id(run): i for i, run in enumerate(runs)}
    twins: dict[int, Run | None] = {}
    for model in state.models:
        own = [run for run in runs if run.settings.get("model") == model]
        twins |= {id(run): twin for run, twin in zip(own, timed_twins(own), strict=True)}
    return [_run(state, run, i, twins[id(run)], index) for i, run in enumerate(runs)]


def _run(state: ExplorerState, run: Run, number: int, twin: Run | None, index: dict) -> dict:
    setup = run.setup
    given = {
        "index": number,
        "name": run.name,
        "origin": run.origin,
        "label": point_label(run),
        "model": state.models.index(run.settings.get("model")),
        "values": {control.setting: control.of(run) for control in state.controls},
        "batch": setup and setup.micro_batch * setup.accumulation_steps,
        "devices": setup.devices if setup else 1,
        "parts": parts(run),
        "peak": run.peak_bytes,
        "seconds": run.median_seconds,
        "samples": run.samples,
        "twin": None if twin is None else index[id(twin)],
        "collectives": None,
    }
    if not run.collectives:
        return given
    return given | {
        "collectives": {
            kind: {"calls": count["calls"], "payload": count["payload"]}
            for kind, count in run.collectives.items()
        },
        "steps": run.optimizer_steps,
        "compute": state.compute_seconds(run),
        "accumulation": run.settings.get("accumulation_steps", 1),
        "local": run.settings.get("local_steps"),
        "alike": repr(setup and replace(setup, devices=1, local_steps=None)),
        "sent": sent_words(run),
    }


def sent_words(run: Run) -> str:
    """What one device hands over per optimizer step, and in how many messages."""
    count, steps = total(run.collectives), max(1, run.optimizer_steps)
    calls = count["calls"] / steps
    often = (
        f"{three(calls)} call{'s' * (calls != 1)} a step"
        if calls >= 1
        else f"a call in {three(1 / calls)} steps"
    )
    return f"{mib(count['payload'] / steps)} a step, {often}"
