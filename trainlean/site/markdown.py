"""Markdown as the HTML of the site: formulas as MathML, headings with the places that links lead to."""

import re
from functools import cache
from html import escape, unescape

from nbconvert.filters.markdown_mistune import MarkdownWithMath

from trainlean.pages import Formulas

TAGS = re.compile(r"<[^>]*>")


class Headings(Formulas):
    """Writes markdown as HTML, and keeps the headings: (level, id, words)."""

    def __init__(self, like_github: bool = False):
        super().__init__(escape=False)
        self.like_github = like_github
        self.headings: list[tuple[int, str, str]] = []
        self.writer = MarkdownWithMath(renderer=self)  # to make one takes longer than a cell

    def heading(self, text, level, **attrs):
        """A heading with an id, as JupyterLab gives it to a lesson's or GitHub to a document's."""
        words = unescape(TAGS.sub("", text)).strip()
        name = words.replace(" ", "-")
        if self.like_github:
            name = re.sub(r"[^\w-]", "", name.lower())
        known = {id_ for _, id_, _ in self.headings}
        id_ = next(n for n in [name, *(f"{name}-{i}" for i in range(1, 999))] if n not in known)
        self.headings.append((level, id_, words))
        return f'<h{level} id="{escape(id_, quote=True)}">{text}</h{level}>\n'


@cache
def _plain() -> MarkdownWithMath:
    return MarkdownWithMath(renderer=Formulas(escape=False, exclude_anchor_links=True))


def html_of(text: str, renderer: Headings | None = None) -> str:
    """A markdown text as HTML; with a renderer its headings have ids, which the renderer keeps."""
    return (renderer.writer if renderer else _plain()).render(text)


def line_of(text: str) -> str:
    """A markdown sentence as HTML that can stand in a line."""
    html = html_of(text).strip()
    return re.sub(r"^<p>|</p>$", "", html)
