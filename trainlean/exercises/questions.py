"""Questions that a lesson asks besides its exercises: what they are, where they are written, how they are shown and recorded.

A lesson's own stand in `exercises_tests/UNIT/LESSON/questions.py` (see CONTRIBUTING.md).
"""

import importlib
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from types import ModuleType
from typing import NamedTuple

from IPython.display import display

from trainlean.exercises.finding import PACKAGE
from trainlean.pictures.quiz import Quiz
from trainlean.workspace import (
    COURSE,
    CourseError,
    append_record,
    keep_record,
    read_records,
    tell_once,
)

WHY = "Why is that so?"


class Option(NamedTuple):
    """An answer to choose, and what is said once it is chosen; what stands between backticks is code."""

    text: str
    says: str


@dataclass(frozen=True)
class Question:
    """A question with its right answer and two or more wrong ones; `name` is what the records call it."""

    name: str
    ask: str
    right: Option
    wrong: tuple[Option, ...]

    @property
    def options(self) -> list[Option]:
        """All answers in an order of this question's own: always the same for the same answers."""
        options = [self.right, *self.wrong]
        random.Random(f"{self.name} {self.ask}").shuffle(options)
        return options


def question(
    name: str, ask: str, right: tuple[str, str], *wrong: tuple[str, str]
) -> dict[str, Question]:
    """A question under its name, of answers that are pairs: (text, what is said once it is chosen)."""
    return {name: Question(name, ask, Option(*right), tuple(Option(*one) for one in wrong))}


def questions_asked() -> bool:
    """Whether questions are shown: until `trainlean questions off` is said."""
    said = [record.get("questions") for record in read_records("settings")]
    return [True, *(on for on in said if isinstance(on, bool))][-1]


def ask_questions(on: bool) -> None:
    """Show questions from now on, or leave them off the lessons; the one setting of all of them. NotKept: it cannot be written."""
    append_record("settings", {"questions": on, "created": now()})


@cache
def question_files() -> dict[str, ModuleType]:
    """The questions.py of each lesson that has one, by the lesson, in course order."""
    if str(COURSE) not in sys.path:
        sys.path.insert(0, str(COURSE))  # exercises_tests is no part of the installed package
    root = COURSE / PACKAGE
    lessons = [
        path.parent.relative_to(root).as_posix()
        for path in sorted(root.glob("[0-9]*/[0-9]*/questions.py"))
    ]
    return {
        lesson: importlib.import_module(f"{PACKAGE}.{lesson.replace('/', '.')}.questions")
        for lesson in lessons
    }


def written(kind: str, name: str):
    """What a lesson's questions.py has under this name in its dictionary `kind`; None where no lesson has it."""
    files = question_files().values()
    return next((some[name] for file in files if name in (some := getattr(file, kind, {}))), None)


def lesson_named(name: str) -> str:
    """A lesson by its path or a part of it that only it has. CourseError names the lessons where none or several match."""
    lessons = list(question_files())
    found = [lesson for lesson in lessons if lesson == name] or [
        lesson for lesson in lessons if str(name) in lesson
    ]
    if len(found) != 1:
        raise CourseError(f"There is no one lesson {name!r}; the lessons are {', '.join(lessons)}.")
    return found[0]


def because(name: str) -> None:
    """Ask for the reason behind a value that was guessed and is now revealed; nothing where none was written."""
    if questions_asked() and (quiz := reason(name)):
        display(quiz)


def reason(name: str) -> Quiz | None:
    """The question for the reason behind a guessed value; None where none was written."""
    question = written("BECAUSE", name)
    return quiz_of("because", WHY, [question]) if question else None


def quiz_of(kind: str, title: str, questions: Sequence[Question]) -> Quiz:
    """Questions below each other, which keep each answer in the records."""
    lists = [question.options for question in questions]
    asked = [
        {
            "ask": question.ask,
            "options": [
                {"text": option.text, "says": option.says, "right": option == question.right}
                for option in options
            ],
        }
        for question, options in zip(questions, lists, strict=True)
    ]

    def keep(number: int, option: int, first: bool) -> None:
        question, chosen = questions[number], lists[number][option]
        record_answer(kind, question, chosen, first)

    return Quiz(title, asked, keep)


def record_answer(kind: str, question: Question, chosen: Option, first: bool) -> None:
    """Keep an answer; `first` is the question's first one, which tells what was known."""
    note(
        kind,
        question.name,
        chosen=chosen.text,
        right=chosen == question.right,
        first=first,
    )


def note(kind: str, name: str, **more) -> None:
    """Keep what was asked or answered; where it cannot be kept, that is said once, and the questions go on."""
    record = {"kind": kind, "name": name, **more, "created": now()}
    if unkept := keep_record("questions", record):
        tell_once(f"Questions and answers could not be kept. {unkept}")


def noted() -> list[dict]:
    """What was asked and answered so far, oldest first."""
    return read_records("questions", kind=str, name=str)


def now() -> str:
    """The time as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
