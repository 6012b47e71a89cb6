"""Questions about a learner's own loop, made from a recorded run of it after it was found right."""

import ast
import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass

from trainlean.exercises.questions import Option, Question, questions_asked, show, written
from trainlean.exercises.seeing import undisturbed
from trainlean.recordings.loops import Frame, Trace, record, updates

MOST_LINES = 3  # wrong lines to choose from


@dataclass(frozen=True)
class OwnRun:
    """A run of a learner's loop on a few micro-batches: what was run, in words, and its recording.

    The frames have "gradient" and "weight" of a model with one weight, and "micro-batch", the number of the one that last went
    forward, counted from 1.
    """

    said: str
    trace: Trace


class Watched:
    """A model of one weight that knows which of its micro-batches is at work, whatever the loop around it calls things."""

    def __init__(self, micro_batches: list[tuple], model):
        self.model, self.number = model, None
        places = {
            float(inputs.flatten()[0]): i for i, (inputs, _) in enumerate(micro_batches, start=1)
        }

        def forward(_, positional, named):
            inputs = [*positional, *named.values()][0]
            self.number = places.get(float(inputs.flatten()[0]), self.number)

        model.register_forward_pre_hook(forward, with_kwargs=True)
        self.weight = next(model.parameters())
        self.watch = {
            "weight": lambda _: self.weight,
            "gradient": lambda _: self.weight.grad,
            "micro-batch": lambda _: self.number,
        }

    def record(self, loop: Callable, *arguments) -> Trace:
        """The recording of `loop(*arguments)`; raises what the loop raises."""
        return record(loop, *arguments, watch=self.watch)


def ask_about_own_loop(name: str, answer: object) -> None:
    """Ask about the run of a right answer; nothing where none was written for the exercise, or the answer cannot be recorded."""
    make = written("OWN_RUNS", name)
    if make is None or not questions_asked():
        return
    try:
        with undisturbed(0), contextlib.redirect_stdout(io.StringIO()):
            run = make(answer)
    except (
        Exception
    ):  # the answer is right; that it cannot be recorded here is no matter of the learner's
        return
    if found := questions_about(name, run):
        show("own loop", f"About your own loop, {run.said}", found)


def questions_about(name: str, run: OwnRun) -> list[Question]:
    """The questions that the recording can answer, at the most three."""
    frames = run.trace.frames
    found = [
        _which_line(
            f"{name}: gradient",
            "Which of your lines put the first gradient into `.grad`?",
            run.trace,
            _first(frames, "gradient"),
            ("`.grad` was empty", "`.grad` had its first gradient"),
        ),
        _which_micro_batches(f"{name}: steps", frames),
        _which_line(
            f"{name}: weight",
            "Which of your lines moved the weight for the first time?",
            run.trace,
            updates(frames)[0] if updates(frames) else None,
            ("the weight had not moved", "the weight had moved"),
        )
        if updates(frames)
        else _how_many_parts(f"{name}: parts", frames),
    ]
    return [question for question in found if question]


def _first(frames: list[Frame], name: str) -> int | None:
    return next((i for i, frame in enumerate(frames) if frame.values[name]), None)


def _which_line(
    name: str, ask: str, trace: Trace, event: int | None, states: tuple[str, str]
) -> Question | None:
    """Which line was executed when something happened (`event`, the number of its frame). `states`: before and after it."""
    if event is None:
        return None
    source, start_of = trace.source.splitlines(), statement_starts(trace.source)

    def shown(line: int) -> str:
        more = " ..." if line + 1 in start_of and start_of[line + 1] == line else ""
        return f"line {line}: `{source[line - 1].strip().replace('`', '')}{more}`"

    lines = [start_of.get(frame.line, frame.line) for frame in trace.frames]
    right = lines[event]
    at: dict[int, int] = {}  # when each statement ran first
    for i, line in enumerate(lines):
        at.setdefault(line, i)
    others = sorted((line for line in at if line != right), key=lambda line: abs(at[line] - event))
    before, after = states
    wrong = [
        Option(
            shown(line),
            f"When line {line} had run for the first time, {before}."
            if at[line] < event
            else f"When line {line} ran for the first time, {after}: line {right} had come before it.",
        )
        for line in sorted(others[:MOST_LINES])
    ]
    if len(wrong) < 2:
        return None
    return Question(
        name, ask, Option(shown(right), f"Before this line {before}; after it {after}."), (*wrong,)
    )


def statement_starts(source: str) -> dict[int, int]:
    """The first line of the statement that each line belongs to; the head of a loop or a condition is one of its own."""
    starts: dict[int, int] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            for line in range(node.lineno, max(end, node.lineno) + 1):
                starts[line] = max(node.lineno, starts.get(line, 0))
    return starts


def _which_micro_batches(name: str, frames: list[Frame]) -> Question | None:
    """After which micro-batches the weight moved."""
    moved = [frames[i].values["micro-batch"] for i in updates(frames)]
    if not moved or None in moved:
        return None
    steps = [int(number) for number in moved if number is not None]
    last = max(int(frame.values["micro-batch"] or 0) for frame in frames)
    weights = {int(f.values["micro-batch"]): f.values["weight"] for f in frames if f.values["micro-batch"]}  # fmt: skip

    def told(numbers: list[int]) -> str:
        return "after " + ", ".join(map(str, numbers))

    every, late = [*range(1, last + 1)], sorted({min(step + 1, last) for step in steps})
    candidates = [
        (every, f"A step for each micro-batch: but after micro-batch 1 the weight stood at {weights[1]:.4g}, where it began."),
        (steps[:-1], f"The run does not end there: the weight moved once more, after micro-batch {steps[-1]}."),
        (late, f"That is one too late: the weight first moved right after micro-batch {steps[0]}."),
        ([1, *steps], f"Micro-batch 1 only began the window: the weight stood still until micro-batch {steps[0]} had gone through."),
    ]  # fmt: skip
    wrong = [
        Option(told(numbers), says)
        for numbers, says in candidates
        if numbers and sorted(set(numbers)) != steps and not (numbers is every and 1 in steps)
    ]
    wrong = list({option.text: option for option in wrong}.values())[:3]
    if len(wrong) < 2:
        return None
    return Question(
        name,
        f"{last} micro-batches went through. After which of them did the weight move?",
        Option(told(steps), f"{len(steps)} times in all: that many windows were complete."),
        (*wrong,),
    )


def _how_many_parts(name: str, frames: list[Frame]) -> Question | None:
    """In how many parts the gradient grew, in a loop that makes no step."""
    gradients = [frame.values["gradient"] or 0.0 for frame in frames]
    changes = [b for a, b in zip([0.0, *gradients], gradients, strict=False) if a != b]
    last = max(int(frame.values["micro-batch"] or 0) for frame in frames)
    parts = len(changes)
    if not parts:
        return None
    wrong = [
        Option(
            str(count),
            f"It changed again after change {count}, from {changes[count - 1]:.4g} to {changes[count]:.4g}."
            if count < parts
            else f"Recorded were {parts}, {count - parts} fewer, over {last} micro-batches.",
        )
        for count in sorted({1, last - 1, last, last + 1, 2 * last} - {0, parts})
    ]
    return Question(
        name,
        f"{last} micro-batches went through. How many times did `.grad` change?",
        Option(str(parts), f"The last change left it at {gradients[-1]:.4g}."),
        (*wrong[:3],),
    )
