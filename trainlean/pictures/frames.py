"""A replay as data: what stands still as an SVG, and for each step the shapes that have changed since the one before.

The browser draws it (web/player.js) without knowing what it shows. Lengths are points (1/72 inch), y counts from the top.
"""

import io

import matplotlib as mpl
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from trainlean.pictures.style import course_style

# Matplotlib's vertical alignment, as how much of a line's height lies below the place: SVG counts from the baseline.
_BASELINE = {"center": 0.35, "center_baseline": 0.35, "top": 0.8, "bottom": -0.15, "baseline": 0.0}
_ANCHOR = {"left": "start", "center": "middle", "right": "end"}


def recorded_frames(replay) -> dict:
    """`width` and `height`, `fold` (right and lower end of what a narrow page may put above the rest, or None), `background` (an SVG), `words` for each step, and `frames`: {shape: attributes} of what each step changes.

    An attribute None is taken away; "kind" is rect, text or path. The replay is left at its last step.
    """
    picture, artists = replay.picture, sorted(replay.animated, key=lambda artist: artist.zorder)
    with course_style():
        picture.canvas.draw()  # sets the axes' limits and the places of texts
        frames: list[dict] = []
        before: list[dict] = [{} for _ in artists]
        for step in range(replay.steps):
            replay.show(step)
            now = [_shape(artist, picture) for artist in artists]
            frames.append(
                {
                    str(i): {
                        name: new.get(name)
                        for name in {**old, **new}
                        if new.get(name) != old.get(name)
                    }
                    for i, (old, new) in enumerate(zip(before, now, strict=True))
                    if old != new
                }
            )
            before = now
        background = _still(picture, artists)
    return {
        "width": round(72 * picture.get_figwidth(), 2),
        "height": round(72 * picture.get_figheight(), 2),
        "fold": replay.fold and [round(72 * inches, 2) for inches in replay.fold],
        "background": background,
        "frames": frames,
        "words": [replay.words(step) for step in range(replay.steps)],
    }


def _still(picture, artists) -> str:
    """The picture without what moves."""
    shown = [artist.get_visible() for artist in artists]
    for artist in artists:
        artist.set_visible(False)
    text = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trainlean"}):
        picture.savefig(
            text, format="svg", metadata={"Date": None, "Creator": None}, transparent=True
        )
    for artist, visible in zip(artists, shown, strict=True):
        artist.set_visible(visible)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _shape(artist, picture) -> dict:
    """What the browser needs to draw an artist: nothing where it is not seen."""
    if not artist.get_visible():
        return {}
    scale, high = 72 / picture.dpi, 72 * picture.get_figheight()

    def places(path):
        return [
            (round(x * scale, 1), round(high - y * scale, 1)) for x, y in path if x == x and y == y
        ]

    if isinstance(artist, Text):
        return _text(
            artist, *places([artist.get_transform().transform(artist.get_unitless_position())])[0]
        )
    if isinstance(artist, Line2D):
        return _line(artist, places(artist.get_transform().transform(_corners(artist))))
    assert isinstance(artist, Patch)
    corners = places(artist.get_transform().transform_path(artist.get_path()).vertices)
    xs, ys = zip(*corners)
    box = {
        "x": min(xs),
        "y": min(ys),
        "width": round(max(xs) - min(xs), 1),
        "height": round(max(ys) - min(ys), 1),
    }
    if not box["width"] or not box["height"]:
        return {}
    edged = artist.get_linewidth() and artist.get_edgecolor()[3]
    return {
        "kind": "rect",
        **box,
        "fill": to_hex(artist.get_facecolor()),
        "stroke": to_hex(artist.get_edgecolor()) if edged else None,
        "stroke-width": artist.get_linewidth() if edged else None,
        "opacity": artist.get_alpha(),
        "hatch": bool(artist.get_hatch()) or None,
    }


def _text(artist, x, y) -> dict:
    words, size = artist.get_text(), artist.get_size()
    if not words:
        return {}
    return {
        "kind": "text",
        "x": x,
        "y": round(y + _BASELINE[artist.get_va()] * size, 1),
        "text": words,
        "fill": to_hex(artist.get_color()),
        "font-size": size,
        "font-weight": "bold" if artist.get_weight() == "bold" else None,
        "text-anchor": _ANCHOR[artist.get_ha()],
    }


def _corners(line):
    points = [(x, y) for x, y in line.get_xydata() if x == x and y == y]
    if line.get_drawstyle() != "steps-post":
        return points or [(float("nan"), float("nan"))]
    corners = points[:1]
    for (_, y), (x, new) in zip(points, points[1:]):
        corners += [(x, y), (x, new)]
    return corners or [(float("nan"), float("nan"))]


def _line(line, points) -> dict:
    if not points:
        return {}
    colour, marker, size = to_hex(line.get_color()), line.get_marker(), line.get_markersize() / 2
    if marker in (None, "None", ""):
        path = "M" + "L".join(f"{x:g},{y:g}" for x, y in points)
        dashes = {":": "1 2", "--": "4 2"}.get(line.get_linestyle())
        shape = {"stroke": colour, "stroke-width": line.get_linewidth(), "fill": "none"}
        return {"kind": "path", "d": path, "stroke-dasharray": dashes, **shape}
    outline = {
        "o": f"m{-size:g},0a{size:g},{size:g} 0 1,0 {2 * size:g},0a{size:g},{size:g} 0 1,0 {-2 * size:g},0",
        "v": f"m{-size:g},{-size:g}h{2 * size:g}l{-size:g},{2 * size:g}z",
    }[marker]
    return {
        "kind": "path",
        "d": "".join(f"M{x:g},{y:g}{outline}" for x, y in points),
        "fill": to_hex(line.get_markerfacecolor()),
        "stroke": to_hex(line.get_markeredgecolor()),
        "stroke-width": line.get_markeredgewidth(),
    }
