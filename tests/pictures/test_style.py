"""Colours: each comes from `colours`, and those of ranks are told apart from the categories', with a colour blindness as well."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from trainlean.pictures import colours, style

# Machado, Oliveira and Fernandes 2009, severity 1: what the eye without one kind of cones makes of linear RGB.
EYES = {
    "all three": np.eye(3),
    "no green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "no red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "no blue": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def seen(colour, eye):
    """CIELAB of a colour as an eye sees it."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(EYES[eye] @ linear, 0, 1) / (0.9505, 1, 1.089)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eye", EYES)
def test_ranks_are_told_apart_and_are_no_category(eye):
    # 2.3 is a difference that is just noticed.
    for one, other in combinations(style.RANKS, 2):
        assert np.linalg.norm(seen(one, eye) - seen(other, eye)) > 20, (one, other)
    for rank in style.RANKS:
        for name, colour in style.COLOURS.items():
            assert np.linalg.norm(seen(rank, eye) - seen(colour, eye)) > 12, (rank, name)


def test_every_colour_of_a_picture_or_card_comes_from_one_file():
    folder = Path(style.__file__).parent
    written = {
        path.name: re.findall(r"#[0-9A-Fa-f]{3,6}\b", path.read_text(encoding="utf-8"))
        for path in folder.glob("*.py")
    }
    assert len(written.pop("colours.py")) > 20
    assert not {name: colours for name, colours in written.items() if colours}


def test_the_widgets_style_has_the_colours_of_the_pictures():
    """In the light theme; the dark one has its own."""
    css = (Path(style.__file__).parent / "web" / "widgets.css").read_text(encoding="utf-8")
    light = dict(reversed(re.findall(r"--tl-(\w+): (#\w{6});", css)))
    assert light["alarm"] == colours.ALARM.lower()
    assert light["sending"] == colours.DOING["averaging"].lower()
    assert light["computing"] == colours.DOING["computing"].lower()


def test_the_fifth_rank_has_the_first_ones_colour():
    assert [style.rank_colour(rank) for rank in (0, 3, 4)] == [
        style.RANKS[0],
        style.RANKS[3],
        style.RANKS[0],
    ]
