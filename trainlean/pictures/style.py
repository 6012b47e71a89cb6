"""The course's look: one colour for each category of memory everywhere, and a figure that is a picture without a kernel."""

import base64
import io
from collections.abc import Sequence
from contextlib import contextmanager

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from trainlean.arguments import shown
from trainlean.costs.runs import CATEGORIES, ORIGINS, MiB, Run

# Pictures take their colours from here; a card, which needs no matplotlib, takes them from there.
from trainlean.pictures.colours import (  # noqa: F401
    ALARM,
    AXIS,
    BAND,
    BEYOND_BUDGET,
    CACHED_GRAPH,
    CHANGES,
    COLOURS,
    COMMENT,
    CURRENT_LINE,
    CURRENT_LINE_EDGE,
    DOING,
    EMPTY,
    FAINT,
    HATCH,
    INK,
    LINES,
    NEW_GRAPH,
    NOT_STEPPED,
    OTHER_PHASE,
    PALE,
    PAPER,
    PHASES,
    PLAIN,
    RANKS,
    SOFT,
    STEPPED,
    UNDIVIDED,
)
from trainlean.workspace import CourseError

MARKERS = dict(zip(ORIGINS, "oDs", strict=True))

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": AXIS,
    "axes.labelcolor": SOFT,
    "axes.labelpad": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlepad": 12,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "figure.facecolor": "white",
    "path.simplify": True,
}


def rank_colour(rank: int) -> str:
    """The colour of a rank; from the fifth on they come again."""
    return RANKS[rank % len(RANKS)]


@contextmanager
def course_style():
    """The course's style over matplotlib's defaults, whatever the notebook has set, and only for this block."""
    with mpl.rc_context(_DEFAULTS | STYLE):
        yield


_LOOKS = set("font text axes xtick ytick figure legend lines patch path hatch mathtext".split())
_DEFAULTS = {
    key: value for key, value in mpl.rcParamsDefault.items() if key.split(".")[0] in _LOOKS
}


class Picture(Figure):
    """A figure that pyplot does not know, so that a notebook shows it once, with a fixed text beside the picture.

    `width` and `height` are inches, `dpi` pixels to an inch.
    """

    canvas: FigureCanvasAgg

    def __init__(self, width: float, height: float, words: str, dpi: int = 144):
        super().__init__(figsize=(width, height), dpi=dpi)
        FigureCanvasAgg(self)
        self.words = words
        self._background: tuple | None = None

    def __repr__(self) -> str:
        return self.words

    __str__ = __repr__

    def png(self, animated: Sequence = (), background=None) -> bytes:
        """The picture as a PNG file.

        With `animated` artists, everything else is drawn once and kept until `background` compares unequal to what it was:
        a redraw then costs only the artists that move.
        """
        for artist in animated:
            artist.set_animated(True)
        with course_style():
            if not animated or self._background is None or self._background[0] != background:
                self.canvas.draw()
                self._background = (background, self.canvas.copy_from_bbox(self.bbox))
            if animated:
                self.canvas.restore_region(self._background[1])
                for artist in sorted(animated, key=lambda artist: artist.zorder):
                    artist.draw(self.canvas.get_renderer())
            pixels = Image.frombuffer(
                "RGBA", self.canvas.get_width_height(), self.canvas.buffer_rgba()
            )
        buffer = io.BytesIO()
        # A palette makes the file a third as large and is written faster; these pictures have few colours.
        pixels = pixels.convert("RGB").quantize(
            128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
        )
        palette = pixels.getpalette()
        whites = (i for i in range(0, len(palette), 3) if min(palette[i : i + 3]) >= 250)
        for i in whites:  # the palette's white is an average with the edges of letters
            palette[i : i + 3] = (255, 255, 255)
        pixels.putpalette(palette)
        pixels.save(buffer, "png")
        return buffer.getvalue()

    def _ipython_display_(self):
        # Not left to IPython's formatters: pyplot registers its own for every Figure, with another size and text.
        from IPython.display import display

        bundle = {"image/png": base64.b64encode(self.png()).decode(), "text/plain": self.words}
        display(
            bundle, metadata={"image/png": {"width": round(96 * self.get_figwidth())}}, raw=True
        )


def point_label(run: Run) -> str:
    """The short label of a run, that of its setup; its name where the settings name no micro-batch."""
    return run.setup.label if run.setup else run.name


def listed(runs, function: str) -> list[Run]:
    """The runs that were given to a function, as a list; one alone is a list of one. CourseError: no runs."""
    if isinstance(runs, Run):
        return [runs]
    try:
        runs = list(runs)
    except TypeError:
        raise CourseError(
            f"{function} takes a list of runs, such as {function}(load_runs()), not {shown(runs)}."
        ) from None
    if wrong := [run for run in runs if not isinstance(run, Run)]:
        raise CourseError(
            f"{function} takes a list of runs, as measure() returns them; {wrong[0]!r} in it is none."
        )
    return runs


def count_text(runs: Sequence[Run]) -> str:
    """How many runs of which origin: '9 runs (6 measured, 3 published)'."""
    counts = [(sum(run.origin == origin for run in runs), origin) for origin in ORIGINS]
    parts = ", ".join(f"{count} {origin}" for count, origin in counts if count)
    return f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}" + (f" ({parts})" if parts else "")


def parts(run: Run) -> list[tuple[str, int]]:
    """The memory of a run as (category, bytes): CATEGORIES in their order, then other names; nothing empty."""
    order = [*CATEGORIES, *(name for name in run.peak if name not in CATEGORIES)]
    return [(name, run.peak[name]) for name in order if run.peak.get(name)]


def three(number: float) -> str:
    """A number in three digits, with thousands separators: `1,230`, `0.0123`."""
    return f"{float(f'{number:.3g}'):,g}"


def mib(size: float) -> str:
    """Bytes as MiB, the unit of the axes, with thousands separators; one decimal below 100 where there is one."""
    return (
        f"{size / MiB:,.0f}" if size >= 99.95 * MiB else f"{size / MiB:.1f}".removesuffix(".0")
    ) + " MiB"
