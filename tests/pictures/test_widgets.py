"""The widgets, driven as a person would: the explorer with and without a network, and the player."""

import base64
import io
from dataclasses import replace

import ipywidgets
import numpy as np
import pytest
import torch
from made_runs import has_colour, make_run
from PIL import Image
from torch.utils.checkpoint import checkpoint_sequential

from trainlean.costs.links import Link, traffic
from trainlean.costs.runs import MiB, Run, save_run
from trainlean.pictures import explorer as explorer_module
from trainlean.pictures.explorer import explorer
from trainlean.pictures.explorer_controls import CONTROLS, Control
from trainlean.pictures.explorer_state import FIXED_MEMORY, newest
from trainlean.pictures.player import player
from trainlean.pictures.style import ALARM
from trainlean.recordings import loops
from trainlean.recordings.lives import record_lives
from trainlean.recordings.loops import record


def image_of(widget):
    return np.asarray(Image.open(io.BytesIO(widget.image.value)).convert("RGB")).astype(int)


@pytest.fixture
def runs():
    same_batch = [make_run(16 // k, k, speed=60 + 10 * (16 // k)) for k in (1, 2, 4, 8, 16)]
    return same_batch + [make_run(1, 1, speed=50), make_run(4, 1, speed=95)]


def test_starts_at_the_batch_that_most_runs_share(runs):
    widget = explorer(runs, budget=90 * MiB)
    assert widget.state.settings == {
        "micro_batch": 16,
        "accumulation_steps": 1,
        "checkpointing": "off",
    }
    assert [run.settings["micro_batch"] for run in widget.state.compared_runs()] == [16, 8, 4, 2, 1]
    assert repr(widget) == (
        "Memory against speed: 7 runs (7 measured); chosen: micro-batch 16, accumulation steps 1; "
        "fixed batch: 3 of 5 fit into 90 MiB"
    )


def test_every_control_changes_the_picture(runs):
    widget = explorer(
        [*runs, make_run(16, 1, speed=150, size=90, checkpointing="every layer")], budget=90 * MiB
    )
    seen = {widget.image.value}

    def changed():
        new = widget.image.value not in seen
        seen.add(widget.image.value)
        return new

    widget.controls["micro_batch"].value = 4
    assert changed()
    widget.controls["accumulation_steps"].value = 16
    assert changed()
    widget.mode.value = FIXED_MEMORY
    assert changed()
    widget.budget.value = 60
    assert changed()
    widget.controls["checkpointing"].value = "every layer"
    assert changed()
    before = widget.image.value
    widget.controls["checkpointing"].value = "off"
    widget.controls["checkpointing"].value = "every layer"
    assert widget.image.value == before  # the picture depends on the state, not on the way there


def test_at_a_fixed_batch_the_accumulation_steps_give_way(runs):
    widget = explorer(runs)
    for micro_batch, steps in ((8, 2), (2, 8), (1, 16), (16, 1)):
        widget.controls["micro_batch"].value = micro_batch
        assert widget.controls["accumulation_steps"].value == steps
    widget.mode.value = FIXED_MEMORY
    widget.controls["micro_batch"].value = 4
    assert widget.controls["accumulation_steps"].value == 1


def test_fixed_memory_names_the_fastest_that_fits_at_any_batch(runs):
    widget = explorer(runs, budget=90 * MiB)
    assert "the fastest of them is 4×4 with 100 samples/s" in widget.drawing.sentence.get_text()
    widget.mode.value = FIXED_MEMORY
    assert len(widget.state.compared_runs()) == 7
    widget.budget.value = 50
    assert (
        "2 of 7 runs fit into 50 MiB; the fastest of them is 1×16 with 70 samples/s"
        in widget.drawing.sentence.get_text()
    )


def test_what_does_not_fit_is_marked(runs):
    widget = explorer(runs, budget=90 * MiB)
    assert sorted(widget.drawing.front.crosses.get_xdata()) == [140, 220]
    assert has_colour(image_of(widget), ALARM)
    widget.budget.value = 500
    assert len(widget.drawing.front.crosses.get_xdata()) == 0


def test_a_point_without_a_run_says_so_and_shows_the_nearest(runs):
    widget = explorer(runs)
    widget.mode.value = FIXED_MEMORY
    widget.controls["micro_batch"].value = 16
    widget.controls["accumulation_steps"].value = 2
    assert widget.state.chosen_run() is None
    assert widget.state.nearest_run().settings["micro_batch"] == 16
    assert widget.drawing.stack_title.get_text() == "16×2 was not run;\nnearest: 16×1, measured"
    assert "(not run)" in repr(widget)


def test_checkpointing_is_offered_once_a_run_has_it(runs):
    assert explorer(runs).controls["checkpointing"].layout.display == "none"
    assert "checkpointing" not in repr(explorer(runs))
    widget = explorer([*runs, make_run(4, 1, checkpointing=True)])  # predictions write True
    assert widget.controls["checkpointing"].layout.display is None
    widget.mode.value = FIXED_MEMORY
    widget.controls["micro_batch"].value = 4
    widget.controls["checkpointing"].value = "every layer"
    assert widget.state.chosen_run().settings["checkpointing"] is True


def test_models_are_not_mixed(runs):
    large = [make_run(4, 1, speed=9, size=14949, origin="published", model="large")]
    widget = explorer(runs + large)
    assert widget.model.layout.display is None and len(widget.shown_runs()) == 7
    widget.model.value = "large"
    assert widget.shown_runs() == large and widget.state.chosen_run() == large[0]
    assert widget.budget.max > 14949
    assert explorer(runs).model.layout.display == "none"


def test_a_measured_run_comes_before_a_published_and_a_predicted_one():
    trio = [make_run(4, 1, origin=origin) for origin in ("predicted", "published", "measured")]
    assert explorer(trio).state.chosen_run().origin == "measured"
    assert explorer(trio[:2]).state.chosen_run().origin == "published"


def test_the_button_measures_the_chosen_point_and_adds_it(runs):
    asked = []

    def measure(**settings):
        asked.append(settings)
        assert (
            widget.measuring.button.disabled
            and widget.measuring.progress.layout.visibility == "visible"
        )
        return make_run(
            settings["micro_batch"], settings["accumulation_steps"], speed=300, size=333
        )

    widget = explorer(runs, measure=measure)
    widget.mode.value = FIXED_MEMORY
    widget.controls["micro_batch"].value = 32
    widget.controls["accumulation_steps"].value = 2
    before = widget.image.value
    widget.measuring.button.click()
    assert asked == [{"micro_batch": 32, "accumulation_steps": 2, "checkpointing": "off"}]
    assert len(widget.state.runs) == 8 and widget.state.chosen_run().peak_bytes == 333 * MiB
    assert widget.state.settings["micro_batch"] == 32 and widget.image.value != before
    assert widget.measuring.progress.value == 1.0 and not widget.measuring.button.disabled
    assert "32×2 measured" in widget.measuring.status.value
    assert widget.drawing.front.axes.get_ylim()[1] > 333


def test_the_first_run_can_be_measured_from_an_empty_explorer():
    widget = explorer([], measure=lambda **settings: Run(name="first", peak={"weights": 5 * MiB}))
    assert "0 runs" in repr(widget) and widget.image.value
    widget.measuring.button.click()
    assert widget.state.chosen_run().name == "first"  # its settings are filled in from the controls


@pytest.mark.parametrize(
    "measure, sentence",
    [
        (
            lambda **settings: 1 / 0,
            "16×1 could not be measured. ZeroDivisionError: division by zero",
        ),
        (
            lambda **settings: None,
            "16×1 could not be measured. measure() returned NoneType, not a Run.",
        ),
    ],
)
def test_what_goes_wrong_becomes_a_sentence(runs, measure, sentence):
    widget = explorer(runs, measure=measure)
    widget.measuring.button.click()
    assert sentence in widget.measuring.status.value
    assert len(widget.state.runs) == 7 and not widget.measuring.button.disabled


def communicating(micro_batch, local_steps, steps=8, payload=4 * MiB, **more):
    """A run on two devices: DDP with two buckets a step, or Local SGD with one flat average after every `local_steps`."""
    run = make_run(micro_batch, 16 // micro_batch, devices=2, local_steps=local_steps, **more)
    sends, calls = (steps, 2 * steps) if local_steps is None else (steps // local_steps,) * 2
    messages, sent = traffic("all-reduce", sends * payload, 2)
    count = {"calls": calls, "payload": sends * payload, "messages": calls * messages, "sent": sent}
    name = f"{micro_batch} {local_steps}"
    seconds = tuple(steps * second for second in run.seconds)
    return replace(
        run,
        name=name,
        seconds=seconds,
        samples=steps * run.samples,
        optimizer_steps=steps,
        collectives={"all-reduce": count},
    )


@pytest.fixture
def network():
    alone = [replace(make_run(size, 16 // size, speed=100), optimizer_steps=1) for size in (16, 4)]
    return alone + [
        communicating(size, steps, speed=80) for size in (16, 4) for steps in (None, 1, 2, 4, 8)
    ]


def test_without_communication_it_is_the_same_explorer(runs):
    widget = explorer(runs)
    hidden = (widget.controls["local_steps"], widget.network)
    assert all(part.layout.display == "none" for part in hidden) and widget.drawing.steps is None
    assert "local_steps" not in widget.state.settings and "devices" not in widget.state.settings
    assert widget.drawing.picture.get_figheight() == pytest.approx(4.7)


def test_communication_brings_local_steps_devices_and_link(network):
    widget = explorer(network)
    assert widget.controls["local_steps"].options == ("DDP", 1, 2, 4, 8)
    assert (
        widget.network.devices.options[:2] == (1, 2) and widget.network.devices.options[-1] == 4096
    )
    assert repr(widget) == (
        "Memory against speed: 12 runs (12 measured); chosen: micro-batch 16, accumulation steps 1, local steps (H) DDP, "
        "devices 2, link office (1 Gbit/s Ethernet); fixed batch: 5 of 10 fit into 150 MiB"
    )
    seen = {widget.image.value}
    for change in (
        lambda: setattr(widget.controls["local_steps"], "value", 4),
        lambda: setattr(widget.network.preset, "value", "home (40 Mbit/s upload)"),
        lambda: setattr(widget.network.devices, "value", 1024),
        lambda: setattr(widget.network.latency, "value", 1.0),
        lambda: setattr(widget.network.bandwidth, "value", 100.0),
        lambda: setattr(widget.network.devices, "value", 1),
    ):
        change()
        assert widget.image.value not in seen
        seen.add(widget.image.value)


def test_the_time_of_a_step_is_computing_alone_and_the_modelled_communication(network):
    widget = explorer(network)
    widget.network.preset.value = "home (40 Mbit/s upload)"  # 10 ms, 5 MB/s
    widget.network.devices.value = 4
    widget.controls["local_steps"].value = 2
    run = widget.state.chosen_run()
    seconds = (
        16 / 100 + (6 * 0.010 + 1.5 * 4 * MiB / 5e6) / 2
    )  # computing was measured on one device at 100 samples/s
    assert run.median_seconds / run.optimizer_steps == pytest.approx(seconds)
    assert run.samples_per_second == pytest.approx(16 / seconds)
    assert (
        run.settings["devices"] == 4 and run.origin == "predicted" and run.peak == network[4].peak
    )
    assert widget.drawing.stack_title.get_text() == "16×1 H=2, time modelled"
    shown = [text.get_text() for text in widget.drawing.steps.names if text.get_visible()]
    assert shown == ["DDP", "H = 1", "H = 2", "H = 4", "H = 8"]
    words = [text.get_text() for text in widget.drawing.steps.words if text.get_visible()]
    assert (
        words[0].endswith("4 MiB a step, 2 calls a step")
        and words[2] == "819 ms: 2 MiB a step, a call in 2 steps"
    )
    assert (
        "4 devices, home (40 Mbit/s upload), 10 ms, 5 MB/s" in widget.drawing.steps_title.get_text()
    )
    assert [run.median_seconds for run in widget.state.runs] == [
        run.median_seconds for run in network
    ]  # the records stay


def test_the_steps_rows_are_named_by_local_steps_whatever_control_comes_last(network, monkeypatch):
    appended = Control("precision", "precision", ("fp32", "bf16"))
    monkeypatch.setattr(explorer_module, "CONTROLS", (*CONTROLS, appended))
    widget = explorer(network)
    shown = [text.get_text() for text in widget.drawing.steps.names if text.get_visible()]
    assert shown == ["DDP", "H = 1", "H = 2", "H = 4", "H = 8"]


def test_one_device_has_nobody_to_talk_to(network):
    widget = explorer(network)
    widget.network.devices.value = 1
    assert {run.name for run in widget.shown_runs()} == {"measured 16x1", "measured 4x4"}
    assert widget.state.chosen_run().name == "measured 16x1"
    assert widget.drawing.steps_title.get_text() == "This run does not communicate."


def test_a_link_of_ones_own(network):
    controls = explorer(network).network
    controls.preset.value = "between continents (100 Mbit/s)"
    assert (controls.latency.value, controls.bandwidth.value) == (75, 12.5)
    controls.latency.value = 10.0
    assert controls.preset.value == "your own" and controls.link == Link(0.01, 12.5e6)


def test_the_first_run_that_communicates_brings_the_network_along(runs):
    asked = []

    def measure(**settings):
        asked.append(settings)
        return communicating(16, 4 if len(asked) < 2 else settings["local_steps"])

    widget = explorer(runs, measure=measure)
    widget.measuring.button.click()
    assert widget.drawing.steps is not None and widget.network.layout.display is None
    assert widget.state.settings["local_steps"] == 4 and widget.state.settings["devices"] == 2
    widget.controls["local_steps"].value = "DDP"
    widget.measuring.button.click()
    assert (
        "local_steps" not in asked[0]
        and asked[1]["local_steps"] is None
        and asked[1]["devices"] == 2
    )


def test_a_setting_that_cannot_be_measured_is_not_offered(runs):
    alike = [run for run in runs if run.settings["accumulation_steps"] == 1]
    widget = explorer(alike, measure=lambda micro_batch: make_run(micro_batch, 1))
    shown = {name for name, control in widget.controls.items() if control.layout.display != "none"}
    assert shown == {"micro_batch"}
    widget.controls["micro_batch"].value = 2
    widget.measuring.button.click()
    assert "2×1 measured." in widget.measuring.status.value
    both = explorer(
        alike,
        measure=lambda micro_batch, accumulation_steps: make_run(micro_batch, accumulation_steps),
    )
    assert both.controls["accumulation_steps"].layout.display is None


def test_without_a_function_there_is_no_button(runs):
    def everything(widget):
        return [
            widget,
            *(deeper for child in getattr(widget, "children", ()) for deeper in everything(child)),
        ]

    assert not any(isinstance(part, ipywidgets.Button) for part in everything(explorer(runs)))
    assert any(
        isinstance(part, ipywidgets.Button) for part in everything(explorer(runs, measure=print))
    )


def test_saved_runs_are_the_default_and_the_latest_counts(runs):
    for run in (runs[0], runs[1], make_run(16, 1, speed=1.0)):
        save_run(run)
    widget = explorer()
    assert [round(run.samples_per_second) for run in widget.state.runs] == [1, 140]
    assert newest([]) == []


def loop(batches, k):
    weight, gradient = 2.0, None
    for i, x in enumerate(batches):
        gradient = (gradient or 0.0) + x / k
        if (i + 1) % k == 0:
            weight -= 0.1 * gradient
            gradient = None
    return weight


@pytest.fixture
def trace():
    watch = {
        "weight": lambda v: v["weight"],
        "gradient": lambda v: v["gradient"],
        "micro-batch": lambda v: v["i"],
    }
    return record(loop, [1.0, -3.0, 2.0, 5.0], 2, watch=watch)


def test_contributions_are_told_apart_by_micro_batch(trace):
    parts = loops.contributions(trace.frames)
    assert max(parts, key=len) == [(0, 0.5), (1, -1.5)]
    assert [(2, 1.0), (3, 2.5)] in parts and parts[-1] == []
    assert [trace.frames[i].line for i in loops.updates(trace.frames)] == [6, 6]


def test_the_player_goes_forward_and_back(trace):
    widget = player(trace, step=1)
    last = len(trace.frames)
    first = widget.image.value
    widget.buttons["back"].click()
    assert widget.slider.value == 1
    for _ in range(5):
        widget.buttons["forward"].click()
    assert widget.slider.value == widget.play.value == 6 and widget.image.value != first
    widget.buttons["last"].click()
    assert widget.slider.value == last
    widget.buttons["forward"].click()
    assert widget.slider.value == last
    widget.buttons["first"].click()
    assert widget.slider.value == 1 and widget.image.value == first
    widget.play.value = 3
    assert widget.slider.value == 3


def test_the_player_shows_line_gradient_and_weight_of_the_step(trace):
    widget = player(trace)
    plot, frame = widget.replay, trace.frames[widget.slider.value - 1]
    assert trace.frames[widget.slider.value].line == 6  # it starts just before the first update
    assert plot.highlight.get_y() == frame.line - 1
    assert [bar.get_width() for bar in plot.bars] == [0.5, 1.5]
    assert [bar.get_x() for bar in plot.bars] == [0.0, -1.5]
    assert plot.gradient_title.get_text() == "gradient −1"
    assert plot.weight_title.get_text() == "weight 2.00000, 0 of 2 updates"
    widget.go(len(trace.frames))
    assert plot.gradient_title.get_text() == "gradient none"
    assert plot.weight_title.get_text() == "weight 1.75000, 2 of 2 updates"
    assert repr(widget) == (
        "Step-by-step player: 19 steps, 4 micro-batches, 2 updates; at step 19, line 8: return weight"
    )


def test_the_player_needs_a_step_and_no_particular_watch(trace):
    with pytest.raises(ValueError, match="has no steps"):
        player(type(trace)("def f(): ...", [], None))
    other = player(record(loop, [1.0], 1, watch={"double": lambda v: 2 * v["x"]}))
    other.go(2)
    assert "double 2" in other.replay.weight_title.get_text()


@pytest.fixture(scope="module")
def lives():
    layers = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(6)]
    )
    return record_lives(
        layers,
        lambda: checkpoint_sequential(layers, 2, torch.ones(2, 4), use_reentrant=False).sum(),
    )


def test_the_player_shows_which_activations_live(lives):
    widget = player(lives)
    replay = widget.replay
    assert replay.lives.events[replay.telling_step][:3] == (
        "computed",
        2,
        1,
    )  # outputs 1, 2 and 3 are back
    assert [bool(box.get_hatch()) for box in replay.boxes] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert (
        replay.title.get_text()
        == f"event {widget.slider.value} of {len(lives.events)}, output 3 is recomputed"
    )
    widget.go(lives.turn + 1)
    filled = [box.get_facecolor() == replay.boxes[5].get_facecolor() for box in replay.boxes]
    assert filled == [False, False, True, True, True, True]  # a boundary and the plain segment
    assert replay.most_text.get_text() == " now 128 B, most 128 B"
    widget.go(len(lives.events))
    assert [bar.get_width() for _, _, bar in replay.bars] == [
        died - born for born, died, *_ in lives.spans
    ]
    assert repr(widget).startswith(
        f"Step-by-step player: {len(lives.events)} events, 6 layers, 3 outputs recomputed, most 128 B; at event "
    )


@pytest.mark.parametrize("which", ["explorer", "player"])
def test_the_saved_form_holds_view_picture_and_text_together(which, runs, trace):
    widget = explorer(runs) if which == "explorer" else player(trace)
    bundle = widget._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"}
    assert base64.b64decode(bundle["image/png"]) == widget.image.value
    assert bundle["text/plain"] == repr(widget)
    assert 5_000 < len(widget.image.value) < 60_000
    image = image_of(widget)
    assert (image.min(axis=-1) < 200).mean() > 0.01 and (image == 255).all(axis=-1).mean() > 0.3
