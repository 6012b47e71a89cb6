"""Notebooks: where they lie, what they say, and how an authored one is cut into a lesson.

The author's marks:

# %% exercise="accumulate" points=2      the exercise cell; it defines `accumulate`
# BEGIN SOLUTION ... # END SOLUTION      what the lesson does not show
my_guess = 40  # BEGIN/END SOLUTION      the same for one line
# %% check="accumulate"                  the next code cell; it calls `check(accumulate)`
"""

import ast
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from trainlean.workspace import COURSE, CourseError

KERNELSPEC = {"display_name": "Python 3 (Train Lean)", "language": "python", "name": "python3"}
BEGIN, END, ONE_LINE = "# BEGIN SOLUTION", "# END SOLUTION", "# BEGIN/END SOLUTION"
STUB = "# YOUR CODE HERE"
_KNOWN_METADATA = {"exercise", "points", "check", "tags", "title", "jupyter", "slideshow"}


# ---------------------------------------------------------------- where things lie


@dataclass(frozen=True)
class Place:
    """The three files of one notebook of the course; `name` is the path without root folder and ending."""

    name: str
    course: Path = COURSE

    @property
    def authored(self) -> Path:
        """The percent-format file that is the source of the other two."""
        return self.course / "authoring" / f"{self.name}.py"

    @property
    def lesson(self) -> Path:
        """The notebook that learners open."""
        return self.course / "lessons" / f"{self.name}.ipynb"

    @property
    def solution(self) -> Path:
        """The complete notebook, with outputs."""
        return self.course / "solutions" / f"{self.name}.ipynb"


def find_notebooks(names: Iterable[str | Path] = (), course: Path = COURSE) -> list[Place]:
    """The notebooks of the course in the order they are taught; `names` picks some.

    A name is a path (authored file, lesson, solution, or a folder of them) or the notebook's name, whole
    ("1_accumulation/1_pytorch"), a unit ("1_accumulation") or the last part when only one notebook has it.
    Raises CourseError for a name that picks nothing or more than one.
    """
    root = course / "authoring"
    everything = [
        Place(path.relative_to(root).with_suffix("").as_posix(), course)
        for path in sorted(root.rglob("*.py"))
    ]
    if not everything:
        raise CourseError(
            f"{root} holds no notebook to build; run the command in a complete checkout of the course."
        )
    names = list(names)
    if not names:
        return everything
    chosen = {place.name for name in names for place in _named(name, everything, course)}
    return [place for place in everything if place.name in chosen]


def _named(name: str | Path, places: list[Place], course: Path) -> list[Place]:
    plain = re.sub(r"^(authoring|lessons|solutions)/", "", Path(name).as_posix())
    path = Path(name).resolve()
    roots = ((course / root).resolve() for root in ("authoring", "lessons", "solutions"))
    inside = [path.relative_to(root).as_posix() for root in roots if path.is_relative_to(root)]
    a_path = inside and (path.exists() or re.fullmatch(r"\.|[^/]+\.(py|ipynb)", plain))
    # Within lessons/1_accumulation, 1_accumulation/1_pytorch is no path, but still the course's name for it.
    for wanted in [*inside, *([] if a_path else [plain])]:
        wanted = re.sub(r"\.(py|ipynb)$", "", wanted)
        found = [p for p in places if wanted in ("", ".", p.name)] or [
            p for p in places if p.name.startswith(wanted + "/")
        ]
        if not found:
            found = [p for p in places if p.name.split("/")[-1] == wanted]
            if len(found) > 1:
                raise CourseError(
                    f"{wanted} names several notebooks: {', '.join(p.name for p in found)}; give the whole name."
                )
        if found:
            return found
    raise CourseError(
        f"The course has no notebook {str(name)!r}; it has {', '.join(p.name for p in places)}."
    )


def shown(path: Path) -> str:
    """A path as a person would type it: relative to the current folder where it lies below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


# ---------------------------------------------------------------- reading

INSTEAD = {
    "<": "it is a web page: download the notebook itself.",
    "version https://git-lfs": "it is Git LFS's note of a file: run `git lfs pull`.",
}  # how files begin that are saved in a notebook's place, and what to do


def read_notebook(path: str | Path) -> NotebookNode:
    """The notebook at `path`, whatever its format version, upgraded to version 4; CourseError says what is wrong with it."""
    path = Path(path)
    where = shown(path)
    if path.is_dir():
        raise CourseError(f"{where} is a folder; name the notebook (.ipynb) in it.")
    try:
        return notebook_of(path.read_bytes(), where)
    except FileNotFoundError:
        raise CourseError(f"There is no notebook {where}; check the path.") from None
    except OSError as error:
        raise CourseError(f"{where} cannot be read: {error.strerror}.") from None


def notebook_of(data: bytes, where: str) -> NotebookNode:
    """The notebook in the bytes of a file, as `read_notebook` gives it; `where` names the file in CourseError's sentence."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CourseError(
            f"{where} is not UTF-8 text (byte {error.start}); save it again from JupyterLab."
        ) from None
    if not text.strip():
        raise CourseError(
            f"{where} is empty; was it saved completely? `trainlean reset UNIT/LESSON` gives a lesson of the course back."
        )
    try:
        content = json.loads(text)
    except RecursionError:
        raise CourseError(
            f"{where} is nested too deeply for a notebook; was it saved by Jupyter?"
        ) from None
    except ValueError as error:
        if not isinstance(error, json.JSONDecodeError):
            raise CourseError(
                f"{where} holds a number of thousands of digits, which Python does not read; was it saved by Jupyter?"
            ) from None
        if re.search(r"^(<{7}|>{7})( |$)", text, re.MULTILINE):
            line = next(
                n
                for n, row in enumerate(text.splitlines(), 1)
                if re.match(r"(<{7}|>{7})( |$)", row)
            )
            raise CourseError(
                f"{where}, line {line}: git left merge conflict marks; choose one side and remove the marks."
            ) from None
        instead = next(
            (kind for start, kind in INSTEAD.items() if text.lstrip().lower().startswith(start)),
            "was it saved completely?",
        )
        raise CourseError(
            f"{where}, line {error.lineno}: this is not JSON, so it is not a notebook; {instead}"
        ) from None
    try:
        if not isinstance(content, dict) or "nbformat" not in content:
            raise ValueError
        major = nbformat.reader.get_version(content)[0]
        if major > nbformat.current_nbformat:
            raise CourseError(
                f"{where} has notebook format {major}; the newest one known here is {nbformat.current_nbformat}."
            )
        for cell in content.get("cells", []):  # what nobody asks for may be anything
            for name, kind in {"metadata": dict, "outputs": list}.items():
                if name in cell and not isinstance(cell[name], kind):
                    cell[name] = kind()
            cell.setdefault("metadata", {})
        known = nbformat.versions[major].to_notebook_json(content)
        notebook = nbformat.convert(nbformat.from_dict(known), 4)
        for cell in notebook.cells:
            if cell.cell_type not in ("code", "markdown", "raw") or not isinstance(
                cell.source, (str, list)
            ):
                raise ValueError
            cell.source = "".join(cell.source)
            if not isinstance(cell.get("metadata"), dict):
                cell.metadata = NotebookNode()
            if cell.cell_type == "code":
                cell.setdefault("outputs", [])
                cell.setdefault("execution_count", None)
        if notebook.nbformat_minor < 5:
            notebook = nbformat.v4.upgrade(notebook)  # cells get ids
    except CourseError:
        raise
    except Exception:  # nbformat meets a foreign structure with whatever error comes first
        raise CourseError(
            f"{where} is JSON but not a Jupyter notebook; expected cells with a type and a source."
        ) from None
    return notebook


@dataclass(frozen=True)
class ExerciseCell:
    """Where an exercise stands in a notebook: cell numbers from 0; `check` is None when its check cell is gone."""

    name: str
    points: float
    index: int
    check: int | None


def exercise_cells(notebook: NotebookNode) -> list[ExerciseCell]:
    """The exercises of a built lesson or solution, in order; a duplicated cell is listed twice."""
    checks: dict[str, tuple[int, float]] = {}
    for index, cell in enumerate(notebook.cells):
        mark = nbgrader_mark(cell)
        if mark.get("grade"):
            checks.setdefault(
                str(mark.get("grade_id", "")).removesuffix("-check"), (index, mark.get("points", 0))
            )
    found = []
    for index, cell in enumerate(notebook.cells):
        mark = nbgrader_mark(cell)
        if mark.get("solution") and mark.get("grade_id"):
            check, points = checks.get(mark["grade_id"], (None, 0))
            found.append(ExerciseCell(mark["grade_id"], points, index, check))
    return found


def nbgrader_mark(cell) -> dict:
    """The cell's nbgrader metadata; empty where it has none, or something else under that name."""
    mark = cell.metadata.get("nbgrader", {})
    return mark if isinstance(mark, dict) else {}


# ---------------------------------------------------------------- authored files


def read_authored(place: Place) -> NotebookNode:
    """The authored file as the notebook a solution is before it runs: marks checked, nbgrader metadata, cell ids.

    CourseError names file and line of what is wrong with it.
    """
    import jupytext

    where = shown(place.authored)
    try:
        text = place.authored.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CourseError(
            f"There is no {where}; authors write one percent-format file for each notebook."
        ) from None
    except UnicodeDecodeError as error:
        raise CourseError(f"{where} is not UTF-8 text (byte {error.start}).") from None
    if not re.search(r"^# %%", text, re.MULTILINE):
        raise CourseError(f"{where} has no cell; start each one with a line `# %%`.")
    raw = jupytext.reads(text, fmt="py:percent")
    lines = first_lines(text, raw)
    notebook = nbformat.v4.new_notebook(
        metadata={"kernelspec": dict(KERNELSPEC), "language_info": {"name": "python"}}
    )
    waiting = None  # the exercise whose check cell must come next: (name, points, line)
    seen: dict[str, int] = {}
    for cell, line in zip(raw.cells, lines):
        cell.source = cell.source.strip("\n")
        metadata = {
            key: value for key, value in cell.metadata.items() if key != "lines_to_next_cell"
        }  # jupytext's own
        at = f"{where}:{line}"
        unknown = metadata.keys() - _KNOWN_METADATA
        if unknown:
            raise CourseError(
                f"{at}: cells know no {sorted(unknown)[0]!r}; they know {', '.join(sorted(_KNOWN_METADATA))}."
            )
        name, points, checked = (
            metadata.pop("exercise", None),
            metadata.pop("points", None),
            metadata.pop("check", None),
        )
        if (name or checked) and cell.cell_type != "code":
            raise CourseError(
                f"{at}: {'exercise' if name else 'check'} {name or checked!r} stands on a text cell; it belongs on a code cell."
            )
        if cell.cell_type == "code" and waiting and checked != waiting[0]:
            raise CourseError(
                f'{where}:{waiting[2]}: exercise {waiting[0]!r} has no check cell; the next code cell must be `# %% check="{waiting[0]}"`.'
            )
        if points is not None and not name:
            raise CourseError(f"{at}: points belong on the exercise cell, beside its name.")
        if name:
            if name in seen:
                raise CourseError(
                    f"{at}: exercise {name!r} stands already in line {seen[name]}; names must differ."
                )
            if not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise CourseError(
                    f"{at}: an exercise is named like the function it asks for; {name!r} is no such name."
                )
            if type(points) is not int or points < 1:
                raise CourseError(
                    f'{at}: exercise {name!r} needs points, a whole number from 1: `exercise="{name}" points=2`.'
                )
            seen[name], waiting = line, (name, points, line)
            metadata["nbgrader"] = _nbgrader(name, solution=True)
        if checked:
            if not waiting:
                raise CourseError(f"{at}: check {checked!r} has no exercise cell before it.")
            if not re.search(rf"\bcheck\(\s*{re.escape(checked)}\b", cell.source):
                raise CourseError(
                    f"{at}: the check cell of {checked!r} must call `check({checked})`."
                )
            metadata["nbgrader"] = _nbgrader(f"{checked}-check", points=waiting[1])
            waiting = None
        if cell.cell_type == "code":
            if not cell.source.strip():
                raise CourseError(f"{at}: this code cell is empty; write it or remove it.")
            stub = cut(cell.source, where, line)  # checks the marks of every cell
            if name:
                _holds_exercise(name, cell.source, stub, at)
            new = nbformat.v4.new_code_cell(cell.source, metadata=metadata)
        else:
            make = (
                nbformat.v4.new_markdown_cell
                if cell.cell_type == "markdown"
                else nbformat.v4.new_raw_cell
            )
            new = make(cell.source, metadata=metadata)
        notebook.cells.append(new)
    if waiting:
        raise CourseError(
            f'{where}:{waiting[2]}: exercise {waiting[0]!r} has no check cell; the next code cell must be `# %% check="{waiting[0]}"`.'
        )
    _set_ids(notebook)
    return notebook


def first_lines(text: str, raw: NotebookNode) -> list[int]:
    """The line of the authored file on which each cell's source begins, for messages."""
    rows = text.splitlines()
    marks = [n for n, row in enumerate(rows, 1) if re.match(r"# %%+(\s|$)", row)]
    marks = [1] * (len(raw.cells) - len(marks)) + marks  # text above the first mark is a cell too
    lines = []
    for mark in marks[: len(raw.cells)]:
        line = mark + 1
        while line <= len(rows) and not rows[line - 1].strip():
            line += 1
        lines.append(line)
    return lines


def _nbgrader(grade_id: str, solution: bool = False, points: int | None = None) -> dict:
    mark = {
        "grade": not solution,
        "grade_id": grade_id,
        "locked": not solution,
        "schema_version": 3,
        "solution": solution,
        "task": False,
    }
    return mark if points is None else mark | {"points": points}


def _set_ids(notebook: NotebookNode) -> None:
    """Ids from the content, so that a rebuild changes nothing and an edit changes one."""
    count: Counter = Counter()
    for cell in notebook.cells:
        mark = nbgrader_mark(cell)
        name = (
            mark.get("grade_id")
            or hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:10]
        )
        stem = name[:60]  # an id has 64 letters at most
        count[stem] += 1
        cell.id = stem + (f"-{count[stem]}" if count[stem] > 1 else "")


# ---------------------------------------------------------------- the cut


def cut(source: str, where: str = "cell", first_line: int = 1) -> str:
    """The cell as a learner gets it: every marked region replaced by a stub; `where` and `first_line` name it in CourseErrors.

    Regions of top-level assignments become `NAME = None  # YOUR CODE HERE`; any other region becomes the comment
    and `raise NotImplementedError()` at the indentation of its BEGIN mark.
    """
    kept: list[str] = []
    region: list[str] | None = None
    begun = 0
    for number, line in enumerate(source.splitlines(), first_line):
        mark = line.strip()
        if mark == BEGIN:
            if region is not None:
                raise CourseError(
                    f"{where}:{number}: BEGIN SOLUTION again before the END of the one in line {begun}."
                )
            region, begun = [], number
            indentation = line[: len(line) - len(line.lstrip())]
        elif mark == END:
            if region is None:
                raise CourseError(
                    f"{where}:{number}: END SOLUTION without a BEGIN SOLUTION before it."
                )
            kept += _stub(region, indentation, f"{where}:{begun}")
            region = None
        elif region is not None:
            region.append(line)
        elif mark.endswith(ONE_LINE):
            kept += _stub(
                [line.replace(ONE_LINE, "").rstrip()],
                line[: len(line) - len(line.lstrip())],
                f"{where}:{number}",
            )
        elif "BEGIN SOLUTION" in mark or "END SOLUTION" in mark:
            raise CourseError(
                f"{where}:{number}: a mark stands alone on its line, as `{BEGIN}` or `{END}`; one line is marked with `{ONE_LINE}` at its end."
            )
        else:
            kept.append(line)
    if region is not None:
        raise CourseError(
            f"{where}:{begun}: BEGIN SOLUTION without an END SOLUTION in the same cell."
        )
    return "\n".join(kept)


def _stub(region: list[str], indentation: str, at: str) -> list[str]:
    if not any(line.strip() for line in region):
        raise CourseError(f"{at}: nothing stands between BEGIN SOLUTION and END SOLUTION.")
    names = [] if indentation else _assigned("\n".join(region))
    if names:
        return [f"{name} = None  {STUB}" for name in names]
    return [indentation + STUB, indentation + "raise NotImplementedError()"]


def _assigned(code: str) -> list[str]:
    """The names a region assigns, in order; none when it does anything else."""
    try:
        statements = ast.parse(code).body
    except SyntaxError:
        return []
    names = []
    for statement in statements:
        targets = (
            statement.targets
            if isinstance(statement, ast.Assign)
            else [statement.target]
            if isinstance(statement, ast.AnnAssign)
            else [None]
        )
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if not isinstance(part, ast.Name):
                    return []
                names.append(part.id)
    return list(dict.fromkeys(names))


def defined_names(source: str) -> set[str]:
    """The names a cell's top level defines or assigns; lines of IPython magic are passed over."""
    plain = "\n".join(
        "" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()
    )
    names = set()
    for statement in ast.parse(plain).body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(statement.name)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            names |= {
                part.id
                for part in ast.walk(statement)
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
    return names


def _holds_exercise(name: str, source: str, stub: str, at: str) -> None:
    try:
        if name not in defined_names(source):
            raise CourseError(
                f"{at}: exercise {name!r} must define a function {name} or assign to {name}; this cell does neither."
            )
        if stub == source.rstrip("\n"):
            raise CourseError(
                f"{at}: exercise {name!r} marks no solution; put `{BEGIN}` and `{END}` around what the learner writes."
            )
        if name not in defined_names(stub):
            raise CourseError(
                f"{at}: cut, exercise {name!r} no longer defines {name}; put `{BEGIN}` inside the function, below its head."
            )
    except SyntaxError as error:
        raise CourseError(
            f"{at}: exercise {name!r} is not valid Python in line {error.lineno} of the cell ({error.msg})."
        ) from None


def make_lesson(authored: NotebookNode) -> NotebookNode:
    """The notebook a learner opens, from what `read_authored` gives: solutions cut, no outputs."""
    lesson = nbformat.from_dict(json.loads(json.dumps(authored)))
    for cell in lesson.cells:
        if cell.cell_type == "code":
            cell.source = cut(cell.source)
            cell.outputs, cell.execution_count = [], None
    lesson.metadata["trainlean"] = {"cut": digest(lesson)}
    return lesson


def digest(notebook: NotebookNode) -> str:
    """A fingerprint of the cells' types and sources; a lesson carries the one of its cut, so that edits can be told."""
    cells = [[cell.cell_type, cell.source] for cell in notebook.cells]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def is_as_cut(notebook: NotebookNode) -> bool:
    """Whether nobody has changed the cells of a lesson since it was cut (outputs do not count); False for what is no lesson."""
    cut = notebook.metadata.get("trainlean")
    return isinstance(cut, dict) and cut.get("cut") == digest(notebook)
