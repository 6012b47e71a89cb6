"""The figures that a single lesson shows: what is in them, and that they follow their data."""

import itertools

import numpy as np
import pytest
import torch
from made_runs import has_colour, make_run, pixels

from trainlean.costs.links import LINKS
from trainlean.costs.runs import CATEGORIES, MiB, Run
from trainlean.pictures.diffs import show_diff
from trainlean.pictures.losses import loss_sliders, plot_loss_against_bytes, plot_losses
from trainlean.pictures.nodes import plot_driver_and_ring
from trainlean.pictures.receipts import (
    NOT_STEPPED,
    STEPPED,
    plot_averages,
    plot_receipts,
    plot_synchronisation,
)
from trainlean.pictures.style import ALARM, COLOURS
from trainlean.pictures.trades import (
    plot_budgets,
    plot_checkpointed_layers,
    plot_micro_batches,
    plot_race,
    plot_segments,
    plot_techniques,
)

WEIGHTS = COLOURS["weights"]


def texts(picture):
    """All words of a picture, as drawn."""
    picture.png()
    found = [
        text for axes in picture.axes for text in axes.findobj(lambda one: hasattr(one, "get_text"))
    ]
    return [text.get_text() for text in found if text.get_text()]


def timed_run(name, seconds, samples=16):
    return Run(name=name, settings={}, peak={"weights": MiB}, seconds=seconds, samples=samples)


def counted_run(name, payload, peak, flops):
    return Run(
        name=name,
        settings={},
        peak={"weights": peak * MiB},
        flops=flops,
        optimizer_steps=2,
        collectives={"all-reduce": {"payload": payload * MiB}},
    )


def receipts(*rows):
    return [torch.tensor(row) for row in rows]


NOTES = {"k=1, H=2": [(1, 0), (2, 1), (3, 1), (4, 2)], "k=4, H=2": [(0, 0), (0, 1), (0, 1), (1, 2)]}
WAY = {"all-reduces": [0, 1], "gradient": [0.25, 0.25, 0.25, 0.25]}
PREDICTED = [
    Run(name=name, settings={}, peak={"weights": 5500 * MiB}, flops=flops * 10**12)
    for name, flops in (("off", 4), ("every_n_layers=1", 5.4))
]
CURVES = {"H = 1": [(8, 0.7), (16, 0.6)], "H = 8": [(8, 0.68), (16, 0.61)]}
OF_SEEDS = {
    "DDP": {"every step": (4000, [0.6, 0.8])},
    "one": {"H = 4": (1000, [0.7, 0.8]), "H = 8": (500, [0.8, 0.8])},
    "other": {"H = 4": (1000, [0.6, 0.6])},
}
PICTURES = {
    "nodes": lambda: plot_driver_and_ring(),
    "losses": lambda: plot_losses({"samples": CURVES, "link": CURVES}),
    "bytes": lambda: plot_loss_against_bytes(OF_SEEDS),
    "receipts": lambda: plot_receipts({"as it is": receipts([0.5, 0.0], [0.0, 1.0])}),
    "synchronisation": lambda: plot_synchronisation({"plain": WAY}, {"plain": WAY}),
    "averages": lambda: plot_averages(NOTES),
    "segments": lambda: plot_segments(
        {"Layer": {1: (9216, 10**6), 4: (4096, 2 * 10**6)}},
        layers=4,
        boundary=1024,
        kept={"Layer": 1024},
        work={"Layer": 2048},
    ),
    "budgets": lambda: plot_budgets({1: (2 * MiB, 10**6), 0.5: (MiB, 10**6), 0: (0, 2 * 10**6)}),
    "layers": lambda: plot_checkpointed_layers(
        PREDICTED, {"one": (PREDICTED[0], PREDICTED[0]), "two": (PREDICTED[1], PREDICTED[1])}, 1343
    ),
    "race": lambda: plot_race(
        {"32 tokens": [timed_run("a", (1, 2)), timed_run("b", (3, 4))]}, "ab"
    ),
    "techniques": lambda: plot_techniques(
        [counted_run("all at once", 10, 90, 100), counted_run("accumulated", 10, 40, 100)]
    ),
    "micro-batches": lambda: plot_micro_batches(
        [make_run(size, 64 // size) for size in (1, 4, 16)],
        {"plain": [8 * 2**30, 16 * 2**30, 32 * 2**30], "checkpointed": [6 * 2**30] * 3},
        16160 * MiB,
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_figures_have_ink_a_fixed_text_and_no_blue_but_for_weights(name):
    picture = PICTURES[name]()
    image = pixels(picture.png())
    assert (image.min(axis=-1) < 128).sum() > 200
    assert not has_colour(image, WEIGHTS, at_least=10)
    assert repr(picture) == repr(PICTURES[name]()) and "Figure" not in repr(picture)


def test_the_busiest_rank_of_a_ring_sends_less_than_two_gradients():
    lines = plot_driver_and_ring().axes[2].lines
    driver, ring = (dict(zip(*line.get_data())) for line in lines)
    assert driver[8] == 7 and driver[128] == 127
    assert ring[2] == 1 and ring[8] == 14 / 8 and max(ring.values()) < 2


def test_only_what_is_over_time_has_a_logarithmic_axis():
    steps, seconds = plot_losses({"samples": CURVES, "link": CURVES}).axes
    assert (steps.get_xscale(), seconds.get_xscale()) == ("linear", "log")
    assert [line.get_label() for line in steps.lines] == list(CURVES)
    assert np.array_equal(seconds.lines[1].get_xydata(), CURVES["H = 8"])


def test_losses_of_seeds_are_drawn_over_their_bytes():
    picture = plot_loss_against_bytes(OF_SEEDS)
    [axes] = picture.axes
    assert axes.get_xscale() == "log" and axes.get_xlabel().endswith("(kB)")
    (ddp, one, other) = (container.lines for container in axes.containers)
    assert ddp[0].get_xydata().tolist() == [[4, pytest.approx(0.7)]]
    spread = one[2][0].get_segments()[0][:, 1]
    assert spread == pytest.approx([0.75 - 0.1 / 2**1.5 * 2, 0.75 + 0.1 / 2**1.5 * 2])
    left, right = one[0].get_xdata()[0], other[0].get_xdata()[0]
    assert left < 1 < right and left * right == pytest.approx(1), "side by side"
    assert one[0].get_xdata()[1] == 0.5, "alone at its bytes"
    assert sorted(text.get_text() for text in axes.texts) == ["H = 4", "H = 8", "every step"]
    assert "one, H = 4: 1 kB, 0.750 ± 0.071" in repr(picture)
    for point in ((1000, [0.7]), (0, [0.6, 0.7])):
        with pytest.raises(ValueError, match="one, H = 4: a point needs bytes above 0"):
            plot_loss_against_bytes({"one": {"H = 4": point}})


def test_sliders_ask_for_the_curves_of_the_chosen_network():
    asked = []

    def over_time(link, devices):
        asked.append((link, devices))
        return {name: [(devices * x, y) for x, y in curve] for name, curve in CURVES.items()}

    widget = loss_sliders(over_time, devices=8, start=LINKS[2])
    assert asked == [(LINKS[2], 8)]
    before = widget.image.value
    widget.network.devices.value = 64
    assert asked[-1] == (LINKS[2], 64) and widget.image.value != before
    widget.network.preset.value = LINKS[4].name
    assert asked[-1] == (LINKS[4], 64)
    bundle = widget._repr_mimebundle_()
    assert bundle["image/png"] and "sliders" in bundle["text/plain"]


def test_a_sum_below_one_is_marked():
    right = plot_receipts({"cured": receipts([0.5, 0.5], [0.5, 0.5])})
    wrong = plot_receipts({"as it is": receipts([0.5, 0.5], [0.25, 0.25])})
    assert "sum 0.50" in texts(wrong) and "0.25" in texts(wrong)
    assert has_colour(pixels(wrong.png()), ALARM, 5, off=30)
    assert not has_colour(pixels(right.png()), ALARM, 5, off=30)


def test_an_all_reduce_stands_behind_the_micro_batch_that_caused_it():
    never = plot_synchronisation({"w": WAY | {"all-reduces": [0, 0]}}, {"w": WAY}).axes[0]
    second = plot_synchronisation({"w": WAY}, {"w": WAY}).axes[0]
    assert len(never.lines) == 0
    assert [line.get_xdata()[0] for line in second.lines] == pytest.approx([1.84])
    assert second.get_title(loc="left") == "w: 1 × all-reduce (red)"


def test_averages_and_steps_stand_at_their_micro_batches():
    picture = plot_averages(NOTES)
    axes = picture.axes[0]
    solid = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "-"]
    assert solid == pytest.approx([1.93, 3.93, 1.93, 3.93])
    assert sum(line.get_linestyle() == ":" for line in axes.lines) == 2
    image = pixels(picture.png())
    assert has_colour(image, STEPPED) and has_colour(image, NOT_STEPPED)


def test_the_formula_goes_through_what_follows_it():
    axes = PICTURES["segments"]().axes[0]
    formula, measured, _ = axes.lines
    curve = dict(zip(*formula.get_data()))
    assert curve[4.0] == 6 and curve[1.0] == 6  # KiB: 2 + 3 + 1, 2 + 0 + 4
    assert measured.get_ydata().tolist() == [9, 4]


def test_what_a_picture_has_along_its_axes_is_named():
    for axes in PICTURES["micro-batches"]().axes:
        assert axes.get_xlabel() == "micro-batch x accumulation steps" and axes.get_ylabel()


def test_a_race_says_when_it_is_too_noisy():
    slow, quick = timed_run("a", (2.0, 2.2)), timed_run("b", (0.9, 1.0))
    assert "m: 2.21 x as fast\nat the same memory" in texts(plot_race({"m": [slow, quick]}, "ab"))
    noisy = timed_run("b", (0.9, 2.1))
    assert "m: too noisy to tell" in texts(plot_race({"m": [slow, noisy]}, "ab"))


def test_techniques_stand_at_their_bytes_and_grow_with_their_flops():
    runs = [counted_run("plain", 10, 90, 100), counted_run("checkpointed", 4, 60, 133)]
    axes = plot_techniques(runs).axes[0]
    places = [dots.get_offsets()[0].tolist() for dots in axes.collections]
    assert places == [[5, 90], [2, 60]]  # two optimizer steps each
    first, second = (dots.get_sizes()[0] for dots in axes.collections)
    assert second / first == pytest.approx(1.33)


def test_the_names_of_techniques_that_are_stacked_stand_apart():
    """As the Trainer's lesson stacks them: the last one about as high as those before it."""
    stack = [("DDP, 16 x 1", 10, 49), ("+ accumulation, 4 x 4", 10, 25)]
    stack += [("+ checkpointing", 10, 19), ("+ Local SGD, H=2", 5, 20)]
    picture = plot_techniques([counted_run(*one, 100) for one in stack])
    picture.canvas.draw()
    named = [text for text in picture.axes[0].texts if text.get_text()]
    boxes = [text.get_window_extent() for text in named]
    assert len(boxes) == 4
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_published_dots_stand_at_the_flops_of_their_predictions():
    axes = PICTURES["layers"]().axes[0]
    line, one, two = axes.lines
    assert line.get_ydata().tolist() == [6843, 6843]
    assert [dot.get_xdata()[0] for dot in (one, two)] == [4, 5.4]


def before(x):
    y = x + 1
    return [y]


def after(x):
    return x < 1


def test_a_diff_shows_what_came_and_what_went_without_the_names(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    show_diff(before, after)
    (diff,) = shown
    assert diff.lines == [
        " def train(x):",
        "-    y = x + 1",
        "-    return [y]",
        "+    return x < 1",
    ]
    assert repr(diff) == "\n".join(diff.lines)
    assert "return x &lt; 1" in diff._repr_html_()


def test_no_category_lends_its_colour_to_a_technique():
    image = pixels(PICTURES["techniques"]().png())
    for category in CATEGORIES:
        assert not has_colour(image, COLOURS[category], at_least=30, off=2), category
