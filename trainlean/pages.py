"""Notebooks as pages: explorer and player play on them without a kernel and without a network.

What a widget needs lies in the metadata of its output (`trainlean.pictures.widget`); scripts and style are put into the page.
"""

import json
import shlex
from html import escape
from pathlib import Path

from jinja2 import pass_context
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors import Preprocessor

from trainlean.notebooks.notebook import read_notebook
from trainlean.notebooks.saving import STATE, VIEW
from trainlean.pictures.widget import HANDED_OVER, WEB, script, style
from trainlean.workspace import CourseError, write_whole

LESSONS = Path(__file__).parent / "jupyter" / "custom" / "custom.css"  # JupyterLab's, too


class Formulas(IPythonRenderer):
    """Writes markdown as HTML with formulas as MathML, which a browser shows without a script that it would have to fetch."""

    def inline_math(self, body):
        """A formula within a line."""
        return formula(body)

    def block_math(self, body):
        """A formula on a line of its own."""
        return formula(body, "block")

    def latex_environment(self, name, body):
        """A formula between `\\begin` and `\\end`."""
        return formula(f"\\begin{{{name}}}{body}\\end{{{name}}}", "block")


def formula(latex: str, display: str = "inline") -> str:
    """LaTeX as MathML, and what cannot be read as its own text."""
    from latex2mathml.converter import convert

    try:
        return convert(latex, display=display)
    except Exception:  # whatever a reader of LaTeX may raise at what is none
        return f"<code>{escape(latex)}</code>"


class LiveWidgets(Preprocessor):
    """Puts in place of each saved widget what the page's script starts; widgets that need a kernel stay their picture or text."""

    def preprocess(self, nb, resources):
        """The notebook with its widgets as HTML, scripts and style beside the first of them, unless the page has them elsewhere.

        `resources["trainlean"]["widgets"]` names them; `["scripts_apart"]` asks for the places alone.
        """
        places: dict[str, list] = {}
        # What a widget was when the notebook was saved, rather than when its cell ran.
        states = nb.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
        for output in (output for cell in nb.cells for output in cell.get("outputs", [])):
            data = output.get("data", {})
            handed = output.get("metadata", {}).get(HANDED_OVER)
            if handed:
                live = states.get(data.get(VIEW, {}).get("model_id"), {}).get("state", {})
                state = handed["state"] | {
                    name: live[name] for name in handed["state"] if name in live
                }
                output["data"] = {"text/html": _place(handed["widget"], state, data)}
                places.setdefault(handed["widget"], []).append(output["data"])
            elif len(data) > 1:
                data.pop(VIEW, None)
        about = resources.setdefault("trainlean", {})
        about["widgets"] = [*places]
        if places and not about.get("scripts_apart"):
            # Scripts that are modules run when the page is whole, so that any place will do.
            [first, *_] = next(iter(places.values()))
            first["text/html"] += _scripts(places)
        nb.metadata.pop("widgets", None)
        return nb, resources


class LessonPage(HTMLExporter):
    """Writes a notebook as one HTML file; nbconvert knows it as `trainlean`."""

    export_from_notebook = "Train Lean page"

    def __init__(self, **kwargs):
        super().__init__(
            raw_template=(WEB / "page.html.j2").read_text(encoding="utf-8"),
            extra_template_paths=[str(WEB)],
            preprocessors=[LiveWidgets],
            **kwargs,
        )

    @pass_context
    def markdown2html(self, context, source):
        """Markdown as HTML, by the course's own writer of formulas."""
        path = context.get("resources", {}).get("metadata", {}).get("path", "")
        writer = Formulas(
            escape=False,
            attachments=context.get("cell", {}).get("attachments", {}),
            embed_images=self.embed_images,
            path=path,
            anchor_link_text=self.anchor_link_text,
            exclude_anchor_links=self.exclude_anchor_links,
        )
        return MarkdownWithMath(renderer=writer).render(source)


def write_page(notebook: Path, page: Path | None = None) -> Path:
    """Write a notebook as a page, beside it unless `page` says where; returns where.

    CourseError: it cannot be read or written, or a notebook would be lost.
    """
    lesson = read_notebook(notebook)
    page = page or notebook.with_suffix(".html")
    endings = {page.suffix.lower(), page.resolve().suffix.lower()}
    if ".ipynb" in endings or page.exists() and page.samefile(notebook):
        raise CourseError(
            f"{page} is a notebook, which the page would replace; give --output a name that ends in .html, such as {shlex.quote(notebook.stem + '.html')}."
        )
    needs = {"css": LESSONS.read_text(encoding="utf-8")}
    html, _ = LessonPage().from_notebook_node(
        lesson, {"metadata": {"name": notebook.stem}, "trainlean": needs}
    )
    try:
        write_whole(page, html)
    except OSError as error:
        raise CourseError(f"{page} cannot be written: {error.strerror}.") from None
    return page


def _in_script(value) -> str:
    """JSON that can stand in a script element."""
    return json.dumps(value).replace("<", "\\u003c")


def _place(name, state, data) -> str:
    """Where a widget will be: until it starts, and where no scripts run, its picture and text."""
    words = escape(data.get("text/plain", ""), quote=True)
    picture = (
        f'<img src="data:image/png;base64,{data["image/png"]}" alt="{words}">'
        if "image/png" in data
        else words
    )
    kept = f'<script type="application/json">{_in_script(state)}</script>'
    return f'<div data-trainlean-widget="{name}">{picture}{kept}</div>'


def _scripts(names) -> str:
    sources = "".join(
        f'<script type="application/json" data-trainlean-script="{name}">{_in_script(script(name))}</script>'
        for name in names
    )
    return f'<style>{style()}</style>{sources}<script type="module">{(WEB / "page.js").read_text(encoding="utf-8")}</script>'
