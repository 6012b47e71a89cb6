"""Memory against speed: points and the Pareto front."""

from collections.abc import Iterable, Sequence

from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from trainlean.costs.runs import ORIGINS, MiB, Run
from trainlean.pictures.labels import label_boxes, overlap, place_labels
from trainlean.pictures.style import (
    ALARM,
    BEYOND_BUDGET,
    FAINT,
    INK,
    LINES,
    MARKERS,
    PALE,
    SOFT,
    Picture,
    count_text,
    course_style,
    listed,
    mib,
    point_label,
)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """The indices of the points (samples/second, bytes) that no other point beats, slowest first.

    A point is beaten by one that is at least as fast and needs no more memory, and is better in one of the two.
    """
    front: list[int] = []
    least = float("inf")
    fastest_first = sorted(range(len(points)), key=lambda i: (-points[i][0], points[i][1]))
    for i in fastest_first:
        speed, size = points[i]
        twin = bool(front) and points[front[-1]] == (speed, size)
        if size < least or twin:
            front.append(i)
            least = size
    return front[::-1]


class FrontPlot:
    """Runs as points of memory against speed, with budget and Pareto front: artists made once and then moved."""

    FRONT = "Pareto front"
    MOST_LABELS = 10  # of runs that are neither chosen nor on the front: more of them would be a cloud of words

    def __init__(self, axes):
        self.axes = axes
        axes.set_xlabel("samples/second")
        axes.set_ylabel("peak memory (MiB)")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        self.beyond = axes.add_patch(
            Rectangle(
                (0.003, 0),
                1,
                1,
                transform=axes.get_yaxis_transform(),
                facecolor=BEYOND_BUDGET,
                zorder=0,
            )
        )
        (self.budget_line,) = axes.plot(
            [], [], color=ALARM, lw=1.3, zorder=2, transform=axes.get_yaxis_transform()
        )
        self.budget_text = axes.text(
            1,
            0,
            "",
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="bottom",
            color=ALARM,
            size=8.5,
        )
        (self.front_line,) = axes.plot([], [], color=INK, lw=1.4, zorder=3, solid_joinstyle="round")
        self.points = {}
        for origin, marker in MARKERS.items():
            common = {"ls": "", "marker": marker, "ms": 7 if marker == "o" else 6}
            hollow = {"mfc": "white"} if origin == "predicted" else {}
            (self.points[origin, "others"],) = axes.plot(
                [], [], color=PALE, zorder=4, **{**common, "ms": 4}
            )
            (self.points[origin, "out"],) = axes.plot(
                [], [], color=FAINT, zorder=4, **common, **hollow
            )
            (self.points[origin, "fits"],) = axes.plot(
                [], [], color=INK, zorder=5, **common, **hollow
            )
        (self.crosses,) = axes.plot([], [], ls="", marker="x", ms=9, mew=1.4, color=ALARM, zorder=6)
        (self.guide,) = axes.plot([], [], color=LINES[0], lw=0.8, ls=(0, (1, 3)), zorder=1)
        (self.ring,) = axes.plot(
            [], [], ls="", marker="o", ms=15, mew=1.8, mfc="none", color=LINES[0], zorder=7
        )
        self.note = axes.text(
            0.5, 0.5, "", transform=axes.transAxes, ha="center", va="center", color=SOFT
        )
        self.front_text = axes.text(
            0, 0, self.FRONT, size=8.5, va="bottom", style="italic", color=SOFT, transform=None
        )
        self.texts = []

    @property
    def animated(self) -> list:
        """The artists that `draw` changes."""
        fixed = [
            self.beyond,
            self.budget_line,
            self.budget_text,
            self.front_line,
            self.crosses,
            self.guide,
            self.ring,
            self.note,
            self.front_text,
        ]
        return [*fixed, *self.points.values(), *self.texts]

    def set_limits(self, runs: Sequence[Run], budget: float | None = None):
        """Set the limits, from all runs that may be shown, so that the picture stands still while controls move.

        `budget` in bytes: it stays inside.
        """
        timed = any(run.samples_per_second for run in runs)
        self.axes.yaxis.set_visible(bool(runs))
        self.axes.xaxis.set_visible(timed)
        tops = [run.peak_bytes for run in runs] + [budget or 0, MiB]
        self.axes.set_ylim(0, 1.12 * max(tops) / MiB)
        speeds = [run.samples_per_second for run in runs if run.samples_per_second] or [0, 1]
        # A quarter of the fastest at least: what differs by a few percent shall not fill the picture.
        spread = max(speeds) - min(speeds)
        width = max(spread, max(speeds) / 4) if spread else max(speeds)
        untimed = any(speed is None for _, speed in placed(runs))
        left = max(0, min(speeds) - width * (0.6 if untimed else 0.2))
        self.untimed_at = left + 0.03 * (max(speeds) + 0.14 * width - left)
        self.axes.set_xlim(left, max(speeds) + 0.14 * width)

    def draw(
        self,
        runs: Sequence[Run],
        *,
        budget: float | None = None,
        others: Sequence[Run] = (),
        chosen: Run | None = None,
    ):
        """Show `runs` against the budget (bytes), `others` pale behind them, and a ring around the chosen run."""
        axes = self.axes
        spots: dict[str, list[tuple[Run, float, float]]] = {"fits": [], "out": [], "others": []}
        for run, speed in placed(list(runs) + list(others)):
            x = self.untimed_at if speed is None else speed
            state = (
                "others"
                if run in others
                else "out"
                if budget is not None and run.peak_bytes > budget
                else "fits"
            )
            spots[state].append((run, x, run.peak_bytes / MiB))
        for origin, state in self.points:
            chosen_spots = [spot for spot in spots[state] if spot[0].origin == origin]
            self.points[origin, state].set_data(
                [x for _, x, _ in chosen_spots], [y for _, _, y in chosen_spots]
            )
        self.crosses.set_data([x for _, x, _ in spots["out"]], [y for _, _, y in spots["out"]])

        timed = [(run, x, y) for run, x, y in spots["fits"] if run.samples_per_second]
        front = [timed[i] for i in pareto_front([(x, y) for _, x, y in timed])]
        self.front_line.set_data(*_stairs([(x, y) for _, x, y in front]))

        low, high = axes.get_ylim()
        line = high if budget is None else min(high, budget / MiB)
        inside = line < high
        self.budget_line.set_data(*([[0, 1], [line, line]] if inside else [[], []]))
        self.beyond.set_y(line)
        self.beyond.set_height(high - line)
        more = "" if inside else " ↑"
        self.budget_text.set_text(
            ""
            if budget is None
            else f"budget {mib(budget)}{more}"
            + (", above it: out of memory" if spots["out"] else "")
        )
        self._place_budget(spots, line, inside)

        ring = [(x, y) for spot in spots.values() for run, x, y in spot if run is chosen]
        self.ring.set_data([x for x, _ in ring], [y for _, y in ring])
        self.guide.set_data(
            *([ring[0][0], axes.get_xlim()[1]], [ring[0][1]] * 2) if ring else ([], [])
        )
        self._label(spots, front, chosen, line if budget is not None else None)
        shown = [*runs, *others]
        self.note.set_text(
            ""
            if any(run.samples_per_second for run in shown)
            else "No run here has been timed."
            if shown
            else "No runs yet: measure one first."
        )
        return [run for run, _, _ in front]

    def _place_budget(self, spots, line, inside):
        """Put the words of the budget where no point stands: above its line (a budget beyond the picture has none) or below it."""
        (left, right), (low, high) = self.axes.get_xlim(), self.axes.get_ylim()
        share = (
            len(self.budget_text.get_text())
            * 0.6
            * 8.5
            / (self.axes.bbox.width * 72 / self.axes.figure.dpi)
        )
        points = [
            ((x - left) / (right - left), (y - line) / (high - low))
            for spot in spots.values()
            for _, x, y in spot
        ]

        def free(side, above):
            bottom, top = (-0.02, 0.085) if above else (-0.085, 0.005)
            return not any(
                bottom < y < top and (x > 0.98 - share if side == "right" else x < 0.02 + share)
                for x, y in points
            )

        places = [
            (side, above)
            for above in ((True, False) if inside else (False,))
            for side in ("right", "left")
        ]
        side, above = next((place for place in places if free(*place)), places[0])
        self.budget_text.set(x=1 if side == "right" else 0.012, ha=side)
        self.budget_text.set(
            y=line + (0.008 if above else -0.012) * (high - low), va="bottom" if above else "top"
        )

    def _label(self, spots, front, chosen, line):
        """Name the chosen run, then the front, then the rest, as far as there is room."""
        ranked = [
            spot for spot in spots["fits"] + spots["out"] + spots["others"] if spot[0] is chosen
        ]
        ranked += [spot for spot in front if spot not in ranked]
        rest = [spot for spot in spots["fits"] + spots["out"] if spot not in ranked]
        ranked += rest if len(rest) <= self.MOST_LABELS else []
        pixels = 72 / self.axes.figure.dpi  # into points, the unit of font sizes

        def to_points(x, y):
            return tuple(self.axes.transData.transform((x, y)) * pixels)

        box = self.axes.bbox.extents * pixels
        unnamed = [
            to_points(*spot[1:]) for state in spots.values() for spot in state if spot not in ranked
        ]
        obstacles = [(x - 4, y - 4, x + 4, y + 4) for x, y in unnamed]
        obstacles += _segments([to_points(*corner) for corner in zip(*self.guide.get_data())])
        obstacles += _segments(
            [to_points(*corner) for corner in zip(*_stairs([(x, y) for _, x, y in front]))]
        )
        if line is not None:
            wide, y = (
                0.56 * 8.5 * len(self.budget_text.get_text()),
                to_points(self.axes.get_xlim()[0], line)[1],
            )
            left = box[0] if self.budget_text.get_ha() == "left" else box[2] - wide
            words = (y, y + 13) if self.budget_text.get_va() == "bottom" else (y - 13, y)
            obstacles += [(box[0], y - 1, box[2], y + 1), (left, words[0], left + wide, words[1])]
        labels = self.names([run for run, _, _ in ranked])
        spots = [to_points(x, y) for _, x, y in ranked]
        radii = [8.5 if run is chosen else 4.25 for run, _, _ in ranked]
        places = place_labels(spots, labels, box, 8.5, obstacles, radii)
        corners = [to_points(*corner) for corner in zip(*self.front_line.get_data())]
        self._name_front(corners, [*obstacles, *label_boxes(spots, labels, places)], box, pixels)
        while len(self.texts) < len(ranked):
            self.texts.append(
                self.axes.text(0, 0, "", size=8.5, va="bottom", transform=None, zorder=8)
            )
        for text in self.texts:
            text.set_visible(False)
        for text, (run, _, _), label, place in zip(self.texts, ranked, labels, places):
            if place is None:
                continue
            text.set(visible=True, text=label, position=(place[0] / pixels, place[1] / pixels))
            text.set(
                color=INK if run is chosen or any(run is spot[0] for spot in front) else SOFT,
                weight="bold" if run is chosen else "normal",
            )

    def _name_front(self, corners, obstacles, box, pixels):
        """Write the name of the line below its longest level stretch that has room."""
        levels = sorted(zip(corners, corners[1:]), key=lambda pair: pair[0][0] - pair[1][0])
        wide = 0.58 * 8.5 * len(self.FRONT)
        self.front_text.set_visible(False)
        for (x0, y0), (x1, y1) in levels:
            for bottom in (y0 - 14, y0 + 3):
                area = ((x0 + x1 - wide) / 2, bottom, (x0 + x1 + wide) / 2, bottom + 11)
                inside = area[0] > box[0] and area[1] > box[1] and area[2] < box[2]
                if y0 == y1 and inside and not any(overlap(area, other) for other in obstacles):
                    self.front_text.set(visible=True, position=(area[0] / pixels, area[1] / pixels))
                    return

    @staticmethod
    def names(runs: Sequence[Run]) -> list[str]:
        """Short labels; runs of one origin that would share a label are called by their names."""
        short = [(run.origin, point_label(run)) for run in runs]
        return [run.name if short.count(key) > 1 else key[1] for run, key in zip(runs, short)]


def placed(runs: Sequence[Run]) -> list[tuple[Run, float | None]]:
    """Runs with the speed (samples/second) they are drawn at: a run that was not timed stands at the speed of its timed twin, if any."""
    twins = timed_twins(runs)
    return [
        (run, twin.samples_per_second if twin else None)
        for run, twin in zip(runs, twins, strict=True)
    ]


def timed_twins(runs: Sequence[Run]) -> list[Run | None]:
    """For each run itself where it was timed, else the timed run of its label that is most like it; None where there is none.

    What is published, or predicted for the published table's card, takes a published one where there is one, all else a measured one.
    """
    timed = [run for run in runs if run.samples_per_second]

    def twin(run):
        published = run.origin == "published" or run.settings.get("device") == "gpu of 2022"

        def likeness(other):
            shared = len(other.settings.items() & run.settings.items())
            return (other.origin == "published") == published, shared

        twins = [other for other in timed if _twin_key(other) == _twin_key(run)]
        return max(twins, key=likeness, default=None)

    return [run if run.samples_per_second else twin(run) for run in runs]


def _twin_key(run: Run):
    return run.settings.get("model"), run.settings.get("devices"), point_label(run)


def _stairs(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """The corners of the front: from each point at its height to the left until the next slower one."""
    xs: list[float] = []
    ys: list[float] = []
    for (x, y), slower in zip(points, [None, *points]):
        if slower is not None:
            xs, ys = [*xs, slower[0]], [*ys, y]
        xs, ys = [*xs, x], [*ys, y]
    return xs, ys


def _segments(corners) -> list[tuple[float, float, float, float]]:
    return [
        (min(a[0], b[0]) - 1, min(a[1], b[1]) - 1, max(a[0], b[0]) + 1, max(a[1], b[1]) + 1)
        for a, b in zip(corners, corners[1:])
    ]


def plot_front(runs: Sequence[Run], budget: float | None = None) -> Picture:
    """Memory against speed: a point per run, the Pareto front of what fits into `budget` (bytes), the rest crossed."""
    runs = listed(runs, "plot_front")
    text = f"memory against speed: {count_text(runs)}"
    if budget is not None:
        text += f"; {sum(run.peak_bytes <= budget for run in runs)} fit into {mib(budget)}"
    with course_style():
        picture = Picture(7.4, 4.2, text)
        axes = picture.subplots()
        picture.subplots_adjust(left=0.125, right=0.97, bottom=0.14, top=0.88)
        axes.set_title("Memory against speed")
        plot = FrontPlot(axes)
        plot.set_limits(runs, budget)
        plot.draw(runs, budget=budget)
        origin_legend(axes, runs)
    return picture


def origin_legend(axes, runs: Iterable[Run]):
    """Say which marker is which origin, above the axes on the right, when there is more than one."""
    origins = [origin for origin in ORIGINS if any(run.origin == origin for run in runs)]
    if len(origins) < 2:
        return
    handles = [
        axes.plot(
            [],
            [],
            ls="",
            marker=MARKERS[o],
            ms=6,
            color=INK,
            label="predicted or modelled" if o == "predicted" else o,  # as in explorer.js
            **({"mfc": "white"} if o == "predicted" else {}),
        )[0]
        for o in origins
    ]
    axes.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1, 1.0),
        ncols=len(origins),
        frameon=False,
        handletextpad=0.1,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
