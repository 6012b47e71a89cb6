"""What the server takes out of a notebook before it is written."""

from nbformat.v4 import new_code_cell, new_notebook, new_output

from trainlean.notebooks.saving import STATE, VIEW, drop_lost_widgets


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
