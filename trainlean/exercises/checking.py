"""Check whole notebooks from outside: take out what each exercise needs, ask it in a process of its own, judge here."""

import builtins
import json
import os
import re
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from trainlean.exercises.exercise import Exercise
from trainlean.exercises.finding import all_exercises, names_in
from trainlean.exercises.progress import is_an_outcome, record_verdict
from trainlean.exercises.seeing import Seen, pack, see_answer, unpack
from trainlean.exercises.verdicts import (
    CANNOT,
    CRASHED,
    NOT_ATTEMPTED,
    NOTHING_YET,
    RIGHT,
    Verdict,
    cannot_check,
    see_oracle,
    verdict,
)
from trainlean.notebooks.notebook import (
    Place,
    exercise_cells,
    find_notebooks,
    is_as_cut,
    nbgrader_mark,
    read_notebook,
    shown,
)
from trainlean.notebooks.statements import (
    Handout,
    Needed,
    Statement,
    handout,
    needed_for,
    statements,
    text_hash,
)
from trainlean.processes import import_ahead, server_context, start, too_long, wait_for
from trainlean.workspace import COURSE, CourseError, tell_once

START_SECONDS = 60  # for a process to come up: the first one waits for heavy imports
SECONDS = 6  # of computing, for one exercise's questions
SECONDS_WITH_DEVICES = 20  # its processes have to start first
CLOCK_FACTOR = 4  # times these on the clock, where others keep the processor busy
PRELOADED = ["torch", "trainlean.exercises.checking", "trainlean.notebooks.notebook"]
HEAVY = {
    "accelerate": "accelerate",
    "transformers": "transformers.trainer",
}  # imports that take seconds


# ---------------------------------------------------------------- seeing, in a process of its own


def check_notebook(path: Path, seed: int) -> list[Verdict]:
    """A verdict for every exercise that belongs to the notebook. Raises CourseError when it cannot be read."""
    notebook = read_notebook(path)
    if untouched := stubs_only(notebook):
        return untouched
    _import_ahead(notebook)
    exercises = belonging(path, notebook)
    handed_out = handout({exercise.notebook for exercise in exercises})
    found, problems = statements(notebook, handed_out)
    needed = {e.name: needed_for(e.name, found, handed_out) for e in exercises}
    texts = no_code(notebook)
    ran_out: list[str] = []

    def first(exercise: Exercise, needed: Needed) -> Seen | str:
        if is_stub(exercise.name, needed, handed_out):
            return Seen(attempted=False)
        seen = see_in_process(path, exercise, seed)
        if isinstance(seen, str):
            ran_out.append(exercise.name)
        return seen

    def once_more(exercise: Exercise, _: Needed) -> Seen | str:
        return see_in_process(path, exercise, seed, alone=True)

    with ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
        answers = list(
            pool.map(
                lambda e: see_in_notebook(path, e, needed[e.name], problems, first, texts),
                exercises,
            )
        )
    for number, exercise in enumerate(exercises):
        if exercise.name in ran_out:  # it may have been the others' fault: alone it counts
            answers[number] = see_in_notebook(
                path, exercise, needed[exercise.name], problems, once_more
            )
    # Seeing waits for processes and may overlap; judging draws from torch's one random state and may not.
    judged = [
        judge_seen(exercise, answer, cells_of(exercise, found), seed)
        for exercise, answer in zip(exercises, answers, strict=True)
    ]
    checks = {cell.name: cell.check for cell in exercise_cells(notebook)}

    def more(one: Verdict) -> str:
        if one.outcome in (NOT_ATTEMPTED, CANNOT):
            return ""
        return beside(path, one.message) or from_below(
            needed[one.exercise], found, checks.get(one.exercise)
        )

    return [
        replace(one, message=f"{one.message.removesuffix('.')}. {said}")
        if (said := more(one))
        else one
        for one in judged
    ]


def beside(path: Path, message: str) -> str:
    """What to say where an answer did not find a module, and that lies beside the notebook: kernels look there, a check does not."""
    missing = re.search(r"ModuleNotFoundError: No module named '(\w+)", message)
    files = [f"{missing[1]}.py", missing[1]] if missing else []
    for name in files:
        if path.with_name(name).exists():
            return f"{name} lies beside the notebook, but a check reads the notebook alone: put what you import from it into the exercise's cell."
    return ""


def from_below(needed: Needed, found: list[Statement], check: int | None) -> str:
    """What to say where an answer takes names that only cells below its `check` cell (counted from 0) make."""
    if check is None:
        return ""
    above = {name for one in found if one.cell <= check + 1 for name in one.binds}
    wanted = {name for one in needed if one.cell <= check + 1 for name in one.needs}
    wanted -= above | {*dir(builtins)}
    below = {one.cell: sorted(one.binds & wanted) for one in needed if one.cell > check + 1}
    for cell, names in below.items():
        if names and "*" not in above:
            return f"It takes {' and '.join(names)} from cell {cell}, which stands below its check: run from top to bottom, the notebook does not have that yet. Move the cell up."
    return ""


def stubs_only(notebook) -> list[Verdict]:
    """The verdicts on a lesson whose code is as it was handed out: nothing to see, nothing to import. Empty for any other notebook."""
    cells = exercise_cells(notebook)
    if any(cell.check is None for cell in cells) or no_code(notebook):
        return []  # a check cell would say the points; an answer may stand in what is no code
    names = {cell.name for cell in cells}
    lessons = (place for place in find_notebooks() if names and names == {*names_in(place.name)})
    place = next(lessons, None)
    if place is None or not (is_as_cut(notebook) or _code_as_handed_out(notebook, place)):
        return []
    return [
        Verdict(cell.name, place.name, NOT_ATTEMPTED, 0, int(cell.points), NOTHING_YET)
        for cell in {cell.name: cell for cell in cells}.values()
    ]


def _code_as_handed_out(notebook, place: Place) -> bool:
    handed_out = handout([place.name])
    sources = (cell.source for cell in notebook.cells if cell.cell_type == "code")
    return all(text_hash(source) in handed_out.cells for source in sources)


def no_code(notebook) -> dict[str, str]:
    """The exercises whose cell is no code cell any more, by a slip of the keyboard, with a sentence how it becomes one."""
    return {
        cell.name: f"Cell {cell.index + 1}, which holds {cell.name}, is no code cell any more but a {kind} cell, so that nothing in it runs: select it, press Esc and then Y, save, and check again."
        for cell in exercise_cells(notebook)
        if (kind := notebook.cells[cell.index].cell_type) != "code"
    }


def is_stub(name: str, needed: Needed, handed_out: Handout) -> bool:
    """Whether an answer is still what was handed out for it, which raises or is None."""
    binding = [statement.given for statement in needed if name in statement.binds]
    return bool(binding) and all(given == handed_out.exercises.get(name) for given in binding)


def belonging(path: Path, notebook, exercises: Iterable[Exercise] | None = None) -> list[Exercise]:
    """The exercises of a notebook: of the lessons that its cells are marked for; without marks, that its place or its words tell.

    CourseError where there is none.
    """
    exercises = all_exercises().values() if exercises is None else list(exercises)
    marks = {str(nbgrader_mark(cell).get("grade_id")) for cell in notebook.cells}
    words = {
        word
        for cell in notebook.cells
        if cell.cell_type == "code"
        for word in re.findall(r"\w+", cell.source)
    }
    place = (
        {path.resolve().with_suffix("").relative_to(COURSE / "lessons").as_posix()}
        if is_lesson(path)
        else set()
    )
    for lessons in (
        {e.notebook for e in exercises if e.name in marks},
        place,
        {e.notebook for e in exercises if e.name in words},
    ):
        chosen = [exercise for exercise in exercises if exercise.notebook in lessons]
        if chosen:
            return chosen
    raise CourseError(
        f"{path}: no exercise of this course is in it; check a notebook from lessons/."
    )


def is_lesson(path: Path) -> bool:
    """Whether this is one of the learner's own lessons, so that its outcomes count as progress."""
    return Path(path).resolve().is_relative_to(COURSE / "lessons")


def see_in_notebook(
    path: Path,
    exercise: Exercise,
    needed: Needed,
    problems: dict[int, str],
    look: Callable[[Exercise, Needed], Seen | str],
    texts: Mapping[str, str] = MappingProxyType({}),
) -> Seen | Verdict:
    """What the probe saw of a notebook's answer, or the verdict already where there is nothing to judge.

    `texts` is what `no_code` says of the notebook. `look` has what the probe sees of what the statements build, or a sentence why nothing was seen; it is called where there is something to see.
    """

    def without_probe(outcome, message):
        return Verdict(
            exercise.name,
            exercise.notebook,
            outcome,
            0,
            exercise.points,
            message,
        )

    if cannot := cannot_check(exercise):
        return cannot
    if not any(exercise.name in statement.binds for statement in needed):
        if exercise.name in texts:
            return without_probe(NOT_ATTEMPTED, texts[exercise.name])
        if problems:
            return without_probe(
                CRASHED, f"There is no readable {exercise.name}; {'; '.join(problems.values())}."
            )
        return without_probe(
            NOT_ATTEMPTED,
            f"The notebook does not define {exercise.name}; `trainlean reset {shlex.quote(str(path))} {exercise.name}` gives its stub back.",
        )
    seen = look(exercise, needed)
    return without_probe(CRASHED, seen) if isinstance(seen, str) else seen


def cells_of(exercise: Exercise, found: list[Statement]) -> list[int]:
    """The cells that define an exercise's answer."""
    return sorted({statement.cell for statement in found if exercise.name in statement.binds})


def judge_seen(
    exercise: Exercise,
    answer: Seen | Verdict,
    cells: list[int],
    seed: int,
    cache: dict | None = None,
) -> Verdict:
    """The verdict on an answer that was seen; says so when the notebook defines it in more than one of its `cells`."""
    if isinstance(answer, Verdict):
        return answer
    judged = verdict(exercise, answer, seed, cache)
    if len(cells) < 2 or judged.outcome == NOT_ATTEMPTED:
        return judged
    return replace(
        judged,
        message=f"{judged.message} {exercise.name} is defined in cells {', '.join(map(str, cells))}; the last one counts.",
    )


def seconds_for(exercise: Exercise) -> float:
    """How many seconds an exercise's questions may take."""
    return SECONDS_WITH_DEVICES if exercise.devices > 1 else SECONDS


def no_answer(name: str, status: object) -> str:
    """Why nothing was seen, when the process ended before it answered."""
    return f"The process that ran {name} ended without an answer (exit status {status})."


def see_in_process(path: Path, exercise: Exercise, seed: int, *, alone: bool = False) -> Seen | str:
    """What the probe saw of a notebook's answer, or a sentence why nothing was seen.

    `alone`: nothing else is probed at the same time, and time is less scarce: as much as the oracle takes here and now
    decides where that is more than the usual limit.
    """
    name, seconds = exercise.name, seconds_for(exercise)
    if alone:
        seconds = max(2 * seconds, 20 * _oracle_seconds(exercise, seed))
    context = server_context(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    process = start(context, _see_and_send, str(path), name, seed, sender, daemon=False)
    sender.close()
    try:
        receiver.poll(START_SECONDS) and receiver.recv_bytes()  # it is up: only now its time counts
        computed, waited = wait_for(receiver, process.pid, seconds, CLOCK_FACTOR)
        if not receiver.poll():
            return too_long(name, seconds, computed, waited)
        return unpack(receiver.recv_bytes())
    except EOFError:
        process.join(1)
        return no_answer(name, process.exitcode)
    finally:
        process.kill()
        process.join()


def _oracle_seconds(exercise: Exercise, seed: int) -> float:
    start = time.process_time()
    see_oracle(exercise, seed)
    return time.process_time() - start


def _import_ahead(notebook) -> None:
    """Start the server on importing what the notebook names, while this process does other things."""
    words = " ".join(cell.source for cell in notebook.cells)
    heavy = [module for name, module in HEAVY.items() if name in words]
    import_ahead([*PRELOADED, *heavy])


def _see_and_send(path: str, name: str, seed: int, sender) -> None:
    """Runs in the process of its own: builds the answer, and sends what the probe sees of it."""
    import torch

    torch.set_num_threads(1)
    exercise = all_exercises()[name]
    sender.send_bytes(b"ready")
    handed_out = handout([exercise.notebook])
    found, _ = statements(read_notebook(Path(path)), handed_out)
    sender.send_bytes(pack(see_answer(exercise, needed_for(name, found, handed_out), seed)))


# ---------------------------------------------------------------- the command


def check_notebooks(paths: list[Path], as_json: bool = False, seed: int | None = None) -> int:
    """Check notebooks and print the verdicts. Exit status 0 only when every exercise is right."""
    from rich.console import Console
    from rich.progress import track

    seed = secrets.randbelow(1_000_000) if seed is None else seed
    rows = []
    unkept = ""
    outside: list[Path] = []
    notebooks = track(
        paths,
        "Checking",
        console=Console(stderr=True),
        transient=True,
        disable=as_json or len(paths) < 2,
    )
    for path in notebooks:
        try:
            verdicts = check_notebook(Path(path), seed)
        except CourseError as error:
            rows.append(
                {
                    "notebook": str(path),
                    "exercise": None,
                    "outcome": CRASHED,
                    "mistake": "",
                    "message": str(error),
                    "points": 0,
                }
            )
            verdicts = []
            if not as_json:
                print(error)
        for judged in verdicts:
            message = " ".join(part for part in (judged.message, judged.why) if part)
            rows.append(
                {
                    "notebook": str(path),
                    "exercise": judged.exercise,
                    "outcome": judged.outcome,
                    "mistake": judged.mistake,
                    "message": message,
                    "points": judged.points,
                }
            )
            if not is_lesson(path):
                outside += [path] * (is_an_outcome(judged) and path not in outside)
            else:
                unkept = record_verdict(judged) or unkept
            if not as_json:
                print(judged)
                if judged.outcome == RIGHT and (more := judged.message.removeprefix("Right.")):
                    print(f" {more}")
    if as_json:
        print(json.dumps(rows, indent=1))
    elif outside:
        print(
            f"`trainlean progress` does not count this: {', '.join(map(shown, outside))} {'lies' if len(outside) == 1 else 'lie'} outside {shown(COURSE / 'lessons')}. check(...) in the notebook itself counts."
        )
    if unkept:
        tell_once(f"The outcome above could not be kept. {unkept}")
    return 0 if rows and all(row["outcome"] == RIGHT for row in rows) else 1
