"""The widgets, driven as a person would: the explorer with and without a network, and the player."""

import base64
import io
import json
import sys
from dataclasses import replace

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
from trainlean.pictures.front import plot_front
from trainlean.pictures.memory import plot_memory
from trainlean.pictures.player import player
from trainlean.pictures.style import ALARM
from trainlean.pictures.widget import script, style
from trainlean.recordings import loops
from trainlean.recordings.lives import record_lives
from trainlean.recordings.loops import record
from trainlean.workspace import CourseError


def image_of(widget):
    return np.asarray(Image.open(io.BytesIO(widget.png())).convert("RGB")).astype(int)


def move(widget, budget=None, link=None, devices=None, mode=None, model=None, **values):
    """What a hand in the browser does, as the browser says it (values in MiB)."""
    chosen = dict(widget.chosen)
    more = {
        "budget": budget and budget * MiB,
        "link": link,
        "devices": devices,
        "mode": mode,
        "model": model,
    }
    chosen |= {name: value for name, value in more.items() if value is not None}
    widget.chosen = chosen | {"values": chosen["values"] | values}


def drawn(widget):
    drawing = widget.drawing
    drawing.draw()
    return drawing


def press(widget, **message):
    """The button, as the browser sends it."""
    after = message.pop("after", widget.status["count"])
    widget._handle_custom_msg({"kind": "measure", "chosen": widget.chosen, "after": after}, None)


def control(widget, setting):
    return next(one for one in widget.data["controls"] if one["setting"] == setting)


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


def test_what_the_browser_says_changes_the_picture(runs):
    widget = explorer(
        [*runs, make_run(16, 1, speed=150, size=90, checkpointing="every layer")], budget=90 * MiB
    )
    seen = {widget.png()}
    for change in (
        {"micro_batch": 4, "accumulation_steps": 4},
        {"accumulation_steps": 16},
        {"mode": FIXED_MEMORY},
        {"budget": 60},
        {"checkpointing": "every layer"},
    ):
        move(widget, **change)
        assert widget.png() not in seen
        seen.add(widget.png())
    before = widget.png()
    move(widget, checkpointing="off")
    move(widget, checkpointing="every layer")
    assert widget.png() == before  # the picture depends on the state, not on the way there


@pytest.mark.parametrize("wrong", [{"mode": "fixed colour"}, {"model": 7}, {"micro_batch": 5}])
def test_what_is_not_offered_cannot_be_chosen(runs, wrong):
    widget = explorer(runs)
    with pytest.raises(ValueError, match="The explorer"):
        move(widget, **wrong)


def test_fixed_memory_names_the_fastest_that_fits_at_any_batch(runs):
    widget = explorer(runs, budget=90 * MiB)
    assert "the fastest of them is 4×4 with 100 samples/s" in drawn(widget).sentence.get_text()
    move(widget, mode=FIXED_MEMORY)
    assert len(widget.state.compared_runs()) == 7
    move(widget, budget=50)
    assert (
        "2 of 7 runs fit into 50 MiB; the fastest of them is 1×16 with 70 samples/s"
        in drawn(widget).sentence.get_text()
    )


def test_what_does_not_fit_is_marked(runs):
    widget = explorer(runs, budget=90 * MiB)
    assert sorted(drawn(widget).front.crosses.get_xdata()) == [140, 220]
    assert has_colour(image_of(widget), ALARM)
    move(widget, budget=500)
    assert len(drawn(widget).front.crosses.get_xdata()) == 0


def test_a_point_without_a_run_says_so_and_shows_the_nearest(runs):
    widget = explorer(runs)
    move(widget, mode=FIXED_MEMORY, micro_batch=16, accumulation_steps=2)
    assert widget.state.chosen_run() is None
    assert widget.state.nearest_run().settings["micro_batch"] == 16
    assert drawn(widget).stack_title.get_text() == "16×2 was not run;\nnearest: 16×1, measured"
    assert "(not run)" in repr(widget)


def test_checkpointing_is_offered_once_a_run_has_it(runs):
    assert not control(explorer(runs), "checkpointing")["offered"]
    assert "checkpointing" not in repr(explorer(runs))
    widget = explorer([*runs, make_run(4, 1, checkpointing=True)])  # predictions write True
    assert control(widget, "checkpointing")["offered"]
    move(
        widget, mode=FIXED_MEMORY, micro_batch=4, accumulation_steps=1, checkpointing="every layer"
    )
    assert widget.state.chosen_run().settings["checkpointing"] is True


def test_models_are_not_mixed(runs):
    large = [make_run(4, 1, speed=9, size=14949, origin="published", model="large")]
    widget = explorer(runs + large)
    assert widget.data["models"] == ["small", "large"] and len(widget.shown_runs()) == 7
    start = widget.data["starts"][1]
    widget.chosen = widget.chosen | start | {"model": 1}
    assert widget.shown_runs() == large and widget.state.chosen_run() == large[0]
    assert start["budget"] == pytest.approx(0.75 * 14949 * MiB, rel=0.01)


def test_a_measured_run_comes_before_a_published_and_a_predicted_one():
    trio = [make_run(4, 1, origin=origin) for origin in ("predicted", "published", "measured")]
    assert explorer(trio).state.chosen_run().origin == "measured"
    assert explorer(trio[:2]).state.chosen_run().origin == "published"


def test_the_button_measures_the_chosen_point_and_adds_it(runs):
    asked = []

    def measure(**settings):
        asked.append(settings)
        assert widget.status["state"] == "measuring" and widget.status["expected"] > 0
        return make_run(
            settings["micro_batch"], settings["accumulation_steps"], speed=300, size=333
        )

    widget = explorer(runs, measure=measure)
    move(widget, mode=FIXED_MEMORY, micro_batch=32, accumulation_steps=2)
    before = widget.png()
    press(widget)
    assert asked == [{"micro_batch": 32, "accumulation_steps": 2, "checkpointing": "off"}]
    assert len(widget.state.runs) == 8 and widget.state.chosen_run().peak_bytes == 333 * MiB
    assert len(widget.data["runs"]) == 8 and widget.chosen["values"]["micro_batch"] == 32
    assert widget.state.settings["micro_batch"] == 32 and widget.png() != before
    assert widget.status == {"state": "done", "words": "32×2 measured.", "count": 1}


def test_the_second_half_of_a_double_click_measures_nothing(runs):
    asked = []
    widget = explorer(runs, measure=lambda **settings: asked.append(settings))
    for _ in range(2):
        press(widget, after=0)  # the second was sent before the first had ended
    assert len(asked) == 1
    press(widget)
    assert len(asked) == 2


def test_the_browser_hears_that_there_is_a_kernel(runs, monkeypatch):
    """Or the page would say, after a while, that no kernel answers."""
    widget, said = explorer(runs), []
    monkeypatch.setattr(widget, "send", said.append)
    widget._handle_custom_msg({"kind": "hello"}, None)
    assert said == [{"kind": "here"}]


def test_the_first_run_can_be_measured_from_an_empty_explorer():
    widget = explorer([], measure=lambda **settings: Run(name="first", peak={"weights": 5 * MiB}))
    assert "0 runs" in repr(widget) and widget.png()
    press(widget)
    assert widget.state.chosen_run().name == "first"  # its settings are filled in from the controls


def interrupted(**settings):
    raise KeyboardInterrupt


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
        (lambda **settings: sys.exit(3), "16×1 could not be measured. SystemExit: 3"),
        (interrupted, "16×1 could not be measured. It was interrupted."),
    ],
)
def test_what_goes_wrong_becomes_a_sentence_and_the_button_stays_usable(runs, measure, sentence):
    widget = explorer(runs, measure=measure)
    for count in (1, 2):
        press(widget)
        assert widget.status == {"state": "failed", "words": sentence, "count": count}
    assert len(widget.state.runs) == 7


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: explorer(3), "explorer takes a list of runs, .* not 3"),
        (lambda: explorer([3]), "explorer takes a list of runs, .* 3 in it is none"),
        (lambda: explorer([], measure=3), "measure is a function .* not 3"),
        (lambda: explorer([], budget="30 MiB"), "budget is a number of bytes, .* not '30 MiB'"),
        (lambda: explorer([], budget=float("nan")), "budget is a number of bytes, .* not nan"),
        (lambda: explorer([], budget=10**400), "budget is a number of bytes, .* not 1000"),
        (lambda: plot_memory(3), "plot_memory takes a list of runs, .* not 3"),
        (lambda: plot_front(3), "plot_front takes a list of runs, .* not 3"),
        (lambda: player(3), "player takes a recording, .* not 3"),
    ],
)
def test_what_is_no_run_gets_a_sentence(call, says):
    with pytest.raises(CourseError, match=says):
        call()


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
    assert not control(widget, "local_steps")["offered"] and not widget.data["communicates"]
    assert drawn(widget).steps is None
    assert "local_steps" not in widget.state.settings and "devices" not in widget.state.settings
    assert drawn(widget).picture.get_figheight() == pytest.approx(4.7)


HOME = {"name": "home (40 Mbit/s upload)", "latency": 10e-3, "bandwidth": 5e6}


def test_runs_of_decoders_bring_attention_chunks_and_adapters():
    """Shown once runs differ in them; what all share is kept with the point and asked about nowhere."""
    alike = explorer([make_run(4, 1, attention="sdpa"), make_run(2, 2, attention="sdpa")])
    assert not control(alike, "attention")["offered"]
    assert alike.state.settings["attention"] == "sdpa"

    asked = []

    def measure(micro_batch, accumulation_steps, attention, loss_chunk, lora):
        asked.append((micro_batch, attention, loss_chunk, lora))
        return Run(name="new", peak={"weights": 5 * MiB}, seconds=(1.0,), samples=4)

    whole = make_run(4, 1, attention="sdpa")
    runs = [
        make_run(4, 1, attention="sdpa", loss_chunk=128, lora=8),
        whole,
        make_run(4, 1, attention="eager"),
        make_run(4, 1, attention="sdpa", lora=8),
    ]
    widget = explorer([replace(run, name=str(i)) for i, run in enumerate(runs)], measure=measure)
    offered = {one["label"]: one["options"] for one in widget.data["controls"] if one["offered"]}
    assert offered["attention"] == ["eager", "sdpa"]
    assert offered["loss in chunks"] == ["off", 128] and offered["LoRA rank"] == ["none", 8]
    assert [one["label"] for one in widget.data["runs"]][0] == "4×1 LoRA 8 chunk 128"
    move(widget, loss_chunk=128, lora="none", attention="sdpa")
    assert widget.state.chosen_run() is None
    press(widget)
    assert asked == [(4, "sdpa", 128, None)]
    assert widget.state.chosen_run().setup.label == "4×1 chunk 128"


def test_communication_brings_local_steps_devices_and_link(network):
    widget = explorer(network)
    assert control(widget, "local_steps")["options"] == ["DDP", 1, 2, 4, 8]
    assert widget.data["counts"][:2] == [1, 2] and widget.data["counts"][-1] == 4096
    assert repr(widget) == (
        "Memory against speed: 12 runs (12 measured); chosen: micro-batch 16, accumulation steps 1, local steps (H) DDP, "
        "devices 2, link office (1 Gbit/s Ethernet); fixed batch: 5 of 10 fit into 150 MiB"
    )
    seen = {widget.png()}
    for change in (
        {"local_steps": 4},
        {"link": HOME},
        {"devices": 1024},
        {"link": {"name": "", "latency": 1e-3, "bandwidth": 5e6}},
        {"link": {"name": "", "latency": 1e-3, "bandwidth": 100e6}},
        {"devices": 1},
    ):
        move(widget, **change)
        assert widget.png() not in seen
        seen.add(widget.png())
    assert widget.state.link == Link(1e-3, 100e6)


def test_the_time_of_a_step_is_computing_alone_and_the_modelled_communication(network):
    widget = explorer(network)
    move(widget, link=HOME, devices=4, local_steps=2)
    run = widget.state.chosen_run()
    seconds = (
        16 / 100 + (6 * 0.010 + 1.5 * 4 * MiB / 5e6) / 2
    )  # computing was measured on one device at 100 samples/s
    assert run.median_seconds / run.optimizer_steps == pytest.approx(seconds)
    assert run.samples_per_second == pytest.approx(16 / seconds)
    assert (
        run.settings["devices"] == 4 and run.origin == "predicted" and run.peak == network[4].peak
    )
    drawing = drawn(widget)
    assert drawing.stack_title.get_text() == "16×1 H=2, time modelled"
    shown = [text.get_text() for text in drawing.steps.names if text.get_visible()]
    assert shown == ["DDP", "H = 1", "H = 2", "H = 4", "H = 8"]
    words = [text.get_text() for text in drawing.steps.words if text.get_visible()]
    assert (
        words[0].endswith("4 MiB a step, 2 calls a step")
        and words[2] == "819 ms: 2 MiB a step, a call in 2 steps"
    )
    assert "4 devices, home (40 Mbit/s upload), 10 ms, 5 MB/s" in drawing.steps_title.get_text()
    assert [run.median_seconds for run in widget.state.runs] == [
        run.median_seconds for run in network
    ]  # the records stay


def test_the_steps_rows_are_named_by_local_steps_whatever_control_comes_last(network, monkeypatch):
    appended = Control("precision", "precision", ("fp32", "bf16"))
    monkeypatch.setattr(explorer_module, "CONTROLS", (*CONTROLS, appended))
    widget = explorer(network)
    shown = [text.get_text() for text in drawn(widget).steps.names if text.get_visible()]
    assert shown == ["DDP", "H = 1", "H = 2", "H = 4", "H = 8"]


def test_one_device_has_nobody_to_talk_to(network):
    widget = explorer(network)
    move(widget, devices=1)
    assert {run.name for run in widget.shown_runs()} == {"measured 16x1", "measured 4x4"}
    assert widget.state.chosen_run().name == "measured 16x1"
    assert drawn(widget).steps_title.get_text() == "This run does not communicate."


def test_the_first_run_that_communicates_brings_the_network_along(runs):
    asked = []

    def measure(**settings):
        asked.append(settings)
        return communicating(16, 4 if len(asked) < 2 else settings["local_steps"])

    widget = explorer(runs, measure=measure)
    press(widget)
    assert drawn(widget).steps is not None and widget.data["communicates"]
    assert widget.state.settings["local_steps"] == 4 and widget.state.settings["devices"] == 2
    move(widget, local_steps="DDP")
    press(widget)
    assert (
        "local_steps" not in asked[0]
        and asked[1]["local_steps"] is None
        and asked[1]["devices"] == 2
    )


def test_a_setting_that_cannot_be_measured_is_not_offered(runs):
    alike = [run for run in runs if run.settings["accumulation_steps"] == 1]
    widget = explorer(alike, measure=lambda micro_batch: make_run(micro_batch, 1))
    assert [one["setting"] for one in widget.data["controls"] if one["offered"]] == ["micro_batch"]
    move(widget, micro_batch=2)
    press(widget)
    assert widget.status["words"] == "2×1 measured."
    both = explorer(
        alike,
        measure=lambda micro_batch, accumulation_steps: make_run(micro_batch, accumulation_steps),
    )
    assert control(both, "accumulation_steps")["offered"]


def test_without_a_function_there_is_no_button(runs):
    assert not explorer(runs).data["measures"] and explorer(runs, measure=print).data["measures"]
    with pytest.raises(ValueError, match="without a function to measure with"):
        explorer(runs).measure_point()


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


def test_the_player_stays_within_its_steps(trace):
    widget = player(trace, step=1)
    first = widget.png()
    for step, shown in ((0, 1), (6, 6), (999, len(trace.frames))):
        widget.step = step
        assert widget.step == shown
    assert widget.png() != first
    widget.step = 1
    assert widget.png() == first


def test_a_frame_says_what_has_changed_since_the_one_before(trace):
    frames = player(trace).recording["frames"]
    assert len(frames) == len(player(trace).recording["words"]) == len(trace.frames)
    kinds = {shape["kind"] for shape in frames[0].values()}
    assert kinds == {"rect", "text", "path"}
    titles = [shape["text"] for shape in frames[0].values() if shape["kind"] == "text"]
    assert f"step 1 of {len(frames)}, line 2" in titles
    [lines] = [name for name, shape in frames[0].items() if shape.get("text") == titles[0]]
    assert all(set(frame[lines]) == {"text"} for frame in frames[1:])  # it stays where it is


def test_the_player_shows_line_gradient_and_weight_of_the_step(trace):
    widget = player(trace)
    widget.png()
    plot, frame = widget.replay, trace.frames[widget.step - 1]
    assert trace.frames[widget.step].line == 6  # it starts just before the first update
    assert plot.highlight.get_y() == frame.line - 1
    assert [bar.get_width() for bar in plot.bars] == [0.5, 1.5]
    assert [bar.get_x() for bar in plot.bars] == [0.0, -1.5]
    assert plot.gradient_title.get_text() == "gradient −1"
    assert plot.weight_title.get_text() == "weight 2.00000, 0 of 2 updates"
    widget.step = len(trace.frames)
    widget.png()
    assert plot.gradient_title.get_text() == "gradient none"
    assert plot.weight_title.get_text() == "weight 1.75000, 2 of 2 updates"
    assert repr(widget) == (
        "Step-by-step player: 19 steps, 4 micro-batches, 2 updates; at step 19, line 8: return weight"
    )


def test_the_player_needs_a_step_and_no_particular_watch(trace):
    with pytest.raises(CourseError, match="has no steps"):
        player(type(trace)("def f(): ...", [], None))
    other = player(record(loop, [1.0], 1, watch={"double": lambda v: 2 * v["x"]}))
    other.step = 2
    other.png()
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
    widget.png()
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
        == f"event {widget.step} of {len(lives.events)}, output 3 is recomputed"
    )
    widget.step = lives.turn + 1
    widget.png()
    filled = [box.get_facecolor() == replay.boxes[5].get_facecolor() for box in replay.boxes]
    assert filled == [False, False, True, True, True, True]  # a boundary and the plain segment
    assert replay.most_text.get_text() == " now 128 B, most 128 B"
    widget.step = len(lives.events)
    widget.png()
    assert [bar.get_width() for _, _, bar in replay.bars] == [
        died - born for born, died, *_ in lives.spans
    ]
    assert repr(widget).startswith(
        f"Step-by-step player: {len(lives.events)} events, 6 layers, 3 outputs recomputed, most 128 B; at event "
    )


@pytest.mark.parametrize("which", ["explorer", "player"])
def test_the_saved_form_holds_view_picture_text_and_what_a_page_needs(which, runs, trace):
    widget = explorer(runs) if which == "explorer" else player(trace)
    bundle, metadata = widget._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"}
    png = base64.b64decode(bundle["image/png"])
    assert png == widget.png() and 5_000 < len(png) < 60_000
    assert bundle["text/plain"] == metadata["image/png"]["alt"] == repr(widget)
    kept = metadata["trainlean"]
    assert kept["widget"] == which and kept["state"].keys() == set(widget.handed_over)
    assert len(json.dumps(kept)) < 60_000  # of the 500 kB of a notebook
    assert len(script(which)) + len(style()) < 60_000
    image = image_of(widget)
    assert (image.min(axis=-1) < 200).mean() > 0.01 and (image == 255).all(axis=-1).mean() > 0.3
