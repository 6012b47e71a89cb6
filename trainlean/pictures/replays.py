"""Recordings as pictures that a player steps through: a training loop line by line, a network's activations event by event.

A replay has `picture`, `steps` (how many), `show(step)` (sets the picture to a step, from 0), `animated` (the artists that
`show` changes), `telling_step` (the one that says most on a page without buttons) and `words(step)` (a fixed text).
"""

from typing import Any

from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from trainlean.costs.runs import format_bytes
from trainlean.pictures.steps import batch_colours
from trainlean.pictures.style import (
    AXIS,
    COLOURS,
    COMMENT,
    CURRENT_LINE,
    CURRENT_LINE_EDGE,
    EMPTY,
    FAINT,
    INK,
    PALE,
    SOFT,
    Picture,
    course_style,
)
from trainlean.recordings.lives import Lives
from trainlean.recordings.loops import Trace, contributions, updates

# ---------------------------------------------------------------- a training loop


class LoopReplay:
    """One step of a trace: source with the current line, micro-batches, the gradient's parts and the weight's path."""

    def __init__(self, trace: Trace):
        self.trace, self.frames = trace, trace.frames
        self.parts, self.updates = contributions(trace.frames), updates(trace.frames)
        lines = trace.source.splitlines() or [""]
        code_width = min(6.4, max(3.4, 0.0765 * max(len(line) for line in lines) + 0.95))
        width, height = code_width + 4.9, max(4.7, 0.205 * len(lines) + 1.0)
        with course_style():
            self.picture = Picture(width, height, "")
            self.title = self.picture.text(
                0.2 / width, 1 - 0.28 / height, "", weight="bold", size=11, va="center"
            )
            self._draw_source(lines, code_width, width, height)
            left = (code_width + 0.75) / width
            wide = 1 - 0.35 / width - left
            self._draw_batches(
                self.picture.add_axes((left, 1 - 0.95 / height, wide, 0.42 / height))
            )
            top = 1 - 0.95 / height
            self._draw_gradient(
                self.picture.add_axes((left, top - 1.05 / height, wide, 0.4 / height))
            )
            self._draw_weight(
                self.picture.add_axes(
                    (left, 0.5 / height, wide, top - 1.75 / height - 0.5 / height)
                )
            )
        self.show(0)

    def _draw_source(self, lines, code_width, width, height):
        axes = self.picture.add_axes((0, 0.2 / height, code_width / width, 1 - 0.72 / height))
        axes.axis("off")
        high = axes.get_position().height * height
        rows = max(len(lines), high / 0.25)
        # Where the code ends, in inches from the left and from the top.
        self.fold: tuple | None = (code_width + 0.1, 0.65 + len(lines) * high / rows)
        axes.set(xlim=(0, code_width), ylim=(rows, 0))
        self.highlight: Any = axes.add_patch(
            Rectangle((0.12, 0), code_width - 0.2, 1, facecolor=CURRENT_LINE, alpha=0.25)
        )
        self.edge: Any = axes.add_patch(Rectangle((0.12, 0), 0.05, 1, facecolor=CURRENT_LINE_EDGE))
        longest = max(len(line) for line in lines)
        size = max(6.5, min(9.0, (code_width - 0.95) * 72 / (0.605 * max(1, longest))))
        mono = {"family": "DejaVu Sans Mono", "size": size, "va": "center"}
        for i, line in enumerate(lines):
            code, comment = _split_comment(line)
            axes.text(
                0.5,
                i + 0.5,
                str(i + 1),
                ha="right",
                color=FAINT,
                **{**mono, "size": size - 0.75},
            )
            axes.text(0.62, i + 0.5, code, **mono)
            if comment:
                axes.text(0.62, i + 0.5, " " * len(code) + comment, color=COMMENT, **mono)

    def _draw_batches(self, axes):
        axes.axis("off")
        seen = dict.fromkeys(
            v for v in (frame.values.get("micro-batch") for frame in self.frames) if v is not None
        )
        self.batches = list(seen)
        most = max([len(window) for window in self.parts], default=1) or 1
        shades = batch_colours(most)
        place = {batch: i for window in self.parts for i, (batch, _) in enumerate(window)}
        self.shade = {
            batch: shades[place.get(batch, i % most)] for i, batch in enumerate(self.batches)
        }
        self.dark = {
            batch: place.get(batch, i % most) >= most / 2 for i, batch in enumerate(self.batches)
        }
        count = max(len(self.batches), 1)
        axes.set(xlim=(0, max(count, 8)), ylim=(0, 1))
        self.boxes, self.box_texts = [], []
        for i, batch in enumerate(self.batches):
            self.boxes.append(axes.add_patch(Rectangle((i + 0.06, 0.1), 0.88, 0.8, lw=0)))
            self.box_texts.append(
                axes.text(
                    i + 0.5,
                    0.48,
                    f"{batch:g}" if count <= 24 else "",
                    ha="center",
                    va="center",
                    size=9,
                )
            )
        self.batch_title = axes.text(0, 1.12, "", va="bottom", size=9.5, weight="bold")

    def _draw_gradient(self, axes):
        sums = [[amount for _, amount in window] for window in self.parts]
        high = max([sum(a for a in s if a > 0) for s in sums], default=0)
        low = min([sum(a for a in s if a < 0) for s in sums], default=0)
        span = (high - low) or 1
        axes.set(
            xlim=(low - (0.04 * span if low else 0), high + (0.04 * span if high else 0))
            if high > low
            else (0, 1),
            ylim=(0, 1),
        )
        axes.spines["left"].set_visible(False)
        axes.set_yticks([])
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.axvline(0, color=AXIS, lw=1)
        most = max([len(s) for s in sums], default=0)
        self.bars = [
            axes.add_patch(Rectangle((0, 0.12), 0, 0.76, edgecolor="white", lw=1))
            for _ in range(most)
        ]
        self.bar_texts = [
            axes.text(0, 0.5, "", ha="center", va="center", size=8.5) for _ in range(most)
        ]
        (self.sum_mark,) = axes.plot(
            [], [], marker="v", ms=7, color=INK, ls="", clip_on=False, zorder=5
        )
        self.gradient_title = axes.text(
            0, 1.22, "", transform=axes.transAxes, va="bottom", size=9.5, weight="bold"
        )
        self.gradient_axes = axes

    def _draw_weight(self, axes):
        weights = [frame.values.get("weight") for frame in self.frames]
        known = [w for w in weights if w is not None] or [0.0, 1.0]
        pad = 0.14 * (max(known) - min(known)) or abs(known[0]) * 0.1 or 1
        axes.set(xlim=(0.5, max(len(weights), 2) + 0.5), ylim=(min(known) - pad, max(known) + pad))
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axes.ticklabel_format(useOffset=False)
        (self.path,) = axes.plot([], [], color=COLOURS["weights"], lw=2, drawstyle="steps-post")
        (self.moves,) = axes.plot(
            [], [], ls="", marker="o", ms=5, mfc="white", mec=COLOURS["weights"], mew=1.6
        )
        (self.now,) = axes.plot(
            [], [], ls="", marker="o", ms=8, color=COLOURS["weights"], clip_on=False, zorder=5
        )
        self.weight_title = axes.text(
            0, 1.06, "", transform=axes.transAxes, va="bottom", size=9.5, weight="bold"
        )
        self.weights = weights

    @property
    def steps(self) -> int:
        """How many steps there are: executed lines."""
        return len(self.frames)

    @property
    def telling_step(self) -> int:
        """The last step before the first update."""
        return max(0, self.updates[0] - 1) if self.updates else self.steps - 1

    def words(self, step: int) -> str:
        """A fixed text for the picture at a step, counted from 0."""
        line = self.frames[step].line
        counts = f"{len(self.batches)} micro-batches, {len(self.updates)} updates"
        return f"{self.steps} steps, {counts}; at step {step + 1}, line {line}: {self.trace.source.splitlines()[line - 1].strip()}"

    @property
    def animated(self) -> list:
        """The artists that `show` changes."""
        titles = [self.title, self.batch_title, self.gradient_title, self.weight_title]
        marks = [self.sum_mark, self.path, self.moves, self.now]
        return [
            self.highlight,
            self.edge,
            *titles,
            *marks,
            *self.boxes,
            *self.box_texts,
            *self.bars,
            *self.bar_texts,
        ]

    def show(self, step: int):
        """Set the picture to one step, counted from 0."""
        frame, count = self.frames[step], len(self.frames)
        values, window = frame.values, self.parts[step]
        self.title.set_text(f"step {step + 1} of {count}, line {frame.line}")
        self.highlight.set_y(frame.line - 1)
        self.edge.set_y(frame.line - 1)

        now = values.get("micro-batch")
        reached = {f.values.get("micro-batch") for f in self.frames[: step + 1]}
        for batch, box, text in zip(self.batches, self.boxes, self.box_texts):
            box.set(
                facecolor=self.shade[batch] if batch in reached else EMPTY,
                edgecolor=INK,
                lw=1.8 if batch == now else 0,
            )
            text.set(
                color=("white" if self.dark[batch] else INK) if batch in reached else SOFT,
                weight="bold" if batch == now else "normal",
            )
        self.batch_title.set_text("micro-batch" + ("" if now is None else f" {now:g}"))

        # Positive parts grow to the right of zero, negative ones to the left.
        ends = {True: 0.0, False: 0.0}
        low, high = self.gradient_axes.get_xlim()
        for i, (bar, text) in enumerate(zip(self.bars, self.bar_texts)):
            of, amount = window[i] if i < len(window) else (None, 0.0)
            start = ends[amount > 0]
            ends[amount > 0] += amount
            bar.set(
                visible=amount != 0,
                x=min(start, start + amount),
                width=abs(amount),
                facecolor=SOFT if of is None else self.shade.get(of, SOFT),
            )
            wide = abs(amount) > 0.05 * (high - low) and of is not None
            text.set(
                x=start + amount / 2,
                text=f"{of:g}" if wide else "",
                color="white" if self.dark.get(batch) else INK,
            )
        gradient, weight = values.get("gradient"), values.get("weight")
        self.sum_mark.set_data([gradient] if gradient else [], [1.0] if gradient else [])
        self.gradient_title.set_text(
            "gradient " + ("none" if gradient is None else _number(gradient))
        )

        self.path.set_data(
            range(1, step + 2), [float("nan") if w is None else w for w in self.weights[: step + 1]]
        )
        moved = [i for i in self.updates if i <= step]
        self.moves.set_data([i + 1 for i in moved], [self.weights[i] for i in moved])
        self.now.set_data(
            [step + 1] if weight is not None else [], [weight] if weight is not None else []
        )
        extra = [
            f"{name} {_number(value)}"
            for name, value in values.items()
            if name not in ("weight", "gradient", "micro-batch") and value is not None
        ]
        words = (
            "weight"
            + ("" if weight is None else f" {weight:.5f}".replace("-", "−"))
            + f", {len(moved)} of {len(self.updates)} updates"
        )
        self.weight_title.set_text(words + "".join(f"   {item}" for item in extra))


def _number(value: float) -> str:
    return f"{value:.5g}".replace("-", "−")


def _split_comment(line: str) -> tuple[str, str]:
    """A source line and its comment; a # inside quotes is no comment."""
    quote = ""
    for i, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "#":
            return line[:i], line[i:]
    return line, ""


# ---------------------------------------------------------------- a network's activations


class LivesReplay:
    """One event of recorded lives: which outputs are alive, their lives until now, and how many bytes that makes."""

    def __init__(self, lives: Lives, name: str = ""):
        self.lives, self.steps = lives, len(lives.events)
        self.name = f"{name}: " if name else ""
        self.bytes = lives.live_bytes
        self.turn = lives.turn
        self.fold = None
        with course_style():
            self.picture = Picture(8.4, 2.3 + 0.22 * lives.layers, "")
            self.title = self.picture.text(
                0.012,
                1 - 0.24 / self.picture.get_figheight(),
                "",
                weight="bold",
                size=11,
                va="center",
            )
            height = self.picture.get_figheight()
            rows = 0.22 * lives.layers + 0.1
            bottom = 1.55 / height
            self._draw_network(self.picture.add_axes((0.07, bottom, 0.1, rows / height)))
            self._draw_lives(self.picture.add_axes((0.2, bottom, 0.78, rows / height)))
            self._draw_bytes(self.picture.add_axes((0.2, 0.5 / height, 0.78, 0.85 / height)))
        self.show(self.steps - 1)

    def _rows(self, axes):
        axes.set(ylim=(0.4, self.lives.layers + 0.6), yticks=[])
        axes.spines[["left", "bottom"]].set_visible(False)

    def _draw_network(self, axes):
        """A box for each layer's output: empty, filled while it is alive, hatched when it was recomputed."""
        self._rows(axes)
        axes.set(
            xlim=(0, 1), xticks=[], yticks=range(1, self.lives.layers + 1), ylabel="output of layer"
        )
        axes.tick_params(length=0)
        self.boxes = [
            axes.add_patch(Rectangle((0.12, layer + 0.66), 0.76, 0.68, lw=1))
            for layer in range(self.lives.layers)
        ]
        self.box_texts = [
            axes.text(0.5, layer + 0.98, "", ha="center", va="center", size=8)
            for layer in range(self.lives.layers)
        ]

    def _draw_lives(self, axes):
        self._rows(axes)
        axes.set(xlim=(0, self.steps), xticks=[])
        self.bars = []
        for born, died, layer, again in self.lives.spans:
            style: dict[str, Any] = (
                {
                    "facecolor": "white",
                    "edgecolor": COLOURS["activations"],
                    "hatch": "////",
                    "lw": 0.8,
                }
                if again
                else {"facecolor": COLOURS["activations"], "lw": 0}
            )
            self.bars.append(
                (born, died, axes.add_patch(Rectangle((born, layer + 0.66), 0, 0.68, **style)))
            )
        self._draw_turn(axes)
        top = self.lives.layers + 0.62
        axes.text(self.turn - 0.4, top, "forward", ha="right", va="bottom", size=8.5, color=SOFT)
        axes.text(self.turn + 0.6, top, "backward", va="bottom", size=8.5, color=SOFT)
        self.cursor = axes.axvline(0, color=INK, lw=1)

    def _draw_bytes(self, axes):
        axes.set(
            xlim=(0, self.steps), ylim=(0, 1.2 * max(self.bytes)), xlabel="events in their order"
        )
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        most = max(self.bytes)
        axes.set_yticks(
            [0, most / 2, most], labels=["0", format_bytes(most / 2), format_bytes(most)]
        )
        axes.step(range(self.steps + 1), [0, *self.bytes], where="pre", color=PALE, lw=1)
        self._draw_turn(axes)
        self.filled = [
            axes.add_patch(Rectangle((event, 0), 1, size, facecolor=COLOURS["activations"], lw=0))
            for event, size in enumerate(self.bytes)
        ]
        self.most = axes.axhline(0, color=INK, lw=0.8, ls=":")
        self.most_text = axes.text(0, 0, "", size=8.5, weight="bold", va="bottom")

    def _draw_turn(self, axes):
        axes.axvline(self.turn + 0.5, color=SOFT, lw=0.8, ls="--")

    @property
    def animated(self) -> list:
        """The artists that `show` changes."""
        bars = [bar for _, _, bar in self.bars]
        return [
            self.title,
            self.cursor,
            self.most,
            self.most_text,
            *bars,
            *self.boxes,
            *self.box_texts,
            *self.filled,
        ]

    @property
    def telling_step(self) -> int:
        """The turn; where outputs are recomputed, the first moment with the most of those."""

        def recomputed(event):
            return sum(again and born <= event < died for born, died, _, again in self.lives.spans)

        return max(range(self.turn, self.steps), key=recomputed)

    def show(self, step: int):
        """Set the picture to one event, counted from 0."""
        self.title.set_text(f"{self.name}event {step + 1} of {self.steps}, {self.lives.say(step)}")
        self.cursor.set_xdata([step + 1, step + 1])
        for born, died, bar in self.bars:
            bar.set(width=max(0, min(died, step + 1) - born), visible=born <= step)
        alive = {
            layer: recomputed
            for born, died, layer, recomputed in self.lives.spans
            if born <= step < died
        }
        now = self.lives.events[step]
        for layer, (box, text) in enumerate(zip(self.boxes, self.box_texts, strict=True)):
            again = alive.get(layer)
            box.set(
                facecolor={None: "white", False: COLOURS["activations"], True: "white"}[again],
                hatch="////" if again else None,
                edgecolor=COLOURS["activations"] if again else INK if now.layer == layer else PALE,
                lw=2 if now.layer == layer else 1,
            )
            text.set_text("gone" if again is None and now.layer == layer else "")
        for event, bar in enumerate(self.filled):
            bar.set_visible(event <= step)
        most = max(self.bytes[: step + 1])
        self.most.set_ydata([most, most])
        self.most_text.set(
            text=f" now {format_bytes(self.bytes[step])}, most {format_bytes(most)}", y=most
        )

    def words(self, step: int) -> str:
        """A fixed text for the picture at a step, counted from 0."""
        again = sum(again for *_, again in self.lives.spans)
        most = format_bytes(max(self.bytes))
        return f"{self.steps} events, {self.lives.layers} layers, {again} outputs recomputed, most {most}; at event {step + 1}, {self.lives.say(step)}"
