"""What built solutions ask, in the words of today.

A page plays with what its notebook holds, and no cell changes where a question, a mistake or a solution is put in other words.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from nbformat import NotebookNode, from_dict

from trainlean.exercises.finding import find_exercise
from trainlean.exercises.ordering import lines_to_order
from trainlean.exercises.own_loop import quiz_about
from trainlean.exercises.questions import WHY, reason
from trainlean.exercises.recall import EARLIER, from_earlier
from trainlean.exercises.solutions import answer_of
from trainlean.pictures.widget import HANDED_OVER, Live

REVEALED = re.compile(r'^\s*reveal\(\s*"([^"]+)"', re.MULTILINE)
CHECKED = re.compile(r"^\s*check\((\w+)", re.MULTILINE)
RECALLED = re.compile(r'^\s*recall\(\s*"([^"]+)"', re.MULTILINE)


def ask_as_today(notebook: NotebookNode) -> int:
    """Put the questions that a solution's outputs hold as they are asked today; returns how many were put otherwise."""
    changed = 0
    for cell in notebook.cells:
        reasons = filter(None, map(reason, REVEALED.findall(cell.source)))
        for output in cell.get("outputs", []):
            held = output.get("metadata", {}).get(HANDED_OVER, {}).get("state", {})
            if not held.keys() & {"asked", "puzzle"}:
                continue
            widget = _asked_by(cell.source, held, reasons)
            if widget is None or json.loads(json.dumps(_state(widget))) == held:
                continue
            data, metadata = widget._repr_mimebundle_()
            data.pop("application/vnd.jupyter.widget-view+json", None)
            output.data, output.metadata = (
                from_dict(data),
                from_dict(json.loads(json.dumps(metadata))),
            )
            changed += 1
    return changed


def _state(widget):
    return {trait: getattr(widget, trait) for trait in widget.handed_over}


def _asked_by(source: str, held: dict, reasons: Iterator[Live]) -> Live | None:
    """What a cell asks today where its output holds this; `reasons` are those that it asks for, one after the other."""
    if "puzzle" in held:
        return lines_to_order(find_exercise(held["puzzle"]["name"]))
    title = held["asked"]["title"]
    if title == WHY:
        return next(reasons, None)
    if title == EARLIER:
        with _without_records():
            return from_earlier(RECALLED.findall(source)[-1])
    [name] = CHECKED.findall(source)
    return quiz_about(name, answer_of(find_exercise(name), {}))


@contextmanager
def _without_records():
    """As for somebody who has done nothing yet."""
    before = os.environ.get("TRAINLEAN_WORK")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRAINLEAN_WORK"] = folder
        try:
            yield
        finally:
            del os.environ["TRAINLEAN_WORK"]
            if before is not None:
                os.environ["TRAINLEAN_WORK"] = before
