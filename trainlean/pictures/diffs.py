"""Two functions side by side: which lines came, which went."""

import difflib
import inspect
from collections.abc import Callable
from html import escape

from trainlean.pictures.style import CHANGES, INK, PALE, PAPER


class Diff:
    """What changed between two texts, for a notebook: `lines` begin with "+", "-" or a blank."""

    def __init__(self, before: list[str], after: list[str]):
        self.lines = list(difflib.unified_diff(before, after, n=10_000, lineterm=""))
        self.lines = self.lines[3:]  # the first three name files

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<div style="background:{CHANGES[line[0]]}">{escape(line)}</div>'
            for line in self.lines
        )
        style = (
            f"font-family:monospace;white-space:pre;color:{INK};background:{PAPER};"
            f"border:1px solid {PALE};padding:6px"
        )
        return f'<div style="{style}">{rows}</div>'


def show_diff(before: Callable, after: Callable) -> None:
    """Display the lines of two functions: green ones came, red ones went. Their names count as equal.

    OSError where the source of a function cannot be read.
    """
    from IPython.display import display

    sources = [
        inspect.getsource(function).replace(function.__name__, "train").splitlines()
        for function in (before, after)
    ]
    display(Diff(*sources))
