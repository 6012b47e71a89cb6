"""Losses over steps and over modelled time, and the same under sliders for a network."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from statistics import fmean, stdev
from typing import Any

from matplotlib import colormaps

from trainlean.costs.links import LINKS, Link
from trainlean.pictures.link_controls import LinkControls
from trainlean.pictures.style import Picture, course_style
from trainlean.pictures.widget import Shown, image_of

Curves = dict[str, Sequence[tuple[float, float]]]  # (x, loss) pairs by name
MARKS = "osDv^P"  # of methods, so that no colour is needed to tell them apart
ASIDE = 1.08  # from a method to the next where both have equally many bytes


def plot_losses(panels: dict[str, Curves], *, y: str = "loss on held-out reviews") -> Picture:
    """Curves of a loss, in one panel for each entry of `panels`: title to {name: (x, loss) pairs}.

    The first panel's x are optimizer steps; those of the others are seconds, on a logarithmic axis.
    """
    names = ", ".join(next(iter(panels.values()), {}))
    with course_style():
        picture = Picture(11, 3.5, f"{y} over {'; '.join(panels)}: {names}")
        [axes] = picture.subplots(1, len(panels), sharey=True, squeeze=False).tolist()
        for number, (panel, (title, curves)) in enumerate(zip(axes, panels.items())):
            _draw_curves(panel, curves, title, seconds=number > 0)
        axes[0].set_ylabel(y)
        axes[0].legend(frameon=False, fontsize=9)
        picture.tight_layout()
    return picture


def _draw_curves(panel, curves, title, seconds):
    panel.set_title(title, loc="center", fontsize=10, weight="normal", pad=6)
    panel.set_xscale("log" if seconds else "linear")
    panel.set_xlabel("modelled seconds" if seconds else "optimizer steps")
    for shade, (name, points) in enumerate(curves.items()):
        colour = colormaps["viridis"](shade / max(3.6, len(curves) - 0.4))
        panel.plot(*zip(*points), ".-", color=colour, label=name)


Seeds = tuple[float, Sequence[float]]  # bytes, and the loss at the end with each seed


def plot_loss_against_bytes(
    methods: dict[str, dict[str, Seeds]], *, y: str = "loss on held-out reviews"
) -> Picture:
    """Loss over bytes on a logarithmic axis: the mean over seeds, and a bar of one standard deviation to each side.

    `methods`: method to {words at the point: (bytes that a rank hands over, the loss at the end with each seed)}. Points of a
    method are joined. Points with the same bytes and words are drawn side by side, and the words stand once above them.
    ValueError: a point with fewer than two seeds, or without bytes.
    """
    for method, points in methods.items():
        for words, (size, losses) in points.items():
            if size <= 0 or len(losses) < 2:
                raise ValueError(
                    f"{method}, {words}: a point needs bytes above 0 and the losses of two seeds or more, not {size!r} and {len(losses)}."
                )
    with course_style():
        picture = Picture(9, 4.6, f"{y} against bytes: {_read_out(methods)}")
        picture.set_layout_engine("constrained")
        axes = picture.subplots()
        tops: dict[tuple[float, str], float] = {}  # of all bars at these bytes, for their words
        beside = Counter(place for points in methods.values() for place in _places(points))
        drawn: Counter = Counter()
        for number, (method, points) in enumerate(methods.items()):
            x, means, spreads = [], [], []
            for place, (_, losses) in zip(_places(points), points.values()):
                x.append(place[0] * ASIDE ** (drawn[place] - (beside[place] - 1) / 2))
                means.append(fmean(losses))
                spreads.append(stdev(losses))
                drawn[place] += 1
                tops[place] = max(tops.get(place, -inf), means[-1] + spreads[-1])
            colour = colormaps["viridis"](0.82 * number / max(1, len(methods) - 1))
            mark = MARKS[number % len(MARKS)]
            axes.plot(x, means, color=colour, lw=0.8, alpha=0.6)
            axes.errorbar(
                x, means, spreads, fmt=mark, color=colour, elinewidth=1.2, capsize=3, label=method
            )
        for (size, words), top in tops.items():
            over: dict[str, Any] = {
                "textcoords": "offset points",
                "ha": "center",
                "rotation": 90,
                "fontsize": 8.5,
            }
            axes.annotate(words, (size, top), (0, 6), **over)
        axes.set_xscale("log")
        axes.margins(0.08, 0.18)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set(
            xlabel="bytes that a rank hands over in the whole training (kB)",
            ylabel=f"{y}, at the end",
        )
        picture.legend(loc="outside right upper", frameon=False, fontsize=9)
    return picture


def _places(points: dict[str, Seeds]) -> list[tuple[float, str]]:
    return [(size / 1000, words) for words, (size, _) in points.items()]


def _read_out(methods: dict[str, dict[str, Seeds]]) -> str:
    return "; ".join(
        f"{' '.join(method.split())}, {words}: {size / 1000:,.0f} kB, {fmean(losses):.3f} ± {stdev(losses):.3f}"
        for method, points in methods.items()
        for words, (size, losses) in points.items()
    )


def loss_sliders(
    over_time: Callable[[Link, int], Curves], *, devices: int = 8, start: Link = LINKS[2]
) -> Shown:
    """Curves of a loss over modelled seconds, with sliders for the network.

    `over_time(link, devices)` gives {name: (second, loss) pairs}; it is called again after each move of a slider.
    `devices` and `start` are what the sliders begin with.
    """
    return LossSliders(over_time, devices, start)


class LossSliders(Shown):
    """The widget of `loss_sliders`; `network` has the controls, `image` the picture."""

    def __init__(self, over_time, devices, start):
        self.over_time = over_time
        self.network = LinkControls(lambda: None, devices=devices, start=start)
        self.network.changed = self.redraw
        self.image = image_of(Picture(6.4, 3.4, ""))
        self.redraw()
        super().__init__([self.network, self.image])

    def __repr__(self) -> str:
        return "The same losses over modelled time, with sliders for the network"

    def redraw(self) -> None:
        """Draw the curves of the network that is chosen now."""
        curves = self.over_time(self.network.link, self.network.devices.value)
        with course_style():
            picture = Picture(6.4, 3.4, repr(self))
            panel = picture.subplots()
            _draw_curves(panel, curves, str(self.network.link), seconds=True)
            panel.set_ylabel("loss on held-out reviews")
            panel.legend(frameon=False, fontsize=9)
            picture.tight_layout()
        self.image.value = picture.png()
