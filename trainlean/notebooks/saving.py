"""What Jupyter's server does to a notebook before it writes it: no view is kept of a widget that is not kept.

A progress bar that was closed would else be read as "Error displaying widget: model not found" when the notebook is opened again.
"""

VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"


def drop_lost_widgets(model: dict, **_) -> None:
    """Take the views of widgets without saved state out of a notebook that is about to be saved (a `pre_save_hook`).

    The picture or text beside a view stays; an output that was nothing but the view and its name goes.
    """
    notebook = model.get("content")
    if model.get("type") != "notebook" or not isinstance(notebook, dict):
        return
    saved = notebook.get("metadata", {}).get("widgets", {}).get(STATE, {}).get("state", {})
    for cell in notebook.get("cells", []):
        outputs = []
        for output in cell.get("outputs", []):
            view = output.get("data", {}).get(VIEW)
            if view is not None and view.get("model_id") not in saved:
                data = {kind: shown for kind, shown in output["data"].items() if kind != VIEW}
                if not data.keys() - {"text/plain"}:
                    continue
                output = output | {"data": data}
            outputs.append(output)
        if "outputs" in cell:
            cell["outputs"] = outputs
