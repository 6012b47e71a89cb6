"""A widget that plays in the browser, with a kernel and without one, and is a picture (or HTML) and a text where no scripts run.

Its script and style are files of web/. A notebook that is saved keeps, beside picture and text, what the script needs in
the output's metadata (`HANDED_OVER`): a page made of the notebook then plays without a kernel (trainlean.pages).
"""

import base64
from pathlib import Path

import anywidget
import ipywidgets as widgets

from trainlean.pictures.style import PALE, Picture

WEB = Path(__file__).parent / "web"
HANDED_OVER = (
    "trainlean"  # the entry of an output's metadata: {"widget": NAME, "state": {trait: JSON}}
)


def script(name: str) -> str:
    """The JavaScript of a widget, a module whose default export has `render({model, el})`."""
    return "\n".join((WEB / f"{part}.js").read_text(encoding="utf-8") for part in ("shared", name))


def style() -> str:
    """The CSS of all widgets."""
    return (WEB / "widgets.css").read_text(encoding="utf-8")


class Live(anywidget.AnyWidget):
    """A widget of the course. What is of one kind has `name` (its script) and `handed_over` (the traits that the script reads).

    `repr` is its text.
    """

    _css = style()
    name: str
    handed_over: tuple[str, ...]

    @property
    def width(self) -> int:
        """The picture's width in pixels of the page. NotImplementedError: each kind says its own."""
        raise NotImplementedError

    def png(self) -> bytes:
        """The picture of the present state, as a PNG file. NotImplementedError: each kind draws its own."""
        raise NotImplementedError

    def still(self) -> tuple[dict, dict]:
        """What stands beside the text where no scripts run, by MIME type, and its metadata: the picture."""
        size = {"width": self.width, "alt": repr(self)}
        return {"image/png": base64.b64encode(self.png()).decode()}, {"image/png": size}

    def _repr_mimebundle_(self, **kwargs) -> tuple[dict, dict]:
        shown = super()._repr_mimebundle_(**kwargs)
        data, metadata = shown or ({}, {})
        still, size = self.still()
        state = {trait: getattr(self, trait) for trait in self.handed_over}
        handed_over = {HANDED_OVER: {"widget": self.name, "state": state}}
        return data | still | {"text/plain": repr(self)}, metadata | size | handed_over


class Shown(widgets.VBox):
    """A widget that is saved as a picture and a fixed text too, so that a page without a kernel still shows it: for what only Python computes."""

    def _repr_mimebundle_(self, **kwargs) -> dict:
        bundle = super()._repr_mimebundle_(**kwargs)
        return {
            **bundle,
            "image/png": base64.b64encode(self.image.value).decode(),
            "text/plain": repr(self),
        }


def image_of(picture: Picture) -> widgets.Image:
    """The place of a picture in a widget: as wide as the figure says, whatever its resolution."""
    layout = widgets.Layout(
        width=f"{96 * picture.get_figwidth():.0f}px",
        max_width="100%",
        height="auto",
        border=f"1px solid {PALE}",
    )
    return widgets.Image(format="png", layout=layout)
