"""Build lessons/ and solutions/ from authoring/: execute, cut, tell what is stale, give a lesson its stubs back."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from trainlean.notebooks.course import fresh_lesson, original_of
from trainlean.notebooks.notebook import (
    KERNELSPEC,
    Place,
    defined_names,
    exercise_cells,
    find_notebooks,
    first_lines,
    is_as_cut,
    nbgrader_mark,
    read_authored,
    read_notebook,
    shown,
)
from trainlean.workspace import COURSE, CourseError, work_folder, write_whole

SIZE_LIMIT = 500_000  # bytes of a notebook
CELL_TIMEOUT = 120  # seconds; also handed to nbval
OTHER_TEXT = "differs from the authored texts"


class CellError(CourseError):
    """A cell that did not run; `traceback` is what the kernel said (plain text, may be empty)."""

    def __init__(self, message: str, traceback: str = ""):
        super().__init__(message)
        self.traceback = traceback


# ---------------------------------------------------------------- running


def notebook_environment(scratch: Path) -> dict[str, str]:
    """The environment in which a solution is executed and nbval repeats it; the learner's records go below `scratch`.

    One thread and no accelerator: sums then come out in the same order, and counts the same, on every machine.
    """
    fixed = {
        "TRAINLEAN_WORK": str(scratch / "work"),
        "IPYTHONDIR": str(
            scratch / "ipython"
        ),  # neither the user's start-up files nor another run's cluster
        "TRAINLEAN_QUIET": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "ACCELERATE_USE_CPU": "true",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "COLUMNS": "100",
    }
    return {**os.environ, **fixed}


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A fresh folder for one run of a notebook; left-overs of a process that still holds a file do no harm."""
    with tempfile.TemporaryDirectory(prefix="trainlean-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def kernel_processes(manager) -> list:
    """The processes that a kernel has started (engines of a distributed cell, for instance)."""
    import psutil

    try:
        return psutil.Process(manager.provisioner.pid).children(recursive=True)
    except (psutil.NoSuchProcess, AttributeError):
        return []


def end_processes(processes: list, seconds: float = 3.0) -> None:
    """End what a kernel has left running: ask, wait, then kill."""
    import psutil

    from trainlean.processes import still_running

    left = still_running(processes, seconds)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in still_running(left, seconds):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def execute(
    notebook: NotebookNode,
    folder: Path,
    where: str,
    lines: list[int],
    on_cell: Callable[[int], None] | None = None,
) -> None:
    """Run all cells in place, in this Python, with `folder` as working directory.

    `lines[i]` is the line of the authored file where cell i begins. Raises CellError naming file, cell and line.
    """
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpecManager
    from nbclient import NotebookClient
    from nbclient.exceptions import (
        CellExecutionError,
        CellTimeoutError,
        DeadKernelError,
    )

    at = [0]
    processes: list = []

    def started(cell, cell_index):
        at[0] = cell_index
        if on_cell:
            on_cell(cell_index)

    with scratch_folder() as scratch:
        # no kernel folders: the manager then starts the Python that runs this, as nbval does
        manager = AsyncKernelManager(
            kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[])
        )
        client = NotebookClient(
            notebook,
            km=manager,
            timeout=CELL_TIMEOUT,
            startup_timeout=120,
            record_timing=False,
            store_widget_state=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
            on_cell_start=started,
            on_cell_executed=lambda **_: processes.extend(
                p for p in kernel_processes(manager) if p not in processes
            ),
        )
        try:
            # cleanup_kc: the manager is ours, so the client would leave the kernel running
            client.execute(
                cleanup_kc=True, env=notebook_environment(scratch), stderr=subprocess.DEVNULL
            )
        except CellExecutionError as error:
            traceback = re.sub(r"\x1b\[[0-9;]*m", "", error.traceback)
            inside = re.search(r"Cell In\[\d+\], line (\d+)", traceback)
            line = lines[at[0]] + (int(inside[1]) - 1 if inside else 0)
            says = f"{error.ename}: {error.evalue}".splitlines()[0]
            raise CellError(f"{where}:{line}: cell {at[0] + 1} raises {says}", traceback) from None
        except CellTimeoutError:
            raise CellError(
                f"{where}:{lines[at[0]]}: cell {at[0] + 1} ran longer than {CELL_TIMEOUT} s."
            ) from None
        except DeadKernelError:
            raise CellError(
                f"{where}:{lines[at[0]]}: the kernel died in cell {at[0] + 1}; was there enough memory?"
            ) from None
        finally:
            end_processes(processes)
        _settle(notebook)
        for index, cell in enumerate(notebook.cells):
            named = _names_this_machine(cell, scratch)
            if named:
                raise CellError(
                    f"{where}:{lines[index]}: the output of cell {index + 1} names a folder of this machine ({named}); print no absolute paths."
                )


def _settle(notebook: NotebookNode) -> None:
    """Make what execution left stable and small: fixed metadata, and of every widget the picture or text beside it.

    A live widget needs its kernel; without one JupyterLab would show an error in place of the picture.
    """
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": dict(KERNELSPEC), "language_info": {"name": "python"}}
    )
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)


def _names_this_machine(cell, scratch: Path) -> str | None:
    text = json.dumps(
        [
            {k: v for k, v in o.get("data", {}).items() if k != "image/png"}
            | {"text": o.get("text", "")}
            for o in cell.get("outputs", [])
        ]
    )
    folders = [str(COURSE), sys.prefix, str(scratch), str(scratch.resolve())]
    return next((folder for folder in folders if json.dumps(folder)[1:-1] in text), None)


# ---------------------------------------------------------------- building


@dataclass(frozen=True)
class Stale:
    """A built file that is not what a build would give, and why."""

    place: Place
    path: Path
    why: str


def find_stale(places: Iterable[Place]) -> list[Stale]:
    """Every lesson and solution that must be built again.

    Lessons are compared byte for byte with a fresh cut, solutions by their sources and metadata with the authored file,
    and all their cells must have run.
    """
    stale = []
    for place in places:
        authored = read_authored(place)
        for path, why in (
            (place.solution, _why_solution(place.solution, authored)),
            (place.lesson, _why_lesson(place.lesson, fresh_lesson(place, authored))),
        ):
            if why:
                stale.append(Stale(place, path, why))
    return stale


def find_orphans(places: Iterable[Place], course: Path = COURSE) -> list[Path]:
    """Built notebooks whose authored file is gone. A learner's own notebooks among the lessons are none."""
    known = {path for place in places for path in (place.lesson, place.solution)}
    orphans = []
    for root in ("lessons", "solutions"):
        for path in sorted((course / root).rglob("*.ipynb")):
            if path in known or ".ipynb_checkpoints" in path.parts:
                continue
            if root == "solutions" or "trainlean" in read_notebook(path).metadata:
                orphans.append(path)
    return orphans


def _why_lesson(path: Path, fresh: NotebookNode) -> str | None:
    if not path.exists():
        return "is missing"
    try:
        same = path.read_text(encoding="utf-8") == _text(fresh)
    except UnicodeDecodeError:
        same = False
    return None if same else "differs from a fresh cut"


def _why_solution(path: Path, authored: NotebookNode) -> str | None:
    if not path.exists():
        return "is missing"
    try:
        built = read_notebook(path)
    except CourseError as error:
        return f"cannot be read ({error})"
    if [_essence(cell) for cell in built.cells] != [_essence(cell) for cell in authored.cells]:
        return OTHER_TEXT if _code(built) == _code(authored) else "differs from the authored cells"
    if built.metadata != authored.metadata:
        return "has other notebook metadata than a build gives"
    return unfinished(built)


def unfinished(notebook: NotebookNode) -> str | None:
    """What is wrong with an executed notebook: a cell that never ran or that failed; None when all ran."""
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        if cell.execution_count is None:
            return f"has a cell that was never run (cell {number})"
        failed = any(output.output_type == "error" for output in cell.outputs)
        if failed and "raises-exception" not in cell.metadata.get("tags", []):
            return f"has a cell that failed (cell {number})"
    return None


def _essence(cell) -> tuple:
    return cell.get("id"), cell.cell_type, cell.source, json.dumps(cell.metadata, sort_keys=True)


def _code(notebook: NotebookNode) -> list[tuple]:
    """What runs, in its order; where only this is the same, outputs are still those of a run."""
    return [_essence(cell)[1:] for cell in notebook.cells if cell.cell_type == "code"]


def _take_outputs(built: NotebookNode, authored: NotebookNode) -> None:
    ran = (cell for cell in built.cells if cell.cell_type == "code")
    for cell in authored.cells:
        if cell.cell_type == "code":
            before = next(ran)
            cell.outputs, cell.execution_count = before.outputs, before.execution_count


def build(stale: Stale, on_cell: Callable[[int], None] | None = None) -> Path | None:
    """Build one stale file. A lesson that somebody has worked in is kept aside first; the return value says where.

    A solution in which only texts have changed keeps its outputs: nothing of what runs is another.
    """
    authored = read_authored(stale.place)
    if stale.path == stale.place.lesson:
        kept = keep_aside(stale.path) if edited(stale.path) else None
        write(fresh_lesson(stale.place, authored), stale.path)
        return kept
    if stale.why == OTHER_TEXT and not unfinished(built := read_notebook(stale.path)):
        _take_outputs(built, authored)
        write(authored, stale.path)
        return None
    folder = stale.path.parent
    folder.mkdir(parents=True, exist_ok=True)
    text = stale.place.authored.read_text(encoding="utf-8")
    execute(authored, folder, shown(stale.place.authored), first_lines(text, authored), on_cell)
    write(authored, stale.path)
    return None


def edited(path: Path) -> bool:
    """Whether a person has changed a built lesson's cells since it was cut (outputs do not count)."""
    if not path.exists():
        return False
    try:
        return not is_as_cut(read_notebook(path))
    except CourseError:
        return True  # not as we wrote it, so not ours to throw away


def to_reset(name: str, course: Path = COURSE) -> tuple[Place, Path]:
    """The lesson that a name or path means, and its file: of a copy that a learner has saved elsewhere, that one.

    CourseError: there is no such lesson, or the name means several.
    """
    path, places = Path(name), find_notebooks(course=course)
    own = {file.resolve() for place in places for file in (place.lesson, place.solution)}
    if path.suffix == ".ipynb" and path.is_file() and path.resolve() not in own:
        return original_of(path, course), path
    chosen = find_notebooks([name], course)
    if len(chosen) != 1:
        raise CourseError(
            f"{name} holds several lessons; reset one of them: {', '.join(p.name for p in chosen)}."
        )
    return chosen[0], chosen[0].lesson


def reset_lesson(place: Place, path: Path | None = None) -> Path | None:
    """Write the lesson afresh, or the copy of it at `path`; the return value says where the old one was kept (None when there was none)."""
    path = path or place.lesson
    lesson = fresh_lesson(place)
    kept = keep_aside(path) if path.exists() else None
    write(lesson, path)
    return kept


def reset_exercise(place: Place, exercise: str, path: Path | None = None) -> Path | None:
    """Give one exercise cell its stub back and leave the other cells alone; the return value says where the old text was kept.

    `path` is a copy of the lesson; the lesson itself when left out. Copies of the cell are removed; a cell that was deleted comes back before its check cell, else at the end.
    CourseError names the exercises there are where `exercise` is none of them.
    """
    path = path or place.lesson
    fresh = fresh_lesson(place)
    known = {cell.name: fresh.cells[cell.index] for cell in exercise_cells(fresh)}
    if exercise not in known:
        names = ", ".join(known) or "none"
        raise CourseError(f"{place.name} has no exercise {exercise!r}; its exercises: {names}.")
    if not path.exists():
        reset_lesson(place, path)
        return None
    try:
        lesson = read_notebook(path)
    except CourseError as error:
        raise CourseError(
            f"{error} Or reset the whole lesson: `trainlean reset {shlex.quote(shown(path))}`."
        ) from None
    found = [cell for cell in lesson.cells if _is_exercise(cell, exercise)]
    stub = known[exercise]
    kept = None
    if found:
        kept = kept_path(f"{path.resolve().parent.name}-{path.stem}-{exercise}", ".py")
        kept.write_text("\n\n\n".join(cell.source for cell in found) + "\n", encoding="utf-8")
        position = next(i for i, cell in enumerate(lesson.cells) if cell is found[0])
        lesson.cells = [cell for cell in lesson.cells if not any(cell is old for old in found)]
    else:
        checks = [
            i
            for i, cell in enumerate(lesson.cells)
            if nbgrader_mark(cell).get("grade_id") == f"{exercise}-check"
        ]
        position = checks[0] if checks else len(lesson.cells)
    lesson.cells.insert(position, stub)
    write(lesson, path)
    return kept


def _is_exercise(cell, exercise: str) -> bool:
    """Told by the metadata (though it is no code cell any more), else (a cell pasted from elsewhere has none) by what the cell defines."""
    if nbgrader_mark(cell):
        return nbgrader_mark(cell).get("grade_id") == exercise
    if cell.cell_type != "code":
        return False
    try:
        return exercise in defined_names(cell.source)
    except SyntaxError:
        return False


def keep_aside(path: Path) -> Path:
    """Copy a lesson into the work folder, under its name and the time, and say where."""
    kept = kept_path(f"{path.resolve().parent.name}-{path.stem}", path.suffix)
    kept.write_bytes(path.read_bytes())
    return kept


def kept_path(stem: str, suffix: str) -> Path:
    """A new file name in work/kept/, with the time in it."""
    folder = work_folder() / "kept"
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y-%m-%d_%H%M%S")
    names = (
        folder / f"{stem}-{stamp}{extra}{suffix}"
        for extra in ["", *(f"-{n}" for n in range(2, 1000))]
    )
    return next(name for name in names if not name.exists())


def _text(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook, version=4, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def write(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook in one stable form, whole or not at all; CourseError where it is over the size limit."""
    text = _text(notebook)
    size = len(text.encode())
    if size > SIZE_LIMIT:
        largest = max(range(len(notebook.cells)), key=lambda i: len(json.dumps(notebook.cells[i])))
        raise CourseError(
            f"{shown(path)} would have {size // 1000} kB, more than {SIZE_LIMIT // 1000}; cell {largest + 1} is the largest, show less there."
        )
    write_whole(path, text)
