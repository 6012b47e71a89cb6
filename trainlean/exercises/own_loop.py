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

    The frames have "micro-batch", the number of the one that last went forward, counted from 1, "gradient" and "weight" of a
    model with one weight, and on a rank "met", how many collectives it has taken part in. A lazy loop's have "graphs" and
    "steps" in place of the weight, which nobody can read without running a graph: how many have run, and the optimizer's steps.
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
    watched = run.trace.frames[0].values if run.trace.frames else {}
    kind = _of_graphs if "graphs" in watched else _of_a_rank if "met" in watched else _of_a_weight
    return [question for question in kind(name, run.trace) if question]


def _of_a_weight(name: str, trace: Trace) -> list[Question | None]:
    return [
        _first_gradient(name, trace),
        _which_micro_batches(f"{name}: steps", trace.frames),
        _first_move(name, trace)
        if updates(trace.frames)
        else _how_many_parts(f"{name}: parts", trace.frames),
    ]


def _of_a_rank(name: str, trace: Trace) -> list[Question | None]:
    meetings = _meetings(trace.frames)
    return [
        _first_gradient(name, trace),
        _where_ranks_met(f"{name}: averages", trace.frames),
        _which_line(
            f"{name}: meeting",
            "After the start, which of your lines brought the ranks together for the first time?",
            trace,
            meetings[0] if meetings else None,
            ("the ranks had not met again", "they had met"),
        ),
    ]


def _of_graphs(name: str, trace: Trace) -> list[Question | None]:
    frames = trace.frames
    stepped = _first(frames, "steps")
    updated = None
    if stepped is not None:
        known = frames[stepped].values["graphs"] or 0
        updated = next(
            (i for i, one in enumerate(frames) if i > stepped and one.values["graphs"] != known),
            None,
        )
    return [
        _which_line(
            f"{name}: first graph",
            "Which of your lines ran the first graph?",
            trace,
            _first(frames, "graphs"),
            ("everything was only recorded", "one graph had run"),
        ),
        _how_many_graphs(f"{name}: graphs", frames),
        _which_line(
            f"{name}: update",
            "Which of your lines ran the graph of the first update?",
            trace,
            updated,
            ("the update had not run", "it had run"),
        ),
    ]


def _first_gradient(name: str, trace: Trace) -> Question | None:
    return _which_line(
        f"{name}: gradient",
        "Which of your lines put the first gradient into `.grad`?",
        trace,
        _first(trace.frames, "gradient"),
        ("`.grad` was empty", "`.grad` had its first gradient"),
    )


def _first_move(name: str, trace: Trace) -> Question | None:
    return _which_line(
        f"{name}: weight",
        "Which of your lines moved the weight for the first time?",
        trace,
        updates(trace.frames)[0],
        ("the weight had not moved", "the weight had moved"),
    )


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

    every, late = [*range(1, last + 1)], sorted({min(step + 1, last) for step in steps})
    candidates = [
        (every, f"A step for each micro-batch: but after micro-batch 1 the weight stood at {weights[1]:.4g}, where it began."),
        (steps[:-1], f"The run does not end there: the weight moved once more, after micro-batch {steps[-1]}."),
        (late, f"That is one too late: the weight first moved right after micro-batch {steps[0]}."),
        ([1, *steps], f"Micro-batch 1 only began the window: the weight stood still until micro-batch {steps[0]} had gone through."),
    ]  # fmt: skip
    return _after_which(
        name,
        f"{last} micro-batches went through. After which of them did the weight move?",
        (steps, f"{len(steps)} times in all: that many windows were complete."),
        [one for one in candidates if not (one[0] is every and 1 in steps)],
    )


def _after_which(
    name: str, ask: str, right: tuple[list[int], str], wrong: list[tuple[list[int], str]]
) -> Question | None:
    """After which micro-batches something happened: the right numbers and wrong ones, each with what is said of them."""
    numbers, says = right

    def told(numbers: list[int]) -> str:
        return "after " + ", ".join(map(str, numbers))

    options = [
        Option(told(other), why) for other, why in wrong if other and sorted({*other}) != numbers
    ]
    options = list({option.text: option for option in options}.values())[:3]
    if len(options) < 2:
        return None
    return Question(name, ask, Option(told(numbers), says), (*options,))


def _meetings(frames: list[Frame]) -> list[int]:
    """The indices of the frames in which a rank met the others, after its first micro-batch had gone forward."""
    return [
        i
        for i in range(1, len(frames))
        if frames[i].values["met"] != frames[i - 1].values["met"]
        and frames[i].values["micro-batch"]
    ]


def _where_ranks_met(name: str, frames: list[Frame]) -> Question | None:
    """After which of its micro-batches a rank met the others."""

    def numbers(indices) -> list[int]:
        return list(dict.fromkeys(int(frames[i].values["micro-batch"] or 0) for i in indices))

    met = _meetings(frames)
    steps = numbers(i for i in updates(frames) if i not in met)
    trained, meetings = numbers(range(len(frames))), numbers(met)
    trained = [number for number in trained if number]
    if not meetings:
        return None
    apart = len(steps) - len(meetings)
    return _after_which(
        name,
        f"This rank trained on micro-batches {', '.join(map(str, trained))}. After which of them did it meet the other one?",
        (meetings, f"In between it made {apart} more optimizer steps alone."),
        [
            (steps, f"Those are its optimizer steps; {apart} of them it made alone."),
            (
                meetings[:-1],
                f"They met once more, after micro-batch {meetings[-1]}, so that they end equal.",
            ),
            (
                trained,
                f"After micro-batch {trained[0]} nothing was sent, nor was the weight moved.",
            ),
        ],
    )


def _how_many_graphs(name: str, frames: list[Frame]) -> Question | None:
    """How many graphs a lazy loop ran."""
    graphs = [int(frame.values["graphs"] or 0) for frame in frames]
    micro_batches, steps = (
        int(max(frame.values[name] or 0 for frame in frames)) for name in ("micro-batch", "steps")
    )
    ran = graphs[-1]

    def says(count: int) -> str:
        if count > ran:
            return f"Recorded were {ran}: a graph runs only where something asks for it."
        later = next(i for i, number in enumerate(graphs) if number > count)
        return f"After graph {count} another one ran, in line {frames[later].line}."

    wrong = [
        Option(str(count), says(count))
        for count in sorted({steps, micro_batches, ran + steps, 2 * micro_batches} - {0, ran})
    ]
    if len(wrong) < 2:
        return None
    return Question(
        name,
        f"{micro_batches} micro-batches and {steps} updates were recorded. How many graphs had run at the end?",
        Option(str(ran), f"The last of them ran in line {frames[graphs.index(ran)].line}."),
        (*wrong[:3],),
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
