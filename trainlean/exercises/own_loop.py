"""Questions about a learner's own loop, made from a recorded run of it after it was found right."""

import ast
import contextlib
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from IPython.display import display

from trainlean.exercises.questions import Option, Question, questions_asked, quiz_of, written
from trainlean.exercises.recall import computed
from trainlean.exercises.seeing import undisturbed
from trainlean.pictures.quiz import Quiz
from trainlean.recordings.loops import Frame, Trace, record, updates

MOST_QUESTIONS = 3
MOST_LINES = 3  # wrong lines to choose from


@dataclass(frozen=True)
class OwnRun:
    """A run of a learner's loop on a few micro-batches: what was run, in words, and its recording; on ranks that of rank 1 as well.

    The frames have of these values what there is to see (`Watched` looks at them): "micro-batch", the number of the one that
    last went forward, counted from 1; "gradient" and "weight" of a model with one weight; how many "steps" the optimizer has
    made; in how many collectives a rank "met" the others, and how many "bytes" it gave to them; for how many micro-batches an
    accelerator "synced"; the "layer" that ran last, how many layers ran ("runs"), and how many of them "again" in a backward
    pass; how many "graphs" a lazy loop has run. `divisors`, for a loss of tokens: by what their sum is rightly divided, then by
    what it might be wrongly, each with what is said of it; `undivided` is the gradient of the sum. With an `outer` optimizer
    beside it the steps that are counted are those of the inner one.
    """

    said: str
    trace: Trace
    other: Trace | None = None
    undivided: float = 0.0
    divisors: tuple[tuple[float, str], ...] = ()
    outer: bool = False

    @property
    def steps(self) -> str:
        """What the steps are called."""
        return "inner steps" if self.outer else "optimizer steps"


class Watched:
    """A model of one weight that knows which of its micro-batches is at work, whatever the loop around it calls things.

    It counts what an optimizer, an accelerator, layers and a rank of `exercises_tests.probing.rank_threads` do, where it is shown them.
    """

    def __init__(
        self, micro_batches: list[tuple], model, optimizer=None, accelerator=None, layers=()
    ):
        self.weight, self.number, self.look = next(model.parameters()), None, lambda: None
        self.seen: Counter[str] = Counter()
        self.watch = {
            "weight": lambda _: self.weight,
            "gradient": lambda _: self.weight.grad,
            "micro-batch": lambda _: self.number,
        }
        places = {
            float(inputs.flatten()[0]): i for i, (inputs, _) in enumerate(micro_batches, start=1)
        }

        def forward(_, positional, named):
            self.look()  # what came after the micro-batch before, within one line of the loop
            inputs = [*positional, *named.values()][0]
            self.number = places.get(float(inputs.flatten()[0]), self.number)
            self.seen["synced"] += accelerator is not None and accelerator.sync_gradients

        model.register_forward_pre_hook(forward, with_kwargs=True)
        self._count("steps", *["synced"] * (accelerator is not None))
        if optimizer is not None:
            self.steps_of(optimizer)
        for number, layer in enumerate(layers, 1):
            self._runs_of(number, layer)

    def steps_of(self, optimizer) -> None:
        """Count an optimizer's steps."""

        def stepped(*_):
            self.seen["steps"] += 1
            self.look()

        optimizer.register_step_post_hook(stepped)

    def meets(self, rank) -> None:
        """Count from here on what this rank sends; a barrier carries nothing."""
        start = len(rank.sent)

        def met():
            return [one for one in rank.sent[start:] if one.kind != "barrier"]

        rank.where = lambda: self.look()
        self.watch |= {
            "met": lambda _: len(met()),
            "bytes": lambda _: sum(one.bytes for one in met()),
        }

    def _runs_of(self, number: int, layer) -> None:
        import torch

        def runs(*_):
            self.seen["layer"] = number
            self.seen["runs"] += 1
            self.seen["again"] += torch._C._current_graph_task_id() != -1  # in a backward pass
            self.look()

        self._count("layer", "runs", "again")
        layer.register_forward_pre_hook(runs)

    def _count(self, *names: str) -> None:
        for name in names:
            self.watch[name] = partial(lambda name, _: self.seen[name], name)

    def record(self, loop: Callable, *arguments) -> Trace:
        """The recording of `loop(*arguments)`; raises what the loop raises."""
        return record(
            loop,
            *arguments,
            watch=self.watch,
            hook=lambda look: setattr(self, "look", look),
        )


def ask_about_own_loop(name: str, answer: object) -> None:
    """Ask about the run of a right answer; nothing where none was written for the exercise, or the answer cannot be recorded."""
    if questions_asked() and (quiz := quiz_about(name, answer)):
        display(quiz)


def quiz_about(name: str, answer: object) -> Quiz | None:
    """The questions about the run of a right answer; None where there are none."""
    make = written("OWN_RUNS", name)
    if make is None:
        return None
    try:
        with undisturbed(0), contextlib.redirect_stdout(io.StringIO()):
            found = questions_about(name, run := make(answer))
    except (
        Exception
    ):  # the answer is right; that it cannot be recorded here is no matter of the learner's
        return None
    return quiz_of("own loop", f"About your own loop, {run.said}", found) if found else None


def questions_about(exercise: str, run: OwnRun) -> list[Question]:
    """The questions that the recording can answer, the most telling ones first, at the most three."""
    found: list[Question] = []
    for key, (needed, ask) in ASKED.items():
        seen = {name for frame in run.trace.frames[:1] for name in frame.values}
        if len(found) < MOST_QUESTIONS and seen >= {*needed.split()}:
            question = ask(run)
            found += [replace(question, name=f"{exercise}: {key}")] if question else []
    return found


# ---------------------------------------------------------------- which line


def _first_gradient(run: OwnRun) -> Question | None:
    return _which_line(
        "Which of your lines put the first gradient into `.grad`?",
        run.trace,
        _first(run.trace.frames, "gradient"),
        ("`.grad` was empty", "`.grad` had its first gradient"),
    )


def _first_move(run: OwnRun) -> Question | None:
    return _which_line(
        "Which of your lines moved the weight for the first time?",
        run.trace,
        next(iter(updates(run.trace.frames)), None),
        ("the weight had not moved", "the weight had moved"),
    )


def _first_meeting(run: OwnRun) -> Question | None:
    return _which_line(
        "After the first forward pass, which of your lines was the first to bring the ranks together?",
        run.trace,
        next(iter(_meetings(run.trace.frames)), None),
        ("no meeting had followed the first forward pass", "one had"),
    )


def _first_graph(run: OwnRun) -> Question | None:
    return _which_line(
        "Which of your lines ran the first graph?",
        run.trace,
        _first(run.trace.frames, "graphs"),
        ("everything was only recorded", "one graph had run"),
    )


def _first_update(run: OwnRun) -> Question | None:
    frames = run.trace.frames
    stepped = _first(frames, "steps")
    ran = [] if stepped is None else [i for i in _changed(frames, "graphs") if i > stepped]
    return _which_line(
        "Which of your lines ran the graph of the first update?",
        run.trace,
        next(iter(ran), None),
        ("the update had not run", "it had run"),
    )


def _first(frames: list[Frame], name: str) -> int | None:
    return next((i for i, frame in enumerate(frames) if frame.values[name]), None)


def _changed(frames: list[Frame], name: str) -> list[int]:
    """The indices of the frames in which a value is another one than before."""
    values = [frame.values[name] for frame in frames]
    return [i for i in range(1, len(values)) if values[i] != values[i - 1]]


def _which_line(
    ask: str, trace: Trace, event: int | None, states: tuple[str, str]
) -> Question | None:
    """Which line was executed when something happened (`event`, the number of its frame). `states`: before and after it."""
    if event is None or not trace.source:
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
        "", ask, Option(shown(right), f"Before this line {before}; after it {after}."), (*wrong,)
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


# ---------------------------------------------------------------- after which micro-batches


def _which_micro_batches(run: OwnRun) -> Question | None:
    """After which micro-batches the weight moved; on ranks and with an accelerator others ask so."""
    frames = run.trace.frames
    moved = [frames[i].values["micro-batch"] for i in updates(frames)]
    if not moved or None in moved or {"met", "synced"} & {*frames[0].values}:
        return None
    steps, every = _numbers(frames, updates(frames)), _numbers(frames, range(len(frames)))
    last = every[-1]
    weights = {int(f.values["micro-batch"]): f.values["weight"] for f in frames if f.values["micro-batch"]}  # fmt: skip
    late = sorted({min(step + 1, last) for step in steps})
    candidates = [
        (every, f"A step for each micro-batch: but after micro-batch 1 the weight stood at {weights[1]:.4g}, where it began."),
        (steps[:-1], f"The run does not end there: the weight moved once more, after micro-batch {steps[-1]}." if steps[1:] else ""),
        (late, f"That is one too late: the weight first moved right after micro-batch {steps[0]}."),
        ([1, *steps], f"Micro-batch 1 only began the window: the weight stood still until micro-batch {steps[0]} had gone through."),
    ]  # fmt: skip
    return _after_which(
        f"{last} micro-batches went through. After which of them did the weight move?",
        (steps, f"At the end it stood at {frames[-1].values['weight']:.4g}."),
        [one for one in candidates if not (one[0] is every and 1 in steps)],
    )


def _which_synced(run: OwnRun) -> Question | None:
    """For which micro-batches an accelerator's flag was on."""
    frames = run.trace.frames
    synced, every = (
        _numbers(frames, some) for some in (_changed(frames, "synced"), range(len(frames)))
    )
    if not synced:
        return None
    began = [1, *(number + 1 for number in synced[:-1])]
    return _after_which(
        f"{len(every)} micro-batches went through. For which of them was `accelerator.sync_gradients` true?",
        (synced, "There the accelerator lets the optimizer step, and more devices would send."),
        [
            (began, f"These began a window. Of micro-batch {synced[0]} it was true: it ended one."),
            (synced[:-1], f"It was true once more, for micro-batch {synced[-1]}: the last one of the data."),
            (every, "That is a training without accumulation: each micro-batch would be a window."),
        ],
        "for",
    )  # fmt: skip


def _where_ranks_met(run: OwnRun) -> Question | None:
    """After which of its micro-batches a rank met the others."""
    frames = run.trace.frames
    meetings, trained = _numbers(frames, _meetings(frames)), _numbers(frames, range(len(frames)))
    steps = _numbers(frames, _changed(frames, "steps")) if "steps" in frames[0].values else []
    if not meetings:
        return None
    alone = len([number for number in steps if number not in meetings])
    if alone:
        says = f"In between it made {alone} more {run.steps} alone."
    elif steps:
        says = f"It made no {run.steps[:-1]} alone."
    else:
        says = f"It sent after {len(meetings)} of {len(trained)} micro-batches."
    return _after_which(
        f"This rank trained on micro-batches {', '.join(map(str, trained))}. After which of them did it meet the other one?",
        (meetings, says),
        [
            (steps, f"Those are its {run.steps}; {alone} of them it made alone." if alone else ""),
            (meetings[:-1], f"They met once{' more' * bool(meetings[1:])}, after micro-batch {meetings[-1]}."),
            (trained, "" if trained[0] in meetings else f"After micro-batch {trained[0]} nothing was sent."),
            (meetings[-1:], f"They had met before, after micro-batch {meetings[0]}."),
            (meetings[1:], f"The first time was earlier, after micro-batch {meetings[0]}."),
        ],
    )  # fmt: skip


def _after_which(
    ask: str,
    right: tuple[list[int], str],
    wrong: list[tuple[list[int], str]],
    word: str = "after",
) -> Question | None:
    """After which micro-batches something happened: the right numbers and wrong ones, each with what is said of them."""
    numbers, says = right

    def told(numbers: list[int]) -> str:
        return f"{word} " + (", ".join(map(str, numbers)) or "none")

    return computed(
        ask,
        (told(numbers), says),
        [(told(other), why) for other, why in wrong if why],
    )


def _numbers(frames: list[Frame], indices: Iterable[int]) -> list[int]:
    """The micro-batches at work in these frames, each once."""
    found = (frames[i].values["micro-batch"] for i in indices)
    return list(dict.fromkeys(int(number) for number in found if number))


def _meetings(frames: list[Frame]) -> list[int]:
    """The indices of the frames in which a rank met the others, after its first micro-batch had gone forward."""
    return [i for i in _changed(frames, "met") if frames[i].values["micro-batch"]]


# ---------------------------------------------------------------- how many, how much


def _how_many_bytes(run: OwnRun) -> Question | None:
    """What a rank handed over in all, where all its messages are equally large."""
    frames = run.trace.frames
    given = [int(frame.values["bytes"] or 0) for frame in frames]
    sizes = {given[i] - given[i - 1] for i in _changed(frames, "met")}
    messages, total = int(frames[-1].values["met"] or 0), given[-1]
    if len(sizes) != 1 or not total or sizes != {total / messages}:
        return None
    size, last = total // messages, len(_numbers(frames, range(len(frames))))
    steps = int(frames[-1].values.get("steps") or 0)
    return computed(
        "How many bytes did this rank give to collectives (all-reduces and the like) in all?",
        (f"{total}", f"It took part in {messages}, with {size} bytes each."),
        [
            *[(f"{steps * size}", f"That would be one message for each of its {steps} {run.steps}; recorded were {messages}.")] * bool(steps),
            (f"{last * size}", f"That would be one message for each of its {last} micro-batches; recorded were {messages}."),
            (f"{messages}", f"So many messages were recorded; each of them had {size} bytes."),
            (f"{2 * total}", "What it receives it does not give: each message counts once."),
        ],
    )  # fmt: skip


def _where_replicas_differ(run: OwnRun) -> Question | None:
    """After which optimizer steps, and the averages that follow them, the ranks' weights were different."""
    if run.other is None:
        return None
    here, there = (
        {int(one.values["steps"] or 0): one.values["weight"] or 0.0 for one in trace.frames}
        for trace in (run.trace, run.other)
    )  # of each step what was there last
    steps = [step for step in here if step and step in there]
    apart = [step for step in steps if not math.isclose(here[step], there[step], rel_tol=1e-5)]
    equal = [step for step in steps if step not in apart]
    if not steps:
        return None
    behind = "Where an outer step followed, take the weights after it. " if run.outer else ""
    same = f"After step {equal[0]} both stood at {here[equal[0]]:.4g}" if equal else ""
    return _after_which(
        f"This rank made {len(steps)} {run.steps}, and so did the other one. {behind}After which {run.steps} did the two go on with different weights?",
        (
            apart,
            f"After step {apart[0]} one stood at {here[apart[0]]:.4g} and the other at {there[apart[0]]:.4g}."
            if apart
            else f"{same}, and so it went on.",
        ),
        [
            (steps, same and f"{same}."),
            (equal, f"There they were equal. {same}." if apart and equal else ""),
            (steps[:-1], f"After step {equal[0]} they were equal." if equal and equal[0] != steps[-1] else ""),
            ([], f"After step {apart[0]} they were different." if apart else ""),
        ],
    )  # fmt: skip


def _how_many_graphs(run: OwnRun) -> Question | None:
    """How many graphs a lazy loop ran."""
    frames = run.trace.frames
    graphs = [int(frame.values["graphs"] or 0) for frame in frames]
    micro_batches, steps = (
        int(max(frame.values[name] or 0 for frame in frames)) for name in ("micro-batch", "steps")
    )
    ran = graphs[-1]

    def says(count: int) -> str:
        if count > ran:
            return f"{ran} ran: a graph runs only where something asks for it."
        later = next(i for i, number in enumerate(graphs) if number > count)
        return f"After graph {count} another one ran, in line {frames[later].line}."

    counts = sorted({steps, micro_batches, ran + steps, 2 * micro_batches} - {0, ran})
    return computed(
        f"{micro_batches} micro-batches and {steps} updates were recorded. How many graphs had run at the end?",
        (str(ran), f"The last of them ran in line {frames[graphs.index(ran)].line}."),
        [(str(count), says(count)) for count in counts],
    )


def _how_many_parts(run: OwnRun) -> Question | None:
    """In how many parts the gradient grew, in a loop that makes no step."""
    frames = run.trace.frames
    if updates(frames):
        return None
    gradients = [0.0, *(frame.values["gradient"] or 0.0 for frame in frames)]
    changes = [after for before, after in pairwise(gradients) if after != before]
    last, parts = len(_numbers(frames, range(len(frames)))), len(changes)
    if not last:
        return None
    counts = sorted({1, last - 1, last, last + 1, 2 * last} - {0, parts})
    return computed(
        f"{last} micro-batches went through. How many times did `.grad` change?",
        (str(parts), f"The last change left it at {gradients[-1]:.4g}."),
        [
            (
                str(count),
                f"It changed again after change {count}, from {changes[count - 1]:.4g} to {changes[count]:.4g}."
                if count < parts
                else f"Over {last} micro-batches {parts} {'change was' if parts == 1 else 'changes were'} recorded.",
            )
            for count in counts
        ],
    )


def _by_what_divided(run: OwnRun) -> Question | None:
    """By what the sum of all tokens' losses was divided."""
    gradients = [frame.values["gradient"] for frame in run.trace.frames if frame.values["gradient"]]
    if not run.divisors or not gradients:
        return None
    divisor = f"{run.undivided / gradients[-1]:.4g}"
    if not divisor.isdecimal():  # tokens are counted: the loop has made something else of the loss
        return None
    return computed(
        "By what was the sum of the tokens' losses divided in the end?",
        (divisor, f"`.grad` came to {gradients[-1]:.4g}, and the gradient of the sum is {run.undivided:.4g}."),
        [(f"{number:.4g}", why) for number, why in run.divisors],
    )  # fmt: skip


# ---------------------------------------------------------------- layers


def _how_often_layers_ran(run: OwnRun) -> Question | None:
    """How often layers ran forward, in forward and in backward passes."""
    runs, again = (int(run.trace.frames[-1].values[name] or 0) for name in ("runs", "again"))
    forward = runs - again
    if not again:
        return None
    return computed(
        f"Layers ran {forward} times in forward passes. How many runs of layers were there in all, those in backward passes included?",
        (f"{runs}", f"In addition to those {forward}, {again} runs were made in backward passes: layers computed again."),
        [
            (f"{forward}", f"What a checkpoint has thrown away was computed again: {again} times a layer ran in a backward pass."),
            (f"{2 * forward}", f"So it would be if each run came twice; {again} of {forward} did."),
            (f"{runs + again}", "Each of them ran again once, not twice."),
            (f"{again}", "Those are the runs in backward passes alone; the forward ones count, too."),
        ],
    )  # fmt: skip


def _in_which_order(run: OwnRun) -> Question | None:
    """In which order the first backward pass ran layers again."""
    frames, order = run.trace.frames, []
    for i in _changed(frames, "runs"):
        if frames[i].values["again"] != frames[i - 1].values["again"]:
            order.append(int(frames[i].values["layer"] or 0))
        elif order:
            break
    if len(order) < 2:
        return None
    every = sorted({int(frame.values["layer"] or 0) for frame in frames} - {0})
    rest = [number for number in every if number not in order]
    return computed(
        "In which order did the first backward pass run layers again?",
        (_listed(order), "It comes to the last layers first; what is in one checkpoint runs forward."),
        [
            (_listed(sorted(order)), f"That is the order of the forward pass. The backward pass began at the other end, and ran layer {order[0]} first."),
            (_listed(sorted(order, reverse=True)), f"Layer {order[0]} was first: what is in one checkpoint runs forward, from its first layer on."),
            (_listed([*rest, *order]) if rest else _listed(order), f"Layer {_listed(rest[:1])} is in no checkpoint: what it made was still there."),
            (_listed(order[:1]), f"Behind it layer {order[1]} ran again, too."),
            (_listed(order[:-1]), f"At the end layer {order[-1]} ran again, too."),
        ],
    )  # fmt: skip


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


ASKED: dict[str, tuple[str, Callable[[OwnRun], Question | None]]] = {
    # what is asked: the values that a recording must have for it
    "first graph": ("graphs", _first_graph),
    "graphs": ("graphs", _how_many_graphs),
    "update": ("graphs steps", _first_update),
    "divisor": ("gradient", _by_what_divided),
    "layers": ("again", _how_often_layers_ran),
    "order": ("again", _in_which_order),
    "averages": ("met", _where_ranks_met),
    "bytes": ("bytes", _how_many_bytes),
    "replicas": ("steps weight", _where_replicas_differ),
    "synced": ("synced", _which_synced),
    "meeting": ("met", _first_meeting),
    "gradient": ("gradient", _first_gradient),
    "steps": ("weight", _which_micro_batches),
    "weight": ("weight", _first_move),
    "parts": ("gradient weight", _how_many_parts),
}
