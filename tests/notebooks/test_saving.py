"""What the server takes out of a notebook before it is written, and what others show of a widget that it kept."""

import re

import nbformat
from nbformat.v4 import new_code_cell, new_notebook, new_output

from trainlean.notebooks.saving import STATE, VIEW, drop_lost_widgets
from trainlean.pictures.widget import HANDED_OVER
from trainlean.workspace import COURSE


def shown(model, **more):
    return new_output("display_data", {VIEW: {"model_id": model}, "text/plain": "its name"} | more)


def test_a_view_stays_with_its_state_and_goes_without():
    outputs = [shown("kept"), shown("lost"), shown("", **{"image/png": "iVBO"})]
    notebook = new_notebook(
        cells=[new_code_cell(outputs=[*outputs, new_output("stream", text="3")])]
    )
    notebook.metadata.widgets = {STATE: {"state": {"kept": {}}}}
    drop_lost_widgets(model={"type": "notebook", "content": notebook}, path="a.ipynb")
    kept = [output.get("data", {}).keys() for output in notebook.cells[0].outputs]
    assert kept == [{VIEW, "text/plain"}, {"text/plain", "image/png"}, set()]


def test_what_is_no_notebook_is_left_alone():
    model = {"type": "file", "content": "text"}
    drop_lost_widgets(model=model)
    assert model == {"type": "file", "content": "text"}


# In this order VS Code takes what an output has (extensions/ipynb/src/deserializers.ts of microsoft/vscode); where the
# widget's model is gone, its renderer leaves the view out and takes the next.
VS_CODE = ["text/html", "image/png", "image/svg+xml", "text/plain"]


def test_without_its_model_a_widget_of_a_built_notebook_is_a_picture_or_html_in_vs_code():
    seen = set()
    for path in sorted((COURSE / "solutions").glob("*/*.ipynb")):
        for output in outputs(nbformat.read(path, as_version=4)):
            kept = output.get("metadata", {}).get(HANDED_OVER)
            if VIEW not in output.get("data", {}) and not kept:
                continue
            shown = next(kind for kind in VS_CODE if kind in output.data)
            assert shown in ("text/html", "image/png"), path
            assert len(output.data[shown]) > 200 and "<script" not in output.data[shown], path
            # Which VS Code gives to who does not see the picture.
            words = output.data["text/plain"]
            assert len(words) > 20 and not re.match(r"<|\w+\(", words), path
            seen.add((kept or {}).get("widget"))
    assert {"explorer", "player", "quiz", "lines"} <= seen


def outputs(notebook):
    return [one for cell in notebook.cells for one in cell.get("outputs", [])]
