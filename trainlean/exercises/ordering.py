"""The lines of an exercise's solution to put in order, among them wrong ones out of its known mistakes."""

import random
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from IPython.display import display

from trainlean.exercises.exercise import Exercise
from trainlean.exercises.finding import find_exercise
from trainlean.exercises.questions import note, questions_asked, written
from trainlean.exercises.solutions import edited_solution
from trainlean.notebooks.notebook import BEGIN, END
from trainlean.pictures.lines import Lines
from trainlean.workspace import CourseError

STEP = 4  # spaces of an indentation
Placed = tuple[tuple[str, int], ...]  # the lines of an answer, each with its indentation in steps


@dataclass(frozen=True)
class Puzzle:
    """Which known mistakes give the wrong lines, and how else the solution's lines, numbered from 1, are right.

    `exchange`: pairs of statements, by their first lines, that may change places where they are neighbours.
    `moves`: (statement, line behind which it may stand as well, its indentation in steps there); 0 is the beginning.
    A statement takes with it what stands below it, and what is right after one exchange or move goes on from there.
    """

    mistakes: tuple[str, ...]
    exchange: tuple[tuple[int, int], ...] = ()
    moves: tuple[tuple[int, int, int], ...] = ()


def put_in_order(name: str | Callable) -> None:
    """Show the lines of an exercise's solution, mixed and with wrong ones among them, to put in order before it is written.

    A function stands for its name, as for `check` and `hint`. CourseError: no exercise of that name, or none with such lines.
    """
    exercise = find_exercise(
        name if isinstance(name, str) else getattr(name, "__name__", str(name))
    )
    if questions_asked():
        display(lines_to_order(exercise))


def lines_to_order(exercise: Exercise) -> Lines:
    """The lines of an exercise's solution, mixed. CourseError: none are written for this exercise."""

    def keep(right: bool, mistake: str) -> None:
        note("lines", exercise.name, right=right, mistake=mistake)

    return Lines(puzzle_of(exercise), keep)


def puzzle_of(exercise: Exercise) -> dict:
    """The puzzle as the widget needs it. CourseError: none is written for this exercise."""
    puzzle = written("LINES", exercise.name)
    if puzzle is None:
        raise CourseError(f"{exercise.name} has no lines to put in order.")
    solution = lines_of(exercise, {})
    wrong = wrong_lines(exercise, puzzle)
    lines = [*(text for text, _ in solution), *wrong]
    random.Random(exercise.name).shuffle(lines)

    def numbered(placed: Placed) -> list[list[int]]:  # of lines that are the same, the first
        return [[lines.index(text), depth] for text, depth in placed]

    known = [
        {"placed": numbered(placed), "name": name, "why": why, "hint": hint}
        for placed, (name, why, hint) in known_arrangements(exercise).items()
        if placed and Counter(text for text, _ in placed) <= Counter(lines)
    ]
    return {
        "name": exercise.name,
        "title": f"Before you write {exercise.name}: put its {len(solution)} lines in order; {len(wrong)} wrong ones are among them.",
        "head": _head(exercise),
        "lines": lines,
        "accepted": [numbered(placed) for placed in accepted(exercise, puzzle)],
        "known": known,
        "wrong": [lines.index(text) for text in wrong],
    }


def accepted(exercise: Exercise, puzzle: Puzzle) -> list[Placed]:
    """The solution's lines in every order in which they are right."""
    solution = lines_of(exercise, {})
    free = {frozenset(pair) for pair in puzzle.exchange}
    start = tuple((number, depth) for number, (_, depth) in enumerate(solution, 1))
    found = {start: None}
    for order in (waiting := [start]):
        others = [
            exchanged
            for exchanged, pair in neighbours_exchanged(order)
            if frozenset(number for number, _ in pair) in free
        ]
        others += filter(None, (_moved(order, *move) for move in puzzle.moves))
        for other in others:
            if other not in found:
                found[other] = None
                waiting.append(other)
    texts = [text for text, _ in solution]
    return list(dict.fromkeys(tuple((texts[n - 1], deep) for n, deep in one) for one in found))


def neighbours_exchanged(lines: tuple[tuple, ...]) -> Iterator[tuple[tuple, tuple[tuple, tuple]]]:
    """Lines, each with its indentation, with every two statements exchanged that stand next to each other; and the two's first lines."""
    for start, first in enumerate(lines):
        middle = _end(lines, start)
        if middle < len(lines) and lines[middle][1] == first[1]:
            end = _end(lines, middle)
            order = lines[:start] + lines[middle:end] + lines[start:middle] + lines[end:]
            yield order, (first, lines[middle])


def _moved(lines: tuple[tuple, ...], number: int, behind: int, depth: int) -> tuple | None:
    """The order with a statement at its other place; None where the indentation would be none of Python's."""
    numbers = [one for one, _ in lines]
    start = numbers.index(number)
    end = _end(lines, start)
    block, rest = lines[start:end], lines[:start] + lines[end:]
    places = [0, *(one for one, _ in rest)]
    if behind not in places:
        return None
    at = places.index(behind)
    deeper = depth - block[0][1]
    order = (*rest[:at], *((one, deep + deeper) for one, deep in block), *rest[at:])
    heads = {one for (one, deep), (_, below) in pairwise(lines) if below > deep}
    blocks = ((one in heads) == (below > deep) for (one, deep), (_, below) in pairwise(order))
    return order if all(blocks) and order[-1][0] not in heads else None


def _end(lines: tuple[tuple, ...], start: int) -> int:
    """Where the statement that begins at `start` ends, with what stands below it."""
    outside = (i for i in range(start + 1, len(lines)) if lines[i][1] <= lines[start][1])
    return next(outside, len(lines))


def wrong_lines(exercise: Exercise, puzzle: Puzzle) -> dict[str, str]:
    """The lines that these mistakes have and the solution has not, each with its mistake's name.

    CourseError: the exercise has no such mistake, or that has no line of its own.
    """
    right = {text for text, _ in lines_of(exercise, {})}
    known = {mistake.name: mistake for mistake in exercise.mistakes}
    found: dict[str, str] = {}
    for name in puzzle.mistakes:
        if name not in known:
            raise CourseError(f"{exercise.name} has no mistake {name!r}.")
        answers = [
            [text for text, _ in lines_of(exercise, answer) if text not in right]
            for answer in known[name].answers
            if isinstance(answer, dict)
        ]
        own = min(filter(None, answers), key=len, default=[])
        if not own:
            raise CourseError(f"The mistake {name!r} of {exercise.name} has no line of its own.")
        for text in own:
            found.setdefault(text, name)
    return found


def known_arrangements(exercise: Exercise) -> dict[Placed, tuple[str, str, str]]:
    """Each mistake that is written as an edit, by the lines that it leaves: name, why, hint."""
    return {
        lines_of(exercise, answer): (mistake.name, mistake.why, mistake.hint)
        for mistake in reversed(exercise.mistakes)
        for answer in mistake.answers
        if isinstance(answer, dict)
    }


def lines_of(exercise: Exercise, edit: dict) -> Placed:
    """The lines between the marks of the solution, with this edit made."""
    source = edited_solution(exercise, edit)
    region = source.split(BEGIN, 1)[1].split("\n", 1)[1].split(END, 1)[0]
    return tuple(
        (line.strip(), (len(line) - len(line.lstrip())) // STEP)
        for line in region.splitlines()
        if line.strip()
    )


def source_of(exercise: Exercise, placed: Placed) -> str:
    """The exercise's cell with these lines as its answer."""
    source = edited_solution(exercise, {})
    head = source.split(BEGIN, 1)[0].rstrip(" ")
    return head + "".join(f"{' ' * STEP * depth}{text}\n" for text, depth in placed)


def _head(exercise: Exercise) -> str:
    """The line or lines of `def` above the answer."""
    source = edited_solution(exercise, {}).split(BEGIN, 1)[0]
    return textwrap.dedent(source.split('"""', 1)[0]).strip()
