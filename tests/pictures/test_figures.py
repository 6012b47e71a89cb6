"""The figures: what they show, where their labels go, and that they are the same without a notebook."""

import random

import matplotlib
import pytest
from made_runs import has_colour, make_run, pixels

from trainlean.costs.runs import CATEGORIES, MiB, Run
from trainlean.pictures.front import FrontPlot, pareto_front, placed, plot_front
from trainlean.pictures.labels import place_labels, spread
from trainlean.pictures.memory import plot_memory
from trainlean.pictures.steps import plot_accumulation_window, plot_compare
from trainlean.pictures.style import COLOURS, UNDIVIDED, Picture, point_label
from trainlean.pictures.timelines import plot_timeline


@pytest.mark.parametrize("seed", range(40))
def test_pareto_front_against_brute_force(seed):
    generator = random.Random(seed)
    # few different values, so that ties and twins are common
    points = [
        (generator.randint(1, 6), generator.randint(1, 6)) for _ in range(generator.randint(0, 25))
    ]
    expected = {
        i
        for i, (speed, size) in enumerate(points)
        if not any(s >= speed and m <= size and (s, m) != (speed, size) for s, m in points)
    }
    front = pareto_front(points)
    assert set(front) == expected and len(front) == len(expected)
    assert [points[i][0] for i in front] == sorted(points[i][0] for i in front)


@pytest.mark.parametrize("seed", range(10))
def test_placed_labels_overlap_nothing(seed):
    generator = random.Random(seed)
    points = [(generator.uniform(0, 400), generator.uniform(0, 250)) for _ in range(25)]
    labels, box = ["16×1 ckpt"] * 25, (0, 0, 400, 250)
    obstacles = [(0, 100, 400, 102)]
    places = place_labels(points, labels, box, 8.5, obstacles)
    areas = [(x, y, x + 0.62 * 8.5 * 9, y + 1.1 * 8.5) for x, y in filter(None, places)]
    assert len(areas) >= 10
    for i, (left, bottom, right, top) in enumerate(areas):
        assert left >= 0 and bottom >= 0 and right <= 400 and top <= 250
        for other in areas[:i] + obstacles:
            assert right <= other[0] or other[2] <= left or top <= other[1] or other[3] <= bottom
        covered = [(x, y) for x, y in points if left < x < right and bottom < y < top]
        assert not covered


def test_spread_keeps_order_distance_and_limits():
    assert spread([1, 1.2, 5], 1, 0, 10) == [1, 2, 5]
    assert spread([9.5, 9.8], 1, 0, 10) == [9, 10]
    assert spread([], 1, 0, 10) == []


def test_what_lies_above_the_budget_is_crossed_and_not_on_the_front():
    runs = [
        make_run(1, speed=50),
        make_run(4, speed=80),
        make_run(16, speed=120),
        make_run(8, speed=40),
    ]
    axes = Picture(6, 4, "").subplots()
    plot = FrontPlot(axes)
    plot.set_limits(runs)
    front = plot.draw(runs, budget=runs[1].peak_bytes)  # exactly the budget still fits
    assert [run.settings["micro_batch"] for run in front] == [1, 4]
    assert sorted(plot.crosses.get_xdata()) == [40, 120]
    assert sorted(plot.points["measured", "fits"].get_xdata()) == [50, 80]
    assert sorted(plot.points["measured", "out"].get_xdata()) == [40, 120]
    assert "out of memory" in plot.budget_text.get_text()
    front = plot.draw(runs)
    assert [run.settings["micro_batch"] for run in front] == [1, 4, 16]
    assert len(plot.crosses.get_xdata()) == 0


def test_a_prediction_stands_at_the_speed_of_its_likest_timed_twin():
    half = make_run(4, speed=20, origin="published", precision="fp16")
    full = make_run(4, speed=9, origin="published", precision="fp32")
    predicted = make_run(4, speed=None, origin="predicted", precision="fp32")
    alone = make_run(2, speed=None, origin="predicted")
    assert [speed for _, speed in placed([half, full, predicted, alone])] == [20, 9, 9, None]


def test_a_prediction_for_the_published_card_does_not_stand_at_another_cards_speed():
    published = make_run(4, speed=9, origin="published")
    measured = make_run(4, speed=33, attention="eager", sequence_length=512)
    more = dict(attention="eager", sequence_length=512)
    old = make_run(4, speed=None, origin="predicted", device="gpu of 2022", **more)
    new = make_run(4, speed=None, origin="predicted", device="gpu", **more)
    untimed = make_run(4, speed=None, origin="published")
    runs = [published, measured, old, new, untimed]
    assert [speed for _, speed in placed(runs)] == [9, 33, 9, 33, 9]


def test_labels_fall_back_to_names_where_they_would_be_equal():
    runs = [
        make_run(4, 2, checkpointing="every layer"),
        make_run(4, 1),
        make_run(4, 1, optimizer="adafactor"),
    ]
    assert FrontPlot.names(runs) == ["4×2 ckpt", "measured 4x1", "measured 4x1"]


def timeline():
    growing = [("forward", {"weights": 8 * MiB, "activations": i * MiB}) for i in range(30)]
    shrinking = [
        ("backward", {"weights": 8 * MiB, "gradients": 4 * MiB, "activations": (30 - i) * MiB})
        for i in range(30)
    ]
    return (
        growing
        + shrinking
        + [("optimizer step", {"weights": 8 * MiB, "optimizer state": 16 * MiB})] * 5
    )


PICTURES = {
    "front": lambda: plot_front([make_run(1, speed=60), make_run(4)], 70 * MiB),
    "memory": lambda: plot_memory([make_run(8), make_run(4, 2)]),
    "timeline": lambda: plot_timeline(timeline()),
    "timelines": lambda: plot_timeline({"plain": timeline(), "checkpointed": timeline()[:50]}),
    "compare": lambda: plot_compare(
        {"PyTorch": [2.0, 1.0, 0.5], "Trainer": ([1, 3], [2.0, 0.7])}, title="Loss"
    ),
    "window": lambda: plot_accumulation_window(4, 10),
}
TEXTS = {
    "front": "memory against speed: 2 runs (2 measured); 1 fit into 70 MiB",
    "memory": "peak memory by category: 2 runs (2 measured)",
    "timeline": "memory over time: 65 moments in 3 phases; peak 42 MiB in backward: activations 30 MiB, weights 8 MiB, gradients 4 MiB",
    "timelines": "memory over time of plain: 65 moments in 3 phases; peak 42 MiB in backward: activations 30 MiB, weights 8 MiB, gradients 4 MiB; "
    "memory over time of checkpointed: 50 moments in 2 phases; peak 42 MiB in backward: activations 30 MiB, weights 8 MiB, gradients 4 MiB",
    "compare": "loss by step: PyTorch, Trainer",
    "window": "accumulation: 10 micro-batches, an update after every 4, 3 updates",
}


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_shows_something_and_has_a_fixed_text(name):
    picture = PICTURES[name]()
    image = pixels(picture.png())
    assert (image.min(axis=-1) < 200).mean() > 0.01  # ink
    assert (image == 255).all(axis=-1).mean() > 0.3  # on white
    assert (image[:3] == 255).all() and (
        image[:, -3:] == 255
    ).all()  # nothing is cut off at the edges
    assert repr(picture) == str(picture) == TEXTS[name]
    assert len(picture.png()) < 60_000
    assert picture.png() == PICTURES[name]().png()


def test_what_is_compared_stands_on_one_scale():
    low = [
        (phase, {name: size // 2 for name, size in sizes.items()}) for phase, sizes in timeline()
    ]
    one, other = plot_timeline({"plain": timeline(), "half": low[:26]}).axes
    assert one.get_ylim() == other.get_ylim() and one.get_ylim()[1] > 42
    said = [
        " ".join(text.get_text() for text in axes.texts).replace("\n", " ") for axes in (one, other)
    ]
    assert "Peak 42 MiB in backward: activations 30 MiB" in said[0]
    assert "Peak 16.5 MiB in forward" in said[1] or "Peak 16 MiB in forward" in said[1]


def test_every_phase_and_every_bar_has_a_label():
    many = timeline() + [("forward", {"weights": 1})] * 3 + [("backward", {"weights": 1})] * 3
    [axes] = plot_timeline(many * 3).axes
    strip = [text.get_text() for text in axes.texts if text.get_position()[1] == 1.052]
    assert len(strip) == 15 and all(strip)
    run = Run(name="r", peak={"weights": 100 * MiB, "gradients": MiB, "activations": 2 * MiB})
    [bars] = plot_memory([run]).axes
    assert {"100", "1.0", "2.0"} <= {text.get_text() for text in bars.texts}


def test_a_number_below_a_bar_has_the_colour_of_its_category():
    """Moved apart, the 10.2 of the optimizer state stood below the activations."""
    peak = {"weights": 5, "gradients": 5, "optimizer state": 10, "activations": 500}
    run = Run(name="r", peak={name: size * MiB for name, size in peak.items()})
    [bars] = plot_memory([run]).axes
    below = [text.get_position()[0] for text in bars.texts if text.get_fontsize() == 7]
    marks = [(line.get_xdata()[0], line.get_color()) for line in bars.lines]
    assert [colour for _, colour in marks] == [COLOURS[name] for name in list(peak)[:3]]
    assert all(mark < number for (mark, _), number in zip(marks, below, strict=True))
    assert all(number < mark for number, (mark, _) in zip(below, marks[1:]))


def test_colours_of_the_categories_are_those_of_the_course():
    assert tuple(COLOURS) == CATEGORIES
    for name in ("memory", "timeline"):
        image = pixels(PICTURES[name]().png())
        for category in ("weights", "gradients", "optimizer state", "activations"):
            assert has_colour(image, COLOURS[category]), (name, category)


def test_a_run_that_is_not_divided_into_categories_is_drawn_too():
    run = Run(
        name="published",
        settings={"micro_batch": 4},
        peak={"whole device": 900 * MiB},
        origin="published",
    )
    assert has_colour(pixels(plot_memory([run]).png()), UNDIVIDED, at_least=1000)


@pytest.mark.parametrize("draw", [plot_memory, plot_front, plot_timeline, plot_compare])
def test_nothing_to_draw_is_no_error(draw):
    assert draw({} if draw is plot_compare else []).png()


@pytest.mark.parametrize(("k", "micro_batches"), [(1, 5), (4, 10), (4, 40), (2, 31)])
def test_words_beside_the_windows_do_not_lie_on_them(k, micro_batches):
    picture = plot_accumulation_window(k, micro_batches)
    picture.png()
    [axes] = picture.axes
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
    first = min(patch.get_window_extent().x0 for patch in axes.patches)
    assert max(boxes[words].x1 for words in ("micro-batch", "gradient\nadds up", "weights")) < first
    titles = [text.get_window_extent() for text in axes.texts if text.get_position()[1] == 3.72]
    assert all(one.x1 < other.x0 for one, other in zip(titles, titles[1:]))


def test_window_refuses_nonsense():
    with pytest.raises(ValueError, match="at least 1, not 0 and 4"):
        plot_accumulation_window(0, 4)


def test_the_style_is_the_courses_own_and_stays_local():
    expected = PICTURES["memory"]().png()
    with matplotlib.rc_context(
        {"font.size": 30, "axes.facecolor": "black", "figure.facecolor": "black"}
    ):
        before = dict(matplotlib.rcParams)
        assert PICTURES["memory"]().png() == expected
        assert dict(matplotlib.rcParams) == before


def test_a_notebook_shows_one_picture_and_the_fixed_text(monkeypatch):
    shown = []
    monkeypatch.setattr(
        "IPython.display.display", lambda bundle, **more: shown.append((bundle, more))
    )
    PICTURES["window"]()._ipython_display_()
    ((bundle, more),) = shown
    assert bundle["text/plain"] == TEXTS["window"] and set(bundle) == {"image/png", "text/plain"}
    assert more["raw"] is True
    from matplotlib import pyplot

    assert pyplot.get_fignums() == []


def test_small_sizes_are_no_zeros():
    run = Run("adapter", {}, {"weights": 2 * MiB, "optimizer state": 20_000}, samples=1)
    [bars] = plot_memory([run]).axes
    assert "< 0.1" in [text.get_text() for text in bars.texts]
    ticks = [tick.get_text() for tick in bars.get_xticklabels()]
    assert len(set(ticks)) == len(ticks) > 1


def test_speeds_that_hardly_differ_do_not_fill_the_picture():
    plot = FrontPlot(Picture(6, 4, "").subplots())
    plot.set_limits([make_run(1, speed=100), make_run(4, speed=104)])
    left, right = plot.axes.get_xlim()
    assert left < 100 and right > 104 and 0.5 * (right - left) > 4


def test_moving_artists_give_the_same_picture_as_drawing_everything():
    runs = [make_run(1, speed=60), make_run(4)]
    picture = Picture(6, 4, "")
    plot = FrontPlot(picture.subplots())
    plot.set_limits(runs)
    for budget in (70 * MiB, 200 * MiB, 30 * MiB):  # what an earlier state has drawn must be gone
        plot.draw(runs, budget=budget, chosen=runs[0])
        moved = picture.png(plot.animated, "same")
    for artist in plot.animated:
        artist.set_animated(False)
    difference = abs(pixels(moved) - pixels(picture.png())).max(axis=-1)
    assert (difference > 24).mean() < 0.002


def test_short_labels_say_how_it_is_checkpointed():
    kinds = ["off", "every layer", "every 2 layers", "selective"]
    assert [point_label(make_run(4, 2, checkpointing=kind)) for kind in kinds] == [
        "4×2",
        "4×2 ckpt",
        "4×2 ckpt/2",
        "4×2 ckpt sel.",
    ]


def drawn_with_budget(sizes_and_speeds, budget):
    """A front of these runs (MiB, samples/second), and where the words of the budget lie beside its line: above or below it."""
    plot = FrontPlot(Picture(6, 4, "").subplots())
    runs = [
        make_run(number, speed=speed, size=size)
        for number, (size, speed) in enumerate(sizes_and_speeds, start=1)
    ]
    plot.set_limits(runs)
    plot.draw(runs, budget=budget * MiB)
    return plot, plot.budget_text.get_ha(), plot.budget_text.get_va()


def test_the_words_of_the_budget_keep_clear_of_points():
    wide = [(100, 100), (10, 10)]  # in both corners, far from the line
    assert drawn_with_budget(wide, 50)[1:] == ("right", "bottom")
    assert drawn_with_budget([*wide, (53, 95)], 50)[1:] == ("left", "bottom")
    assert drawn_with_budget([*wide, (53, 95), (53, 15)], 50)[1:] == ("right", "top")


def test_a_budget_beyond_the_picture_has_an_arrow_and_no_line():
    plot, _, va = drawn_with_budget([(100, 100), (10, 10)], 500)
    assert plot.budget_text.get_text() == "budget 500 MiB ↑" and va == "top"
    assert len(plot.budget_line.get_xdata()) == 0


def test_a_comparison_may_begin_at_zero():
    curves = {"a": [50, 60]}
    lows = [plot_compare(curves, from_zero=zero).axes[0].get_ylim()[0] for zero in (False, True)]
    assert lows[0] > 40 and lows[1] == 0
