"""Lines of code to put in order, some of them wrong."""

from collections.abc import Callable
from html import escape

import traitlets

from trainlean.pictures.cards import Card
from trainlean.pictures.widget import Live, script


class Lines(Live):
    """A puzzle of lines. `placed` has the learner's lines as [number, indentation in steps], `tries` how often they were checked.

    `puzzle` holds {"title", "name", "lines": [text], "head": text, "accepted": [placed], "known": [{"placed", "name", "why", "hint"}],
    "wrong": {number: {"name", "why"}}}; what stands between backticks in a sentence is code.
    """

    _esm = script("lines")
    name, handed_over = "lines", ("puzzle", "placed", "tries")
    puzzle = traitlets.Dict().tag(sync=True)
    placed = traitlets.List().tag(sync=True)
    tries = traitlets.Int(0).tag(sync=True)
    result = traitlets.Dict().tag(sync=True)  # of the last check: {"right", "mistake"}

    def __init__(self, puzzle: dict, on_check: Callable[[bool, str], None] = lambda *_: None):
        """`on_check(right, mistake)` is called for each arrangement that is checked; `mistake` is a known one's name or empty."""
        super().__init__(puzzle=puzzle)
        self.observe(
            lambda change: on_check(change["new"]["right"], change["new"]["mistake"]), "result"
        )

    def still(self) -> tuple[dict, dict]:
        """The title alone: the lines are the exercise's solution, and stand where they are asked for."""
        html = f"{escape(self.puzzle['title'])} <i>Run the cell to play.</i>"
        return {"text/html": Card(repr(self), html)._repr_html_()}, {}

    def __repr__(self) -> str:
        return self.puzzle["title"]
