"""The options of `trainlean grade`: one object, from which the command line is read off."""

import dataclasses
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from trainlean.grading import formats
from trainlean.grading.formats.format import Format
from trainlean.workspace import CourseError

LAST_SEED = 2**32 - 1  # numpy's; other generators take more


@dataclass(frozen=True)
class GradeOptions:
    """What a run of `trainlean grade` was asked for. CourseError for what cannot be meant."""

    submissions: Annotated[
        Path,
        typer.Argument(
            help="a folder or zip with a folder, zip or notebook for each learner; what Canvas and Moodle produce, too"
        ),
    ]
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="the gradebook; everything else is written beside it"),
    ] = Path("grades.csv")
    lessons: Annotated[
        list[str],
        typer.Option(
            "--lesson",
            help="a lesson or unit that is due, such as 1_accumulation; may be given several times",
        ),
    ] = ()  # type: ignore[assignment]  # typer needs the list; `__post_init__` makes a tuple of it
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=LAST_SEED, help="put the questions of an earlier run again"),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="submissions at the same time; one for each core when left out"),
    ] = None
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="only show who handed in what, and what cannot be read"),
    ] = False
    overlay: Annotated[
        Path | None, typer.Option(help="a private folder of exercises and mistakes")
    ] = None
    late: Annotated[
        Path | None, typer.Option(help="a Python file with a function late(points, submission)")
    ] = None
    cluster: Annotated[
        str | None, typer.Option(help="grade on the engines of this ipyparallel profile")
    ] = None
    trust_submissions: Annotated[
        bool,
        typer.Option(
            "--trust-submissions",
            help="grade even where nothing protects your files from the submissions",
        ),
    ] = False
    formats: tuple[Format, ...] = ()

    def __post_init__(self):
        for name, change in {"submissions": Path, "output": Path, "lessons": tuple}.items():
            object.__setattr__(self, name, change(getattr(self, name)))
        if self.output.suffix.lower() != ".csv":
            raise CourseError(
                f"--output is the gradebook and must end in .csv, not {self.output.name}."
            )
        if self.workers is not None and self.workers < 1:
            raise CourseError(f"--workers is {self.workers}; expected 1 or more.")
        if self.seed is not None and not 0 <= self.seed <= LAST_SEED:
            raise CourseError(f"--seed is {self.seed}; expected 0 to {LAST_SEED}.")
        for one in self.formats:
            one.check()

    @classmethod
    def of_command(cls, given: dict) -> "GradeOptions":
        """The options from the values of the command line, by the names of `command_parameters`.

        CourseError where an option of a format is given without the format.
        """
        given = dict(given)
        chosen = []
        for kind in formats.FORMATS:
            values = {name: given.pop(option) for option, name, _ in _format_options(kind)}
            if values["path"] is not None:
                chosen.append(kind(**values))
            elif any(value is not None for value in values.values()):
                raise CourseError(f"An option of {kind.name} is given without --{kind.option}.")
        return cls(**given, formats=tuple(chosen))


def command_parameters() -> list[inspect.Parameter]:
    """The parameters of the command, each with its help: those of GradeOptions, then those of every format."""
    hints = get_type_hints(GradeOptions, include_extras=True)
    own = [
        _parameter(field.name, hints[field.name], field.default)
        for field in dataclasses.fields(GradeOptions)
        if field.name != "formats"
    ]
    more = [
        _parameter(option, Annotated[hint.__origin__ | None, *hint.__metadata__], None)
        for kind in formats.FORMATS
        for option, _, hint in _format_options(kind)
    ]
    return own + more


def _format_options(kind: type[Format]) -> Iterator[tuple[str, str, Any]]:
    """(name on the command line, field, annotation) of each of a format's options."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        option = kind.option if field.name == "path" else f"{kind.option}_{field.name}"
        yield option, field.name, hints[field.name]


def _parameter(name: str, annotation, default) -> inspect.Parameter:
    default = inspect.Parameter.empty if default is dataclasses.MISSING else default
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
