"""Ratios of rows to a reference row: bars beside what was published."""

from collections.abc import Mapping, Sequence

from trainlean.pictures.style import INK, LINES, Picture, course_style

PANEL_COLOURS = (LINES[1], LINES[3])


def plot_ratios(
    rows: Sequence[str],
    panels: Mapping[str, Sequence[tuple[float | None, float | None]]],
    *,
    text: str,
    legend: str,
) -> Picture:
    """Two panels side by side: for every row a bar for its own ratio and a square for the published one; None draws nothing.

    `panels` maps a title, such as "memory / vanilla", to a pair of (own, published) for each row. `text` stands in place of
    the picture in plain text, `legend` under it. ValueError: a panel with more or fewer pairs than there are rows.
    """
    with course_style():
        picture = Picture(8.4, 1.05 + 0.3 * len(rows), text)
        height = picture.get_figheight()
        left, right = picture.subplots(1, 2, sharey=True)
        picture.subplots_adjust(
            left=0.19, right=0.98, bottom=0.5 / height, top=1 - 0.4 / height, wspace=0.08
        )
        for axes, (title, pairs), colour in zip(
            (left, right), panels.items(), PANEL_COLOURS, strict=True
        ):
            for place, (_, (own, published)) in enumerate(zip(rows, pairs, strict=True)):
                if own is not None:
                    axes.barh(place, own, height=0.62, color=colour)
                if published is not None:
                    axes.plot(published, place, "s", ms=6, mfc="white", mec=INK, clip_on=False)
            axes.axvline(1, color=INK, lw=0.8, ls=":")
            axes.set_title(title)
            axes.set_xlim(left=0)
        left.set_yticks(range(len(rows)), rows)
        left.set_ylim(len(rows) - 0.4, -0.6)
        for axes in (left, right):
            axes.tick_params(axis="y", length=0, labelcolor=INK)
        picture.text(0.19, 0.1 / height, legend, size=8.5)
    return picture
