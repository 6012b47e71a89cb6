"""A widget that is a picture without a kernel, too."""

import base64

import ipywidgets as widgets

from trainlean.pictures.style import PALE, Picture


class Shown(widgets.VBox):
    """A widget that is saved as a picture and a fixed text too, so that a page without a kernel still shows it."""

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
