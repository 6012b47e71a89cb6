"""Whose gradients are in an optimizer step, and when ranks meet: receipts, synchronised windows, averages."""

from collections.abc import Sequence

from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.patches import Rectangle

from trainlean.pictures.style import (
    ALARM,
    COLOURS,
    INK,
    NOT_STEPPED,
    RANKS,
    STEPPED,
    Picture,
    course_style,
)

SHARES = LinearSegmentedColormap.from_list("shares", ["white", COLOURS["gradients"]])


def plot_receipts(trainings: dict[str, Sequence]) -> Picture:
    """The share of each micro-batch in each optimizer step, in a panel for each training.

    `trainings`: title to receipts, of which each is a tensor with one share per micro-batch; all trainings have equally
    many steps and micro-batches. Sums below 1 are marked.
    """
    with course_style():
        picture = Picture(9, 2.4, f"shares of micro-batches by step: {', '.join(trainings)}")
        panels = picture.subplots(1, len(trainings), sharey=True, squeeze=False)[0]
        for panel, (title, receipts) in zip(panels, trainings.items()):
            shares = [receipt.tolist() for receipt in receipts]
            count = len(shares[0])
            panel.imshow(shares, cmap=SHARES, vmin=0, vmax=1, aspect="auto")
            for step, row in enumerate(shares):
                _write_shares(panel, step, [f"{share:.2f}" if share else "" for share in row])
                panel.text(
                    count - 0.3,
                    step,
                    f"sum {sum(row):.2f}",
                    va="center",
                    fontsize=9,
                    color=ALARM if sum(row) < 0.99 else INK,
                )
            panel.set(xlabel="micro-batch")
            panel.set_xticks(range(count), range(1, count + 1))
            panel.set_yticks(range(len(shares)), [f"step {i + 1}" for i in range(len(shares))])
            panel.set_title(title, loc="center", fontsize=12, weight="normal", pad=6)
            _bare(panel)
        picture.tight_layout(w_pad=5)
    return picture


def plot_synchronisation(on_rank_0: dict, on_rank_1: dict) -> Picture:
    """A window on two ranks, for each way to accumulate: when an all-reduce comes, and the gradient of the step.

    Each argument is one rank's {way: {"all-reduces": count after each micro-batch, "gradient": one share for each
    micro-batch of both ranks}}.
    """
    count = len(next(iter(on_rank_0.values()))["all-reduces"])
    with course_style():
        picture = Picture(
            9.5, 1.24 * len(on_rank_0), f"all-reduces and gradients: {', '.join(on_rank_0)}"
        )
        panels = picture.subplots(len(on_rank_0), 2, width_ratios=[1, 1.5], squeeze=False).tolist()
        for (name, result), (left, right) in zip(on_rank_0.items(), panels):
            counts = result["all-reduces"]
            for number, (after, before) in enumerate(zip(counts, [0, *counts])):
                for lane, colour in enumerate(RANKS[:2]):
                    left.add_patch(Rectangle((number, lane + 0.15), 0.7, 0.7, color=colour))
                    words = {"ha": "center", "va": "center", "color": _readable_on(colour)}
                    left.text(number + 0.35, lane + 0.5, str(number + 1 + count * lane), **words)
                if after > before:
                    left.plot([number + 0.84] * 2, [0.1, 1.9], color=ALARM, linewidth=3)
            left.set(xlim=(-0.05, count), ylim=(2, 0), xticks=[])
            left.set_yticks([0.5, 1.5], ["rank 0", "rank 1"])
            _heading(left, f"{name}: {counts[-1]} × all-reduce (red)")
            gradients = [result["gradient"], on_rank_1[name]["gradient"]]
            right.imshow(gradients, cmap=SHARES, vmin=0, vmax=0.5, aspect="auto")
            for lane, gradient in enumerate(gradients):
                _write_shares(right, lane, [f"{share:.3f}" if share else "" for share in gradient])
            right.set(xticks=[], yticks=[])
            _bare(left)
            _bare(right)
        _heading(panels[0][1], "share of each micro-batch in the rank's gradient")
        lowest = panels[-1][1]
        lowest.set_xticks(range(2 * count), range(1, 2 * count + 1))
        lowest.set_xlabel("micro-batch")
        picture.tight_layout()
    return picture


def plot_averages(trainings: dict[str, Sequence[tuple[int, int]]]) -> Picture:
    """Micro-batches in a row for each training, dark where an optimizer step came, and a line for each average.

    `trainings`: name to (optimizer steps, averages) so far, after each micro-batch. A dotted line is the average that
    comes when the training ends.
    """
    count = max(len(notes) for notes in trainings.values())
    with course_style():
        picture = Picture(
            9.5, 1.3 + 0.4 * len(trainings), f"averages by micro-batch: {', '.join(trainings)}"
        )
        axes = picture.subplots()
        for lane, notes in enumerate(trainings.values()):
            ends = [lane + 0.08, lane + 0.92]
            for number, (after, before) in enumerate(zip(notes, [(0, 0), *notes])):
                colour = STEPPED if after[0] > before[0] else NOT_STEPPED
                axes.add_patch(Rectangle((number, lane + 0.2), 0.86, 0.6, color=colour))
                if after[1] > before[1]:
                    axes.plot([number + 0.93] * 2, ends, color=ALARM, linewidth=3)
            axes.plot([len(notes) + 0.03] * 2, ends, color=ALARM, linewidth=3, linestyle=":")
        axes.set(xlim=(-0.1, count + 0.3), ylim=(len(trainings), 0))
        axes.set_yticks([lane + 0.5 for lane in range(len(trainings))], list(trainings))
        numbers = [str(number + 1) for number in range(count)]
        axes.set_xticks([number + 0.43 for number in range(count)], numbers)
        axes.set_xlabel("micro-batch (dark: the optimizer steps)")
        _heading(axes, "Each red line is an average; dotted: the one on exit")
        _bare(axes)
        picture.tight_layout()
    return picture


def _write_shares(panel, row, words):
    for place, word in enumerate(words):
        panel.text(place, row, word, ha="center", va="center", fontsize=9, color=INK)


def _readable_on(colour):
    """White on dark colours, ink on light ones, by relative luminance (WCAG 2.2) without its gamma."""
    red, green, blue = to_rgb(colour)
    return "white" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5 else INK


def _heading(panel, text):
    panel.set_title(text, loc="left", fontsize=10, weight="normal", pad=6)


def _bare(panel):
    panel.spines[:].set_visible(False)
    panel.tick_params(length=0, labelcolor=INK)
