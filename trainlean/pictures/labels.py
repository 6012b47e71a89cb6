"""Where labels go, so that none covers another."""

from collections.abc import Sequence


def place_labels(
    points, labels, box, size=9.0, obstacles=(), radii=None
) -> list[tuple[float, float] | None]:
    """Where labels can stand beside their points without overlapping: (left, bottom), or None where there is no room.

    `points` are (x, y), `box` and `obstacles` are (left, bottom, right, top), all in the same unit as the font `size`;
    `radii` are those of the points' marks, half the font size without them. Labels are placed in the order given, so
    the important ones come first. ValueError: more or fewer labels or radii than points.
    """
    radii = radii or [size / 2] * len(points)
    marks = [(x - r, y - r, x + r, y + r) for (x, y), r in zip(points, radii, strict=True)]
    taken = list(obstacles)
    places: list[tuple[float, float] | None] = []
    for i, ((x, y), label) in enumerate(zip(points, labels, strict=True)):
        wide, high = 0.62 * size * len(label), 1.1 * size
        gap = radii[i] + 0.25 * size
        others = marks[:i] + marks[i + 1 :]
        for left, bottom in (
            (x + gap, y - high / 2), (x - wide / 2, y + gap),
            (x - gap - wide, y - high / 2), (x - wide / 2, y - gap - high),
            (x + gap * 0.7, y + gap * 0.7), (x - gap * 0.7 - wide, y + gap * 0.7),
            (x + gap * 0.7, y - gap * 0.7 - high), (x - gap * 0.7 - wide, y - gap * 0.7 - high),
        ):  # fmt: skip
            area = (left - 2, bottom, left + wide + 2, bottom + high)
            inside = (
                area[0] >= box[0] and area[1] >= box[1] and area[2] <= box[2] and area[3] <= box[3]
            )
            if label and inside and not any(overlap(area, other) for other in taken + others):
                taken.append(area)
                places.append((left, bottom))
                break
        else:
            places.append(None)
    return places


def label_boxes(points, labels, places, size=8.5):
    """The areas (left, bottom, right, top) that points (x, y) and their placed labels cover, all in the unit of the font `size`."""
    marks = [(x - size / 2, y - size / 2, x + size / 2, y + size / 2) for x, y in points]
    texts = [
        (p[0], p[1], p[0] + 0.62 * size * len(label), p[1] + 1.1 * size)
        for p, label in zip(places, labels)
        if p
    ]
    return marks + texts


def overlap(a, b) -> bool:
    """Whether two areas (left, bottom, right, top) have more than an edge in common."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def spread(wanted: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """The heights nearest to `wanted` (ascending) that are `distance` apart and lie between `low` and `high`."""
    heights = list(wanted)
    for i, height in enumerate(heights):
        heights[i] = max(height, low if i == 0 else heights[i - 1] + distance)
    for i in reversed(range(len(heights))):
        heights[i] = min(heights[i], high if i == len(heights) - 1 else heights[i + 1] - distance)
    return heights
