"""The verdict on an answer: its observation beside the oracle's and those of the known mistakes."""

import math
import re
import time
from dataclasses import dataclass

from trainlean.exercises.comparing import Observation, first_difference, same
from trainlean.exercises.exercise import Exercise
from trainlean.exercises.seeing import COURSE_CODE, LIBRARIES, Seen, plain, see, undisturbed
from trainlean.exercises.solutions import answer_of

NOT_ATTEMPTED, WRONG, CRASHED, RIGHT, CANNOT = OUTCOMES = (
    "not attempted",
    "wrong",
    "crashed",
    "right",
    "cannot be checked here",
)
SAME_RESULTS = "A known mistake with the same results"  # results were compared, no code was read
NOTHING_YET = "Nothing to check yet: replace the line `raise NotImplementedError()` (or None) by your answer, then run its cell."


@dataclass(frozen=True)
class Verdict:
    """The outcome of one answer: message first, then what was seen, why, and a hint."""

    exercise: str
    notebook: str
    outcome: str
    points: int
    possible: int
    message: str
    mistake: str = ""
    why: str = ""
    hint: str = ""
    traceback: str = ""
    printed: str = ""

    def __str__(self):
        """The fixed text form: outcome and points, what was seen, why, a question."""
        head = f"{self.exercise}: {self.outcome}, {self.points} of {self.possible} points"
        if self.outcome == RIGHT:
            return head
        parts = {
            "": self.message,
            f"{SAME_RESULTS}: ": self.mistake,
            "Why: ": self.why,
            "Hint: ": self.hint,
        }
        return "\n  ".join([head] + [label + text for label, text in parts.items() if text])


def judge(
    exercise: Exercise,
    answer: object,
    seed: int,
    search_seconds: float = math.inf,
    cache: dict | None = None,
) -> Verdict:
    """Probe an answer here and now and give the verdict; `search_seconds` and `cache` are those of `verdict`."""
    return cannot_check(exercise) or verdict(
        exercise, see(exercise, answer, seed), seed, cache, search_seconds
    )


def cannot_check(exercise: Exercise) -> Verdict | None:
    """The verdict on any answer where this machine lacks what the probe needs; None where it has it."""
    why = exercise.requires() if exercise.requires else ""
    return (
        Verdict(exercise.name, exercise.notebook, CANNOT, 0, exercise.points, why) if why else None
    )


def verdict(
    exercise: Exercise,
    seen: Seen,
    seed: int,
    cache: dict | None = None,
    search_seconds: float = math.inf,
) -> Verdict:
    """The verdict on what was seen of an answer. `seed` must be the one that the probe was given.

    `cache` keeps the oracle's and the mistakes' observations for the next answer to the same questions.
    A mistake that is not found within `search_seconds` stays without its name; that is said, and with `cache` the next call
    goes on from there.
    """
    cache = {} if cache is None else cache

    def remembered(what, see_it):
        key = exercise.name, seed, what
        if (found := cache.get(key)) is None:
            found = see_it()
            # What it raises may be the machine's fault, and need not be so the next time; a mistake's not twice in the same words.
            once = cache.get((*key, "once")) if what != "right" else None
            if "raised" not in found or (once is not None and same(found, once)):
                cache[key] = found
            else:
                cache[(*key, "once")] = found
        return found

    def say(outcome, message, **more):
        earned = exercise.points if outcome == RIGHT else 0
        return Verdict(
            exercise.name, exercise.notebook, outcome, earned, exercise.points, message, **more
        )

    if not seen.attempted:
        return say(NOT_ATTEMPTED, NOTHING_YET)
    truth = remembered("oracle", lambda: see_oracle(exercise, seed))
    difference = first_difference(seen.observation, truth, exercise.truth)
    if difference is None:
        return say(RIGHT, "Right.", printed=seen.printed)
    extra = {"printed": seen.printed, "traceback": seen.traceback}
    raised = seen.observation.get("raised")
    message = (
        _of_an_error(exercise.name, str(raised), seen.traceback)
        if raised
        else f"{difference[:1].upper()}{difference[1:]} (seed {seed})."
    )
    message = f"{message} {seen.beside}".rstrip()
    if (
        raised
        and exercise.also_right
        and same(
            seen.observation,
            remembered("right", lambda: _known(exercise, exercise.also_right[0], seed)),
        )
    ):
        return say(
            CANNOT,
            f"This cannot be checked here: a right answer raises {raised}, too.",
            traceback=seen.traceback,
        )
    end = time.monotonic() + search_seconds
    for mistake in exercise.mistakes:
        for number, wrong in enumerate(mistake.answers):
            if time.monotonic() > end:
                message += f" Not all known mistakes were compared in {search_seconds:g} s; check(..., seed={seed}), once or several times, goes on where this stopped."
                return say(CRASHED if raised else WRONG, message, **extra)
            if same(
                seen.observation,
                remembered(
                    (mistake.name, number),
                    lambda wrong=wrong: _known(exercise, wrong, seed),
                ),
            ):
                return say(
                    WRONG,
                    message,
                    mistake=mistake.name,
                    why=mistake.why,
                    hint=mistake.hint,
                    **extra,
                )
    return say(
        CRASHED if raised else WRONG, message, **extra
    )  # a hint might speak of what is right


def _known(exercise: Exercise, given: object, seed: int) -> Observation:
    """What is seen of an answer that the exercise itself lists."""
    return see(exercise, answer_of(exercise, given), seed).observation


def _of_an_error(name: str, raised: str, learners_traceback: str) -> str:
    if learners_traceback:
        return f"Your answer raised {raised}{_further_lines(raised, learners_traceback)}{_line(learners_traceback)}"
    if re.match(rf"TypeError: (\S*\.)?{name}(\.__init__)?\(\) ", raised):
        return f"Your answer does not take the arguments that the exercise names ({raised})."
    # A None may also lie within what was returned, or in what the answer changed.
    return f"What your answer returned or changed could not be used ({raised})" + (
        ": is a value None? A forgotten `return` gives None." if "None" in raised else "."
    )


def _line(learners_traceback: str) -> str:
    """Where it was raised: the line of the answer that was last at work, as the end of a sentence."""
    lines = re.findall(r'  File "([^"]+)", line (\d+), in .+\n    (.+)', learners_traceback)
    own = [
        (number, code)
        for file, number, code in lines
        if not file.startswith((*LIBRARIES, *COURSE_CODE))
    ]
    if not own:
        return ""
    number, code = own[-1]
    return f" (line {number}: `{code.strip()}`)"


def _further_lines(raised: str, learners_traceback: str) -> str:
    """What an error says below its first line, where some libraries give the reason; without the stacks of C++."""
    first = raised.partition(": ")[2]
    if not first:  # an error without a word, such as a bare `assert`
        return ""
    below = learners_traceback.rpartition(first)[2].splitlines()
    lines = [line.strip() for line in below if line.strip()]
    for number, line in enumerate(lines):
        if re.match(
            r'Exception raised from|.*0x|File "(<cell|.+\.py")', line
        ):  # frames are shown elsewhere
            del lines[number:]
            break
    text = " ".join(lines)
    if text.startswith(". "):  # Python's own: what a misspelt name may have meant
        return text
    return f" {text}" if 0 < len(text) <= 400 else ""


def see_oracle(exercise: Exercise, seed: int) -> Observation:
    """What must be seen, in the form in which answers are seen."""
    with undisturbed(seed):
        return {name: plain(value) for name, value in exercise.oracle(seed).items()}
