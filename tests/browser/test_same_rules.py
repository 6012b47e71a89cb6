"""The browser's explorer and Python's follow the same rules: both are put into the same states, and say the same."""

import random
import re
from dataclasses import replace

import pytest
from made_runs import make_run

from trainlean.costs.links import LINKS, Link, traffic
from trainlean.costs.runs import MiB
from trainlean.pictures.explorer import explorer
from trainlean.pictures.explorer_state import FIXED_BATCH, FIXED_MEMORY
from trainlean.pictures.style import Picture
from trainlean.pictures.widget import script

STATES = 100
LOOK = """([source, data, states]) => import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' })))
  .then(({ look }) => states.map((chosen) => {
    const seen = look(data, chosen);
    const index = (run) => run && run.index;
    return { sentence: seen.sentence, title: seen.title, above: seen.above, run: index(seen.run), nearest: index(seen.nearest),
      compared: seen.compared.map(index), front: seen.front.map(index), speeds: seen.shown.map((run) => [run.index, run.speed, run.at]),
      rows: seen.rows.map((run) => [run.index, run.time.compute, run.time.communication]) };
  }))"""


def communicating(micro_batch, local_steps, kinds):
    """A run on two devices with these kinds of collectives: {kind: (calls, payload)} of 8 steps."""
    run = make_run(micro_batch, 16 // micro_batch, speed=80, devices=2, local_steps=local_steps)
    counts = {}
    for kind, (calls, payload) in kinds.items():
        messages, sent = traffic(kind, payload, 2)
        counts[kind] = {
            "calls": calls,
            "payload": payload,
            "messages": calls * messages,
            "sent": sent,
        }
    seconds = tuple(8 * second for second in run.seconds)
    name = f"{micro_batch} {local_steps}"
    return replace(
        run, name=name, seconds=seconds, samples=128, optimizer_steps=8, collectives=counts
    )


@pytest.fixture(scope="module")
def widget():
    runs = [
        make_run(
            size,
            steps,
            speed=50 + 9 * size - steps,
            checkpointing=layers,
            size=20 + size * (9 if layers == "off" else 3),
        )
        for size in (1, 2, 4, 8, 16)
        for steps in (1, 2, 4, 16)
        for layers in ("off", "every layer")
    ]
    runs = [replace(run, optimizer_steps=1) for run in runs]
    runs += [
        make_run(4, 4, origin="predicted", speed=None),
        make_run(32, 1, origin="predicted", speed=None, size=400),
    ]
    runs += [make_run(4, 4, speed=70, attention="sdpa", loss_chunk=32)]
    runs += [make_run(2, 4, speed=65, lora=8), make_run(2, 4, speed=60, lora=8, loss_chunk=128)]
    runs += [make_run(4, 1, speed=1234, size=14949, origin="published", model="large")]
    runs += [
        communicating(
            size,
            steps,
            {
                "all-reduce": (16 // (steps or 1), 40 * MiB),
                "broadcast": (1, MiB),
                "barrier": (2, 0),
            },
        )
        for size in (16, 4)
        for steps in (None, 1, 2, 8)
    ]
    other = ("all-gather", "reduce-scatter", "all-to-all", "send")
    runs += [communicating(2, 4, dict.fromkeys(other, (2, 3 * MiB)))]
    return explorer(runs)


def states(widget):
    draw, data = random.Random(7), widget.data
    for _ in range(STATES):
        link = draw.choice([*LINKS, Link(10 ** draw.uniform(-6, 0), 10 ** draw.uniform(4, 12))])
        yield {
            "model": draw.choice([0, 0, 0, 1]),
            "mode": draw.choice([FIXED_BATCH, FIXED_MEMORY]),
            "values": {one["setting"]: draw.choice(one["options"]) for one in data["controls"]},
            "devices": draw.choice([1, 2, 2, 3, 8, 512]),
            "link": {"name": link.name, "latency": link.latency, "bandwidth": link.bandwidth},
            "budget": draw.uniform(0, 450) * MiB,
        }


def test_both_say_the_same_of_the_same_state(widget, open_page, monkeypatch):
    monkeypatch.setattr(Picture, "png", lambda *_: b"")  # only its words are compared
    asked = list(states(widget))
    seen = open_page("about:blank", allowed="about:").evaluate(
        LOOK, [script("explorer"), widget.data, asked]
    )
    state, drawing = widget.state, widget.drawing
    number = {id(run): i for i, run in enumerate(widget.state.runs)}
    for chosen, browser in zip(asked, seen, strict=True):
        widget.chosen = chosen
        drawing.fit()
        front = drawing.front.draw(state.compared_runs(), budget=state.budget)
        drawing.draw()
        own = state.own_runs()
        # Runs that were modelled are copies; they come in the order of the model's own.
        kept = [run for run in own if not (run.collectives and state.devices == 1)]
        shown = {
            id(new): number[id(old)] for old, new in zip(kept, state.shown_runs(), strict=True)
        }

        def index(run, shown=shown):
            return None if run is None else shown[id(run)]

        assert browser["sentence"] == drawing.sentence.get_text()
        assert browser["title"] == drawing.stack_title.get_text().replace(";\n", "; ")
        assert browser["above"] == (drawing.steps_title.get_text() if drawing.steps else "")
        assert browser["run"] == index(state.chosen_run())
        assert browser["nearest"] == index(state.nearest_run())
        assert browser["compared"] == [index(run) for run in state.compared_runs()]
        assert browser["front"] == [index(run) for run in front]
        speeds = {i: speed for i, speed, _ in browser["speeds"]}
        assert speeds == pytest.approx(
            {index(run): run.samples_per_second for run in state.shown_runs()}
        )
        times = {
            index(run): state.step_time(run)
            for run in state.local_steps_runs(state.chosen_run() or state.nearest_run())
        }
        assert [i for i, *_ in browser["rows"]] == list(times)
        for i, compute, communication in browser["rows"]:
            assert (compute, communication) == pytest.approx(
                (times[i].compute, times[i].communication)
            )


def test_the_states_differ(widget):
    """So that the comparison above cannot pass by saying one thing."""
    said = set()
    for chosen in states(widget):
        widget.chosen = chosen
        said.add(re.sub(r"\d+(\.\d+)?", "", repr(widget)))
    assert len(said) > 20
