"""Questions with a few answers to choose from; each answer says what is right or wrong about it."""

from collections.abc import Callable, Sequence
from html import escape

import traitlets

from trainlean.pictures.cards import Card, prose_html
from trainlean.pictures.widget import Live, script


class Quiz(Live):
    """Questions under a title. `asked` holds them; `chosen` has for each question the options that were pressed, in their order.

    An asked question is {"ask": text, "options": [{"text", "says", "right"}]}; what stands between backticks is code.
    """

    _esm = script("quiz")
    name, handed_over = "quiz", ("asked", "chosen")
    asked = traitlets.Dict().tag(sync=True)
    chosen = traitlets.List().tag(sync=True)

    def __init__(
        self,
        title: str,
        questions: Sequence[dict],
        on_choice: Callable[[int, int, bool], None] = lambda *_: None,
    ):
        """`on_choice(question, option, first)` is called for each option that is pressed; `first` for the question's first one."""
        super().__init__(
            asked={"title": title, "questions": [*questions]}, chosen=[[] for _ in questions]
        )
        self.on_choice = on_choice
        self.observe(self._tell, "chosen")

    def _tell(self, change):
        for number, (before, now) in enumerate(zip(change["old"], change["new"], strict=True)):
            for place, option in enumerate(now[len(before) :], len(before)):
                self.on_choice(number, option, place == 0)

    def still(self) -> tuple[dict, dict]:
        """Questions and answers to choose from as HTML, without which is right."""
        parts = [f"<b>{escape(self.asked['title'])}</b>"]
        for question in self.asked["questions"]:
            options = "".join(
                f"<li>{prose_html(option['text'])}</li>" for option in question["options"]
            )
            parts.append(f'{prose_html(question["ask"])}<ol type="a">{options}</ol>')
        parts.append("Run the cell to answer.")
        html = "".join(f'<div style="margin:3px 0">{part}</div>' for part in parts)
        return {"text/html": Card(repr(self), html, leading=";line-height:1.45")._repr_html_()}, {}

    def __repr__(self) -> str:
        lines = [self.asked["title"]]
        for question in self.asked["questions"]:
            lines.append(question["ask"])
            lines += [
                f"  {letter}) {option['text']}"
                for letter, option in zip("abcdefgh", question["options"], strict=False)
            ]
        return "\n".join(lines)
