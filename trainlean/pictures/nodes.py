"""Who sends to whom: a driver that everything goes through, and a ring."""

from math import cos, pi, sin

from trainlean.pictures.style import ALARM, LINES, Picture, course_style

RING = LINES[2]  # ranks are no memory category
COUNTS = (2, 4, 8, 16, 32, 64, 128)


def plot_driver_and_ring() -> Picture:
    """Eight ranks with a driver, eight in a ring, and the gradients that the busiest rank sends, by number of ranks.

    Of N ranks a driver sends the mean to N - 1; in a ring each sends 2(N - 1) pieces, an N-th of the gradient each
    (Patarasuk and Yuan, 2009, doi:10.1016/j.jpdc.2008.09.002).
    """
    with course_style():
        picture = Picture(10, 3.4, "a driver and a ring of 8 ranks; what the busiest rank sends")
        star, ring, bars = picture.subplots(1, 3, width_ratios=[1, 1, 1.3])
        to_driver = [(0, other) for other in range(1, 8)]
        _draw_nodes(star, to_driver, "driver: everything through rank 0", driver=0)
        around = [(one, (one + 1) % 8) for one in range(8)]
        _draw_nodes(ring, around, "ring: an eighth at a time, 14 times")
        bars.plot(COUNTS, [n - 1 for n in COUNTS], "o-", color=ALARM)
        bars.plot(COUNTS, [2 * (n - 1) / n for n in COUNTS], "o-", color=RING)
        bars.text(14, 40, "the driver", color=ALARM, ha="center", weight="bold")
        bars.text(40, 2.6, "every rank of a ring", color=RING, ha="center", weight="bold")
        bars.set(xscale="log", yscale="log", xlabel="ranks")
        bars.set_xticks(COUNTS, COUNTS)
        bars.set_yticks([1, 10, 100], [1, 10, 100])
        bars.minorticks_off()
        _title(bars, "gradients sent by the busiest rank")
        picture.tight_layout()
    return picture


def _draw_nodes(panel, arrows, title, driver=None):
    """Eight numbered dots on a circle, the driver in its middle; `arrows` are pairs of ranks."""
    places = [(sin(2 * pi * i / 8), cos(2 * pi * i / 8)) for i in range(8)]
    if driver is not None:
        places[driver] = (0, 0)
    style = {
        "arrowstyle": "<|-|>" if driver is not None else "-|>",
        "color": ALARM if driver is not None else RING,
        "lw": 1.6,
        "shrinkA": 13,
        "shrinkB": 13,
    }
    for start, end in arrows:
        panel.annotate("", places[end], places[start], arrowprops=style)
    for number, place in enumerate(places):
        panel.plot(*place, "o", markersize=24, color=ALARM if number == driver else RING)
        panel.text(*place, str(number), color="white", ha="center", va="center", weight="bold")
    panel.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
    _title(panel, title)
    panel.axis("off")


def _title(panel, text):
    panel.set_title(text, loc="center", fontsize=10, weight="normal", pad=6)
