"""The command line: lab, build, check, grade, deck, measure, plan, audit, progress, recall, questions, reset, page, site, doctor."""

import enum
import errno
import inspect
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Console

from trainlean.grading.options import GradeOptions, command_parameters
from trainlean.model_list import MODELS
from trainlean.workspace import COURSE, CourseError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train Lean: a notebook course on training models that do not fit.",
)
CUSTOM = Path(__file__).parent / "jupyter" / "custom"
EXTENSIONS = CUSTOM.parent / "extensions"


def say(*lines: str, to_stderr: bool = False) -> None:
    """Print sentences as they are: no markup, no colours, no line broken where a path stands."""
    console = Console(stderr=to_stderr)
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def tell(error: CourseError) -> None:
    """Print an error's sentence, after the kernel's traceback when it comes from a cell."""
    if traceback := getattr(error, "traceback", ""):
        say(traceback.rstrip(), to_stderr=True)
    say(str(error), to_stderr=True)


@app.command()
def lab(
    notebook: Annotated[
        Path | None, typer.Argument(help="the lesson to open; the course's map when left out")
    ] = None,
    browser: Annotated[
        bool, typer.Option(help="open a browser; otherwise the address is printed only")
    ] = True,
) -> None:
    """Open the course in JupyterLab."""
    from trainlean.doctor import prepare_jupyter

    lesson = notebook.resolve() if notebook else None
    if lesson and not lesson.exists():
        raise CourseError(
            f"There is no {lesson}; run `trainlean build` for a lesson of the course, or check the path."
        )
    prepare_jupyter()
    command = lab_command(lesson, browser)
    if os.name == "posix":
        os.execv(
            command[0], command
        )  # Control-C then reaches JupyterLab alone, which asks before it stops
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise typer.Exit(subprocess.call(command))


def lab_command(lesson: Path | None = None, browser: bool = True) -> list[str]:
    """The command that opens a lesson, or the map of the course; its address is printed where no browser can be opened."""
    inside = lesson is None or lesson.is_relative_to(COURSE)
    root = COURSE if inside or lesson is None else lesson.parent
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}"]
    if lesson:
        command += [f"--LabApp.default_url=/lab/tree/{quote(lesson.relative_to(root).as_posix())}"]
    if inside:  # the map, whose links lead to the course's lessons
        command += [
            f"--LabApp.extra_labextensions_path={EXTENSIONS}",
            "--ServerApp.jpserver_extensions=trainlean.site.lab=True",
        ]
    # The lessons' style sheet; what a learner has as custom.css of their own still counts where it has another name.
    command += [
        "--LabApp.custom_css=True",
        f"--ServerApp.tornado_settings=static_custom_path={CUSTOM}",
    ]
    if not browser or not _can_browse():
        command += ["--no-browser"]
    if getattr(os, "geteuid", lambda: 1)() == 0:
        command += ["--allow-root"]  # in a container there is often no other user
    return command


def _can_browse() -> bool:
    import webbrowser

    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


@app.command()
def build(
    notebooks: Annotated[
        list[str] | None, typer.Argument(help="paths or names; the whole course when left out")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="build nothing; list what is stale and exit with 1 if anything is"
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="build what is current, too")] = False,
) -> None:
    """Build lessons/ and solutions/ from authoring/, only what is stale."""
    from trainlean.notebooks import building
    from trainlean.notebooks import notebook as nb

    places = nb.find_notebooks(notebooks or [], COURSE)
    stale = building.find_stale(places)
    if check:
        orphans = [] if notebooks else building.find_orphans(places, COURSE)
        say(*(f"{nb.shown(s.path)} {s.why}." for s in stale))
        say(
            *(f"{nb.shown(path)} has no authored file; remove it or write one." for path in orphans)
        )
        if stale or orphans:
            say(f"Not current: {len(stale) + len(orphans)}. Run `trainlean build`.")
            raise typer.Exit(1)
        say(f"All {len(places)} notebooks are current.")
        return
    if force:
        stale = [
            building.Stale(place, path, "is built again")
            for place in places
            for path in (place.solution, place.lesson)
        ]
    failed = 0
    for number, item in enumerate(stale, 1):
        start = time.perf_counter()
        try:
            title = f"{number} of {len(stale)}: {nb.shown(item.path)}"
            kept = _build_with_bar(item, title)
        except CourseError as error:  # the other notebooks are built all the same
            tell(error)
            failed += 1
        else:
            say(f"{nb.shown(item.path)} {item.why}: built in {time.perf_counter() - start:.1f} s.")
            if kept:
                say(f"It had been worked in; the old text is in {nb.shown(kept)}.")
    asked = 0 if failed else _ask_as_today(places)
    if failed:
        raise typer.Exit(2)
    if not stale and not asked:
        say(f"All {len(places)} notebooks are current; nothing to build.")


def _ask_as_today(places) -> int:
    """Put the questions of built solutions as they are asked today; returns in how many solutions."""
    from trainlean.exercises.asked_in import ask_as_today
    from trainlean.notebooks import building
    from trainlean.notebooks import notebook as nb

    notebooks = 0
    for place in places:
        solution = nb.read_notebook(place.solution)
        if changed := ask_as_today(solution):
            building.write(solution, place.solution)
            say(f"{nb.shown(place.solution)} asks as of today: {changed} put in other words.")
            notebooks += 1
    return notebooks


def _build_with_bar(item, title: str) -> Path | None:
    """Build one notebook behind a bar that counts its cells; where the old text is, if it was worked in."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from trainlean.notebooks import building
    from trainlean.notebooks import notebook as nb

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} cells"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        bar = bars.add_task(title, total=len(nb.read_authored(item.place).cells))
        return building.build(item, lambda index: bars.update(bar, completed=index))


@app.command()
def check(
    notebooks: Annotated[list[Path], typer.Argument(help="the notebooks whose exercises to check")],
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="print a list of {notebook, exercise, outcome, mistake, message, points}"
        ),
    ] = False,
) -> None:
    """Check the exercises of notebooks from outside; the exit status is 0 only if all are right."""
    from trainlean.exercises.checking import check_notebooks

    raise typer.Exit(check_notebooks(notebooks, json))


def grade(**given) -> None:
    """Grade a class; a run that was interrupted goes on with the same command."""
    if os.name != "posix":
        raise CourseError(
            "Grading needs Linux, or macOS with --trust-submissions; on Windows use WSL."
        )
    from trainlean.grading.classroom import grade_class

    raise typer.Exit(grade_class(GradeOptions.of_command(given)))


# The options are listed once, there. Typer reads them here; mypy's functions have no such attribute.
grade.__signature__ = inspect.Signature(command_parameters())  # type: ignore[attr-defined]
app.command()(grade)


@app.command()
def measure(
    model: Annotated[
        str | None,
        typer.Option(
            help=f"{' or '.join(MODELS)}; when left out, small, or bert-large with TRAINLEAN_DEVICE=cuda"
        ),
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(
            help="a row's key, such as vanilla, or a point of the curve, such as 4x16; may be given several times"
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="timed epochs of each row; 3 when left out")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="where the picture goes; table.png in the work folder when left out"),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            help="also write the runs into this file, such as data/measurements/NAME.json"
        ),
    ] = None,
) -> None:
    """Measure the rows of the published table on this machine, each in a fresh process, beside the published ratios.

    On the CPU, also where there is a card: the variable TRAINLEAN_DEVICE=cuda goes there.
    """
    from trainlean.table.command import measure_table

    measure_table(model, rows, repeats=repeats, picture=picture, record=record)


@app.command()
def audit(
    function: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:train",
            help="a function train(micro_batch, accumulation_steps) that trains a small model from scratch",
        ),
    ],
    batch: Annotated[int, typer.Option(help="samples to an optimizer step, of all ranks")] = 64,
    accumulate: Annotated[int, typer.Option(help="accumulation steps")] = 4,
    checkpointing: Annotated[
        bool,
        typer.Option(
            "--checkpointing",
            help="compare train(..., checkpointing=True) with checkpointing=False instead",
        ),
    ] = False,
    ranks: Annotated[
        int, typer.Option(help="compare so many processes with the large batch on one")
    ] = 1,
    json: Annotated[bool, typer.Option("--json", help="print the verdict for programs")] = False,
) -> None:
    """Compare a training in micro-batches with its own large batch, and name what differs; exit with 1 unless it is the same training."""
    from trainlean.audit.command import audit_file

    found = audit_file(
        function,
        batch=batch,
        accumulate=accumulate,
        checkpointing=checkpointing,
        ranks=ranks,
        json=json,
    )
    if not found.same:
        raise typer.Exit(1)


@app.command()
def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="a folder with a transformers config.json, such a file, or file.py:function, which returns model, sample batch and loss (a function of the two)"
        ),
    ],
    memory: Annotated[str, typer.Option(help="of one device, such as 16GB or 16GiB")],
    batch: Annotated[int, typer.Option(help="samples to an optimizer step, of all devices")],
    sequence_length: Annotated[
        int | None, typer.Option(help="tokens of a sample; 512 when left out")
    ] = None,
    devices: Annotated[int, typer.Option(help="how many train together")] = 1,
    link: Annotated[
        str | None, typer.Option(help='between the devices, such as "1 Gbit/s" or office')
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="of a configuration, such as causal-lm; its own when left out"),
    ] = None,
    lora: Annotated[
        int | None, typer.Option(help="train LoRA adapters of this rank instead of all weights")
    ] = None,
    optimizer: Annotated[
        list[str] | None,
        typer.Option(help="one that may be used; several times for several; adamw when left out"),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(help="fp32, bf16 or fp16; several times for several; fp32 when left out"),
    ] = None,
    attention: Annotated[
        list[str] | None, typer.Option(help="sdpa or eager; when left out both, on a card sdpa")
    ] = None,
    checkpointing: Annotated[
        list[str] | None,
        typer.Option(
            help='off, "every layer", "every 2 layers", selective; several times for several; these four when left out'
        ),
    ] = None,
    local_steps: Annotated[
        list[int] | None,
        typer.Option(help="of Local SGD, shown beside DDP with several devices; 8 when left out"),
    ] = None,
    padded: Annotated[bool, typer.Option("--padded", help="samples differ in length")] = False,
    card: Annotated[
        str | None, typer.Option(help="plan for this card: t4, v100, a100, l4, h100 or rtx4090")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu or gpu, whose memory is counted; cpu without a card"),
    ] = None,
    write: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            metavar="KIND FILE",
            help="write a script with the first row: pytorch, accelerate or trainer, and its file",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="draw all settings that fit, memory against speed, as a PNG file"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print the plan for programs")] = False,
) -> None:
    """Find the micro-batch, accumulation steps and checkpointing with which a model trains in a memory budget."""
    from trainlean.plan.command import make_plan

    if picture and picture.suffix != ".png":
        raise CourseError(f"The picture is a PNG file, such as plan.png, not {picture}.")
    found = make_plan(
        model,
        memory=memory,
        batch=batch,
        sequence_length=sequence_length,
        devices=devices,
        link=link,
        task=task,
        lora=lora,
        optimizers=optimizer,
        precisions=precision,
        attentions=attention,
        checkpointings=checkpointing,
        local_steps=local_steps,
        padded=padded,
        card=card,
        device=device,
        write=write,
        json=json,
    )
    if picture:
        from trainlean.pictures.front import plot_front

        picture.write_bytes(plot_front(found.runs, found.budget).png())


@app.command()
def progress() -> None:
    """Show which exercises are right so far, over the whole course."""
    from trainlean.exercises.progress import show_progress

    show_progress()


@app.command()
def recall(
    lesson: Annotated[
        str | None,
        typer.Argument(
            help="up to which lesson, such as 1_accumulation/1_pytorch; those that were begun when left out"
        ),
    ] = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="how many questions")] = 5,
) -> None:
    """Ask questions from the lessons so far, with fresh numbers; what was not known comes again first."""
    from trainlean.exercises.recall import ask_in_terminal

    ask_in_terminal(number, lesson, say)


class Switch(enum.StrEnum):
    """Of what may be shown or not."""

    on = "on"
    off = "off"


@app.command()
def questions(
    switch: Annotated[Switch, typer.Argument(help="on or off")],
) -> None:
    """Show the lessons' questions (reasons, lines to order, recall, your own loop), or leave them off the page."""
    from trainlean.exercises.questions import ask_questions

    ask_questions(switch is Switch.on)
    say(f"The lessons' questions are {switch.value}; cells that have run keep what they show.")


@app.command()
def deck(
    tally: Annotated[
        Path | None,
        typer.Argument(
            help="a class's grades_mistakes.csv, for the histograms; without it no class is shown"
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="where the slides go")] = Path(
        "deck.html"
    ),
    lessons: Annotated[
        list[str] | None,
        typer.Option("--lesson", help="a lesson or unit; may be given several times"),
    ] = None,
    most: Annotated[
        int, typer.Option(min=1, help="slides of one exercise: its most frequent mistakes")
    ] = 3,
) -> None:
    """Write the known mistakes as slides with choices, and what a class did, for the next hour (one HTML file)."""
    from trainlean.grading.deck import write_deck

    say(
        f"{output} is written with {write_deck(output, tally, lessons or (), most)} slides; open it in a browser."
    )


@app.command()
def reset(
    notebook: Annotated[str, typer.Argument(help="the lesson, as a path or by name")],
    exercise: Annotated[
        str | None, typer.Argument(help="one exercise of it; the whole lesson when left out")
    ] = None,
) -> None:
    """Give a lesson (or your copy of it) or one exercise its stub back; the old text is kept aside."""
    from trainlean.notebooks import building
    from trainlean.notebooks import notebook as nb

    place, path = building.to_reset(notebook, COURSE)
    try:
        kept = (
            building.reset_exercise(place, exercise, path)
            if exercise
            else building.reset_lesson(place, path)
        )
    except OSError as error:
        if isinstance(error, CourseError):
            raise
        raise CourseError(
            f"Nothing is reset: {error.filename} cannot be written ({error.strerror})."
        ) from None
    what = f"Exercise {exercise} of {nb.shown(path)}" if exercise else nb.shown(path)
    say(f"{what} is as new." + (f" The old text is in {nb.shown(kept)}." if kept else ""))
    say("If the lesson is open in JupyterLab, choose File > Reload Notebook from Disk.")


@app.command()
def page(
    notebook: Annotated[Path, typer.Argument(help="the notebook, with its outputs")],
    output: Annotated[
        Path | None, typer.Option(help="where the page goes; beside the notebook when left out")
    ] = None,
) -> None:
    """Write a notebook as a page whose explorer and player play without a kernel and a network."""
    from trainlean.pages import write_page

    say(f"{write_page(notebook, output)} is written; open it in a browser.")


@app.command()
def site(
    folder: Annotated[Path, typer.Argument(help="where the site goes")] = Path("site"),
) -> None:
    """Write the course as pages, with map, search and glossary, which need neither a kernel nor a network."""
    from trainlean.site.writing import write_site

    written = write_site(folder)
    say(
        f"{written.pages} pages are written, the largest of {written.largest / 1e6:.1f} MB; open {written.folder / 'index.html'} in a browser."
    )


@app.command()
def doctor() -> None:
    """Look at the installation and say what to do about each problem."""
    from trainlean.doctor import examine, show

    findings = examine()
    show(findings)
    raise typer.Exit(1 if any(finding.state == "broken" for finding in findings) else 0)


def main() -> None:
    """Run a command; a CourseError becomes its sentence and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # a learner's name may have letters that this terminal has not
            stream.reconfigure(errors="replace")
    try:
        try:
            app()
        finally:
            if sys.stdout:  # None where it was closed before
                sys.stdout.flush()
    except CourseError as error:
        tell(error)
        sys.exit(2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EPIPE) or error.filename is not None:
            raise
        # Else Python would try once more to write what is left, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno == errno.ENOSPC:
            say(f"Not all could be written: {error.strerror}.", to_stderr=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
