"""Questions from earlier lessons, with fresh numbers each time, whose answers the course's own code computes."""

import copy
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from IPython.display import display

from trainlean.exercises.finding import find_exercise
from trainlean.exercises.questions import (
    Option,
    Question,
    lesson_named,
    note,
    noted,
    question_files,
    questions_asked,
    quiz_of,
    record_answer,
)
from trainlean.exercises.solutions import answer_of
from trainlean.pictures.quiz import Quiz
from trainlean.workspace import CourseError, read_records

KIND = "recall"
EARLIER = "From earlier lessons"
MOST_WRONG = 3  # answers beside the right one
TRIES = 50  # draws of numbers until the wrong answers differ from the right one


def recall(lesson: str, number: int = 3) -> None:
    """Ask `number` questions from the lessons before this one that were taken; those that were not known, and the longest unasked, come first.

    `lesson` is a path such as "1_accumulation/2_accelerator". CourseError: no lesson of that name, or no number of questions.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise CourseError(f"recall asks a whole number of questions from 1, not {number!r}.")
    lesson = lesson_named(lesson)
    if questions_asked() and (quiz := from_earlier(lesson, number)):
        display(quiz)


def from_earlier(lesson: str, number: int = 3) -> Quiz | None:
    """The `number` questions that are due when a lesson begins, noted as asked; None where none is."""
    lessons = list(question_files())
    questions = fresh_questions(taken(lessons[: lessons.index(lesson)]), number)
    return quiz_of(KIND, EARLIER, questions) if questions else None


def fresh_questions(lessons: Iterable[str], number: int) -> list[Question]:
    """The questions of these lessons that are due, with numbers that were not asked before; noted as asked."""
    due = due_names(lessons)[:number]
    asked = [record["name"] for record in noted() if record["kind"] == "asked"]
    questions = []
    for name in due:
        lesson, _, key = name.rpartition("/")
        questions.append(drawn(name, question_files()[lesson].RECALL[key], asked.count(name)))
        note("asked", name)
    return questions


def due_names(lessons: Iterable[str]) -> list[str]:
    """Every question of these lessons as LESSON/NAME, the most due first.

    Known ones (right at the first try, so many times in a row) wait; then it counts how long ago they were asked, then
    each lesson's first question comes before any second one, those of later lessons first.
    """
    known: dict[str, int] = {}
    last_asked: dict[str, int] = {}
    for at, record in enumerate(noted()):
        name = record["name"]
        if record["kind"] == "asked":
            last_asked[name] = at
        elif record["kind"] == KIND and record.get("first"):
            known[name] = known.get(name, 0) + 1 if record.get("right") else 0
    places = [
        (place, -order, f"{lesson}/{name}")
        for order, lesson in enumerate(lessons)
        for place, name in enumerate(getattr(question_files()[lesson], "RECALL", {}))
    ]
    places.sort(key=lambda one: (known.get(one[2], 0), last_asked.get(one[2], -1), *one[:2]))
    return [name for *_, name in places]


def drawn(name: str, make: Callable[[random.Random], Question | None], turn: int) -> Question:
    """The question with the numbers of its `turn`, counted from 0, which no earlier turn had while there are others.

    A draw whose answers cannot be told apart is drawn again. RuntimeError: no draw has two wrong answers.
    """
    found: dict[str, Question] = {}
    for attempt in range(TRIES * (turn + 1)):
        question = make(random.Random(f"{name} {attempt}"))
        if question is not None:
            found.setdefault(
                question.ask, Question(name, question.ask, question.right, question.wrong)
            )
        if len(found) > turn:
            break
    if not found:
        raise RuntimeError(f"{name}: no numbers were found for which two wrong answers differ.")
    return list(found.values())[turn % len(found)]


def computed(
    ask: str, right: tuple[str, str], wrong: Sequence[tuple[str, str]], least: int = 2
) -> Question | None:
    """A question of computed answers, each (text, what is said of it); None where fewer than `least` wrong ones differ.

    Of wrong ones of which the same is said the first is taken; of one that comes of several mistakes, what is said of the first two.
    """
    said: dict[str, list[str]] = {}
    for text, says in wrong:
        if text != right[0] and not any(says in others for others in said.values()):
            said.setdefault(text, []).append(says)
    options = [Option(text, " Or: ".join(says[:2])) for text, says in said.items()]
    if len(options) < least:
        return None
    return Question("", ask, Option(*right), (*options[:MOST_WRONG],))


def by_exercise(
    name: str,
    *arguments,
    ask: str,
    says: str,
    mistakes: Sequence[str],
    shown: Callable[[Any], str] = str,
) -> Question | None:
    """A question whose right answer an exercise's solution computes of `arguments`, and whose wrong ones these known mistakes do.

    `shown` writes a result; `says` is said of the right one, a mistake's own sentence of a wrong one. None where fewer than two
    wrong ones differ. CourseError: no exercise of that name; KeyError: it has no such mistake.
    """
    exercise = find_exercise(name)
    known = {mistake.name: mistake for mistake in exercise.mistakes}

    def value(answer) -> str:
        return shown(answer_of(exercise, answer)(*copy.deepcopy(arguments)))  # type: ignore[operator]

    wrong = [
        (value(answer), known[mistake].why)
        for mistake in mistakes
        for answer in known[mistake].answers
    ]
    return computed(ask, (value({}), says), wrong)


def ask_in_terminal(
    number: int,
    lesson: str | None,
    say: Callable[[str], None],
    read: Callable[[str], str] = input,
) -> int:
    """Put questions in a terminal, of all lessons before and with `lesson`, or that the learner has begun; how many were known at once.

    A letter chooses; an empty line passes over. CourseError: no lesson of that name.
    """
    questions = fresh_questions(begun(lesson), number)
    known = 0
    for place, question in enumerate(questions, 1):
        letters = dict(zip("abcdefgh", question.options, strict=False))
        say(f"\n{place} of {len(questions)}. {question.ask.replace('`', '')}")
        for letter, option in letters.items():
            say(f"  {letter}) {option.text.replace('`', '')}")
        first = True
        while True:
            try:
                given = read(f"{'/'.join(letters)}? ").strip().lower()
            except EOFError:
                return known
            if not given:
                say(f"Passed over. It is: {question.right.text}".replace("`", ""))
                break
            if given not in letters:
                say(f"Choose {', '.join(letters)}, or press Enter to pass over.")
                continue
            chosen = letters[given]
            record_answer(KIND, question, chosen, first)
            right = chosen == question.right
            say(f"{'Right.' if right else 'No.'} {chosen.says}".replace("`", ""))
            if right:
                known += first
                break
            first = False
    say(f"\n{known} of {len(questions)} right at the first try.")
    return known


def begun(lesson: str | None) -> list[str]:
    """The lessons up to this one; without it up to the last one in which an exercise was checked, at least the first."""
    lessons = list(question_files())
    if lesson is None:
        last = max([lessons.index(one) for one in _checked() if one in lessons], default=0)
    else:
        last = lessons.index(lesson_named(lesson))
    return [one for one in lessons[: last + 1] if one == lesson or one not in passed_over()]


def taken(lessons: Sequence[str]) -> list[str]:
    """Those of the lessons in which an exercise was checked; where there is none, all but the optional ones.

    The course has short cuts: its heads name which lessons come before, and those are seldom all that stand before.
    """
    done = _checked()
    return [one for one in lessons if one in done] or [
        one for one in lessons if one not in passed_over()
    ]


def passed_over() -> set[str]:
    """The optional lessons of which no exercise was checked."""
    optional = {name for name, file in question_files().items() if getattr(file, "OPTIONAL", False)}
    return optional - _checked()


def _checked() -> set[str]:
    """The lessons of which an exercise was checked."""
    return {record["notebook"] for record in read_records("progress", notebook=str)}
