"""Check whole notebooks from outside: take out what each exercise needs, ask it in a process of its own, judge here."""

import ast
import contextlib
import dis
import io
import json
import linecache
import os
import re
import secrets
import time
import types
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from trainlean.exercises.exercise import (
    CRASHED,
    NOT_ATTEMPTED,
    RIGHT,
    Exercise,
    Seen,
    Verdict,
    all_exercises,
    cannot_check,
    learners_part,
    pack,
    see,
    unpack,
    verdict,
)
from trainlean.exercises.progress import record_verdict
from trainlean.processes import server_context
from trainlean.workspace import COURSE, CourseError

START_SECONDS = 60  # for a process to come up: the first one waits for heavy imports
SECONDS = 6  # of computing, for one exercise's questions
SECONDS_WITH_DEVICES = 20  # its processes have to start first
PATIENCE = 4  # times these on the clock, where others keep the processor busy
PRELOADED = ["torch", "trainlean.exercises.checking", "trainlean.notebooks.notebook"]
HEAVY = {
    "accelerate": "accelerate",
    "transformers": "transformers.trainer",
}  # imports that take seconds


@dataclass(frozen=True)
class Statement:
    """One top-level statement of a notebook: its code, where it stands, the names that it binds and those that it needs."""

    cell: int
    code: types.CodeType
    binds: frozenset[str]  # "*" stands for any name, after `from x import *`
    needs: frozenset[str]
    defines: bool  # a function or class: only the last one of a name counts


# ---------------------------------------------------------------- what a notebook says


def statements(notebook) -> tuple[list[Statement], dict[int, str]]:
    """The top-level statements of all code cells in order, and a sentence for each cell (by number) that Python cannot read.

    Magics are passed over; the body of a `%%px` cell counts like any other, since it may define an exercise's function.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    found, problems = [], {}
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        source = cell.source
        if source.lstrip().startswith("%%"):
            first, _, rest = source.lstrip().partition("\n")
            if not first.startswith("%%px"):
                continue
            source = "#\n" + rest  # keeps the line numbers; an empty line would be taken away
        filename = f"<cell {number}>"
        try:
            source = TransformerManager().transform_cell(source)
            tree = ast.parse(source, filename)
        except SyntaxError as error:
            problems[number] = f"cell {number} is not Python: {error.msg} in line {error.lineno}"
            continue
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        found += [statement(number, node, filename) for node in tree.body]
    return found, problems


def statement(cell: int, node: ast.stmt, filename: str) -> Statement:
    """A statement of a syntax tree, compiled under `filename` (for tracebacks), with the names that it uses."""
    code = compile(ast.Module([node], type_ignores=[]), filename, "exec")
    binds = {name for kind, name in _name_uses(code, inside=False) if kind == "STORE_NAME"}
    if any(
        isinstance(part, ast.ImportFrom) and part.names[0].name == "*" for part in ast.walk(node)
    ):
        binds.add("*")  # any name
    needs = {
        name for kind, name in _name_uses(code, inside=True) if kind in ("LOAD_NAME", "LOAD_GLOBAL")
    }
    defines = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return Statement(cell, code, frozenset(binds), frozenset(needs), defines)


def _name_uses(code: types.CodeType, *, inside: bool):
    for instruction in dis.get_instructions(code):
        yield instruction.opname, instruction.argval
    if inside:
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from _name_uses(constant, inside=True)


def needed_for(name: str, found: list[Statement]) -> list[Statement]:
    """The statements on which `name` rests, in notebook order: so a lesson's measurements do not run, its definitions do.

    Of several definitions of a function the last one counts, and for what runs before it also the one before that.
    """
    bindings: dict[str, list[int]] = {}
    for index, one in enumerate(found):
        for bound in one.binds:
            bindings.setdefault(bound, []).append(index)
    chosen, wanted, done = set(), [(name, len(found))], set()
    while wanted:
        current, user = wanted.pop()
        if (current, user) in done:
            continue
        done.add((current, user))
        binding = sorted({*bindings.get(current, ()), *bindings.get("*", ())})
        if binding and found[binding[-1]].defines:
            itself = user < len(found) and current in found[user].binds
            earlier = [] if itself else [index for index in binding if index < user]
            binding = [*earlier[-1:], binding[-1]]
        for index in set(binding) - chosen:
            chosen.add(index)
            wanted += [(need, index) for need in found[index].needs]
    return [found[index] for index in sorted(chosen)]


def run_statements(chosen: list[Statement]) -> dict:
    """The names after running the statements in a fresh namespace; what they print is dropped."""
    namespace = {"__name__": "__main__"}
    for statement in chosen:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(statement.code, namespace)
    return namespace


def see_answer(exercise: Exercise, chosen: list[Statement], seed: int) -> Seen:
    """What the probe sees of the answer that the statements build; call it only where they may run."""
    try:
        answer = run_statements(chosen)[exercise.name]
    except Exception as error:
        if type(error) is NotImplementedError and not str(error):
            return Seen(attempted=False)
        return Seen(
            {"raised": f"{type(error).__name__}: {error} (while its cell was run)"},
            traceback=learners_part(error),
        )
    return see(exercise, answer, seed)


def answer_from(path: Path, name: str) -> object:
    """The function or value that a notebook gives to an exercise."""
    from trainlean.notebooks.notebook import read_notebook

    found, _ = statements(read_notebook(path))
    return run_statements(needed_for(name, found))[name]


# ---------------------------------------------------------------- asking, in a process of its own


def check_notebook(path: Path, seed: int) -> list[Verdict]:
    """A verdict for every exercise that belongs to the notebook. Raises CourseError when it cannot be read."""
    from trainlean.notebooks.notebook import (
        read_notebook,
    )  # imports for a second, while the server of the processes does, too

    notebook = read_notebook(path)
    found, problems = statements(notebook)
    exercises = belonging(path, notebook)
    with ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
        answers = pool.map(
            lambda exercise: ask(
                path, exercise, found, problems, lambda e, _: ask_in_process(path, e, seed)
            ),
            exercises,
        )
        # Asking waits for processes and may overlap; judging draws from torch's one random state and may not.
        return [
            judge_seen(exercise, answer, cells_of(exercise, found), seed)
            for exercise, answer in zip(exercises, answers, strict=True)
        ]


def belonging(path: Path, notebook, exercises: Iterable[Exercise] | None = None) -> list[Exercise]:
    """The exercises of a notebook: of the lessons that its cells are marked for; without marks, that its place or its words tell."""
    from trainlean.notebooks.notebook import nbgrader_mark

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


def ask(
    path: Path,
    exercise: Exercise,
    found: list[Statement],
    problems: dict[int, str],
    put: Callable[[Exercise, list[Statement]], Seen | str],
) -> Seen | Verdict:
    """What the probe saw of a notebook's answer, or the verdict already where there is nothing to judge.

    `put` lets the exercise's probe question what the statements build, in a process of its own, or says in a sentence why nothing was seen.
    """

    def without_probe(outcome, message):
        return Verdict(
            exercise.name,
            exercise.notebook,
            outcome,
            0,
            exercise.points,
            message,
            hint=exercise.hints[0],
        )

    if cannot := cannot_check(exercise):
        return cannot
    chosen = needed_for(exercise.name, found)
    if not any(exercise.name in statement.binds for statement in chosen):
        if problems:
            return without_probe(
                CRASHED, f"There is no readable {exercise.name}; {'; '.join(problems.values())}."
            )
        return without_probe(
            NOT_ATTEMPTED,
            f"The notebook does not define {exercise.name}; `trainlean reset {path} {exercise.name}` gives its stub back.",
        )
    seen = put(exercise, chosen)
    return without_probe(CRASHED, seen) if isinstance(seen, str) else seen


def cells_of(exercise: Exercise, found: list[Statement]) -> list[int]:
    """The cells that define an exercise's answer."""
    return sorted({statement.cell for statement in found if exercise.name in statement.binds})


def judge_seen(
    exercise: Exercise,
    answer: Seen | Verdict,
    cells: list[int],
    seed: int,
    memory: dict | None = None,
) -> Verdict:
    """The verdict on an answer that was asked; says so when the notebook defines it in more than one of its `cells`."""
    if isinstance(answer, Verdict):
        return answer
    judged = verdict(exercise, answer, seed, memory)
    if len(cells) < 2 or judged.outcome == NOT_ATTEMPTED:
        return judged
    return replace(
        judged,
        message=f"{judged.message} {exercise.name} is defined in cells {', '.join(map(str, cells))}; the last one counts.",
    )


def seconds_for(exercise: Exercise) -> float:
    """How long an exercise's questions may take."""
    return SECONDS_WITH_DEVICES if exercise.devices > 1 else SECONDS


def too_long(name: str, seconds: float) -> str:
    """Why nothing was seen, when time ran out."""
    return f"{name} gave no answer within {seconds:g} s: does a loop in it never end?"


def no_answer(name: str, status: object) -> str:
    """Why nothing was seen, when the process ended before it answered."""
    return f"The process that ran {name} ended without an answer (exit status {status})."


def ask_in_process(path: Path, exercise: Exercise, seed: int) -> Seen | str:
    """What the probe saw of a notebook's answer, or a sentence why nothing was seen."""
    name, seconds = exercise.name, seconds_for(exercise)
    context = server_context(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_answer_questions, args=(str(path), name, seed, sender), daemon=False
    )
    process.start()
    sender.close()
    try:
        receiver.poll(
            START_SECONDS
        ) and receiver.recv_bytes()  # the process is up; only now its time counts
        if not _answers_in_time(receiver, process.pid, seconds):
            return too_long(name, seconds)
        return unpack(receiver.recv_bytes())
    except EOFError:
        process.join(1)
        return no_answer(name, process.exitcode)
    finally:
        process.kill()
        process.join()


def _answers_in_time(receiver, pid: int, seconds: float) -> bool:
    """Whether a process answers before it has computed for so long; on a busy machine that may take `PATIENCE` times as long."""
    start, process = time.monotonic(), psutil.Process(pid)
    used = sum(process.cpu_times()[:2])
    while not receiver.poll(0.2):
        try:
            computed = sum(process.cpu_times()[:2]) - used
        except psutil.Error:
            return receiver.poll(1)
        if computed > seconds or time.monotonic() - start > PATIENCE * seconds:
            return False
    return True


def _import_ahead(paths: list[Path]) -> None:
    """Start the server on importing what these notebooks name, once, while this process does other things."""
    words = " ".join(
        Path(path).read_text(encoding="utf-8", errors="replace")
        for path in paths
        if Path(path).is_file()
    )
    heavy = [module for name, module in HEAVY.items() if name in words]
    if server_context([*PRELOADED, *heavy]).get_start_method() == "forkserver":
        from multiprocessing import forkserver  # not there on Windows

        forkserver.ensure_running()


def _answer_questions(path: str, name: str, seed: int, sender) -> None:
    """Runs in the process of its own: builds the answer, asks it, sends what was seen."""
    import torch

    from trainlean.notebooks.notebook import read_notebook

    torch.set_num_threads(1)
    exercise = all_exercises()[name]
    sender.send_bytes(b"ready")
    found, _ = statements(read_notebook(Path(path)))
    sender.send_bytes(pack(see_answer(exercise, needed_for(name, found), seed)))


# ---------------------------------------------------------------- the command


def check_notebooks(paths: list[Path], as_json: bool = False, seed: int | None = None) -> int:
    """Check notebooks and print the verdicts. Exit status 0 only when every exercise is right."""
    from rich.console import Console
    from rich.progress import track

    seed = secrets.randbelow(1_000_000) if seed is None else seed
    rows = []
    _import_ahead(paths)
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
            if is_lesson(path):
                record_verdict(judged)
            if not as_json:
                print(judged)
    if as_json:
        print(json.dumps(rows, indent=1))
    return 0 if rows and all(row["outcome"] == RIGHT for row in rows) else 1
