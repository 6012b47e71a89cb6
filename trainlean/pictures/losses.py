"""Losses over steps and over modelled time, and the same under sliders for a network."""

from collections.abc import Callable, Sequence

from matplotlib import colormaps

from trainlean.costs.links import LINKS, Link
from trainlean.pictures.link_controls import LinkControls
from trainlean.pictures.style import Picture, course_style
from trainlean.pictures.widget import Shown, image_of

Curves = dict[str, Sequence[tuple[float, float]]]  # (x, loss) pairs by name


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
