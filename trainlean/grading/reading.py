"""A notebook read in a process of its own: what is handed over is a list of exercises, and for each the statements it needs.

A learner's text can make Python's own parser take gigabytes or minutes, so it is read under the limits of an answer. Only
the process that runs an exercise's statements unpacks them; whoever is between reads JSON.
"""

import json
import linecache
import marshal
import struct
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path

from trainlean.exercises.checking import belonging, cells_of, no_code, see_in_notebook
from trainlean.exercises.exercise import Exercise
from trainlean.exercises.verdicts import Verdict
from trainlean.notebooks.notebook import notebook_of
from trainlean.notebooks.statements import (
    Handout,
    Needed,
    Statement,
    joined,
    needed_for,
    statements,
)
from trainlean.workspace import CourseError

TOO_MUCH = (RecursionError, MemoryError, ValueError, OverflowError)  # for Python to read


def packed_notebook(
    data: bytes,
    where: str,
    exercises: Iterable[Exercise],
    handouts: dict[str, Handout],
    only_names: bool = False,
    elsewhere: Iterable[Exercise] = (),
) -> bytes:
    """What `unpack_notebook` gives back: a problem, or the exercises that the notebook belongs to and (not for `only_names`) their statements.

    A notebook of the lessons `elsewhere` belongs there, though a name from one of `exercises` may stand in it.
    """
    exercises = list(exercises)
    wanted = {one.name for one in exercises}
    try:
        notebook = notebook_of(data, where)
        found_here = belonging(Path(where), notebook, [*exercises, *elsewhere])
        chosen = [one for one in found_here if one.name in wanted]
        if not chosen:
            lessons = sorted({one.notebook for one in found_here})
            return _pack({"problem": "", "exercises": [], "not_due": lessons}, [])
        if only_names:
            named = [{"exercise": exercise.name, "bytes": 0} for exercise in chosen]
            return _pack({"problem": "", "exercises": named}, [])
        handed_out = joined(handouts[lesson] for lesson in sorted({e.notebook for e in chosen}))
        found, problems = _statements(notebook, handed_out)
    except CourseError as error:
        return _pack({"problem": str(error), "exercises": []}, [])
    except MemoryError:
        raise  # whoever set the limit says it
    except TOO_MUCH as error:
        problem = f"{where} cannot be read: {type(error).__name__}."
        return _pack({"problem": problem, "exercises": []}, [])
    entries, blobs = [], []
    texts = no_code(notebook)
    for exercise in chosen:
        needed = needed_for(exercise.name, found, handed_out)
        answer = see_in_notebook(Path(where), exercise, needed, problems, lambda *_: "", texts)
        names = sorted({name for one in needed for name in one.code.co_names})
        entry = {
            "exercise": exercise.name,
            "cells": cells_of(exercise, found),
            "names": names,  # of all that the statements name, among them what they import
            "bytes": 0,
        }
        if isinstance(answer, Verdict) and answer.message:
            entry |= {"outcome": answer.outcome, "message": answer.message}
        else:
            blobs.append(_packed(needed))
            entry["bytes"] = len(blobs[-1])
        entries.append(entry)
    return _pack({"problem": "", "exercises": entries}, blobs)


def _packed(needed: Needed) -> bytes:
    files = {one.code.co_filename for one in needed}
    sources = {name: linecache.cache[name][2] for name in files if name in linecache.cache}  # type: ignore[misc]  # `statements` makes whole entries, no lazy ones
    return marshal.dumps(([astuple(one) for one in needed], needed.left_out, sources))


def _statements(notebook, handed_out: Handout) -> tuple[list[Statement], dict[int, str]]:
    """`statements`, without the cells that are too much for Python."""
    try:
        return statements(notebook, handed_out)
    except TOO_MUCH:
        pass
    sources = [cell.source for cell in notebook.cells]
    problems = {}
    for number, cell in enumerate(notebook.cells, 1):
        for other in notebook.cells:
            other.source = ""
        cell.source = sources[number - 1]
        try:
            statements(notebook, handed_out)
        except TOO_MUCH as error:
            problems[number] = f"cell {number} is too much for Python ({type(error).__name__})"
    for number, (cell, source) in enumerate(zip(notebook.cells, sources, strict=True), 1):
        cell.source = "" if number in problems else source
    found, more = statements(notebook, handed_out)
    return found, dict(sorted((problems | more).items()))


def _pack(head: dict, blobs: list[bytes]) -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("Q", len(text)) + text + b"".join(blobs)


def unpack_notebook(packed: bytes) -> tuple[str, list[tuple[dict, bytes]], list[str]]:
    """The problem, or the exercises: what is known of each, and its packed statements (none where there is nothing to run).

    Where there are none, the lessons that the notebook belongs to instead.
    """
    [size] = struct.unpack("Q", packed[:8])
    head, place = json.loads(packed[8 : 8 + size]), 8 + size
    exercises = []
    for entry in head["exercises"]:
        exercises.append((entry, packed[place : place + entry["bytes"]]))
        place += entry["bytes"]
    return head["problem"], exercises, head.get("not_due", [])


def unpack_statements(blob: bytes) -> Needed:
    """The statements, with their source where tracebacks look for it."""
    found, left_out, sources = marshal.loads(blob)
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return Needed(tuple(Statement(*one) for one in found), left_out)
