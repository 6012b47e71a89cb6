"""Cards of a notebook: a coloured panel where HTML is shown, plain text everywhere else."""

import re
from collections.abc import Mapping, Sequence
from html import escape

from trainlean.pictures.colours import CARD_TEXT, CODE_PAPER, GUESSED, NEWS, PAPER

# Of the page where it has some (VS Code, JupyterLab, the course's pages), so that a card is dark on a dark page. VS Code's come
# first: there its Jupyter extension defines JupyterLab's as well, light in every theme.
_PAPER = f"var(--vscode-editor-background, var(--jp-layout-color1, {PAPER}))"
_TEXT = f"var(--vscode-foreground, var(--jp-content-font-color1, {CARD_TEXT}))"
_CODE = f"var(--vscode-textCodeBlock-background, var(--jp-layout-color2, {CODE_PAPER}))"


class Card:
    """`text` in plain, and `html` behind a bar of this colour."""

    def __init__(self, text: str, html: str | None = None, colour: str = NEWS, leading: str = ""):
        self.text, self.colour, self.leading = text, colour, leading
        self.html = escape(text) if html is None else html

    def __repr__(self):
        return self.text

    def _repr_html_(self):
        style = f"border-left:4px solid {self.colour};background:{_PAPER};color:{_TEXT};padding:8px 14px;max-width:720px{self.leading}"
        return f'<div style="{style}">{self.html}</div>'


def text_card(text: str, colour: str = NEWS) -> Card:
    """A card of one text, which is no HTML."""
    return Card(text, prose_html(text), colour, ";line-height:1.45")


def prose_html(text: str) -> str:
    """A text as HTML; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def folding_card(
    text: str, title: tuple[str, str], lines: Sequence[str], folded: Mapping[str, str], colour: str
) -> Card:
    """A card with a title (a coloured word and what follows it), lines, and what is folded by its summary; all but `text` in HTML.

    What is folded and empty is left out.
    """
    parts = [
        f'<b style="color:color-mix(in srgb, {colour} 50%, currentColor)">{title[0]}</b> · {title[1]}',
        *lines,
    ]
    parts += [
        f'<details><summary style="cursor:pointer">{summary}</summary>{html}</details>'
        for summary, html in folded.items()
        if html
    ]
    html = "".join(f'<div style="margin:3px 0">{part}</div>' for part in parts)
    return Card(text, html, colour, ";line-height:1.45")


def code_html(text: str) -> str:
    """Code or a traceback as HTML; nothing for blanks."""
    if not text.strip():
        return ""
    return f'<pre style="background:{_CODE};color:{_TEXT};padding:6px;overflow-x:auto">{escape(text)}</pre>'


def bars_card(text: str, bars: Mapping[str, float] | None = None, unit: str = "") -> Card:
    """A text, and below it a bar for each value; the one called "guess" is paler."""
    bars = bars or {}
    largest = max([abs(value) for value in bars.values()], default=0) or 1
    colours = {label: GUESSED if label == "guess" else NEWS for label in bars}
    rows = "".join(
        f'<div style="display:flex;align-items:center;gap:8px;margin:2px 0"><span style="width:72px">{label}</span>'
        f'<span style="background:{colours[label]};height:12px;width:{round(300 * abs(value) / largest)}px"></span>'
        f"<span>{value:,.4g} {unit}</span></div>"
        for label, value in bars.items()
    )
    return Card(text, f"<div>{text}</div>{rows}")
