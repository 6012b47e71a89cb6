"""What an exercise is: a probe, an oracle and its known mistakes.

The probe asks the answer fresh questions drawn from a seed and returns what it saw: an observation, named numbers and
arrays in the order in which they should be looked at. The oracle says what must be seen, from independent truth. A mistake
is a wrong answer with one sentence why. The verdict (`verdicts`) only compares observations: equal to the oracle is right,
equal to a mistake's is that mistake, anything else is told by the first place where it parts from the oracle. Nothing here
knows how a particular mistake looks.
"""

from collections.abc import Callable
from dataclasses import dataclass

from trainlean.exercises.comparing import Observation


@dataclass(frozen=True)
class Mistake:
    """A known wrong answer, with one sentence why it is wrong and a question as hint.

    `answers` are ways of writing it; one of them equal to the learner's is enough. An answer is a dictionary, an edit of
    the exercise's solution: {what stands there: what a learner would have typed} (see `trainlean.exercises.solutions`),
    or the wrong function or value itself where an edit cannot say it.
    """

    name: str
    why: str
    hint: str
    answers: tuple

    def __init__(self, name: str, *answers, why: str, hint: str):
        for key, value in {"name": name, "why": why, "hint": hint, "answers": answers}.items():
            object.__setattr__(self, key, value)


@dataclass(frozen=True)
class Exercise:
    """One exercise, named like the function or value that the learner writes.

    probe(answer, seed) -> Observation; oracle(seed) -> Observation; `truth` names what the oracle stands for in messages;
    `hints` go from a nudge to nearly the answer; `also_right` holds other right ways of writing it, for the tests, as
    edits or functions like a mistake's answers.
    `notebook` is its lesson and `package` the folder in which it is written, as Python imports it; both are set when it is found.
    `requires`, where given, returns a sentence why the exercise cannot be checked on this machine, or an empty string.
    """

    name: str
    points: int
    probe: Callable[[object, int], Observation]
    oracle: Callable[[int], Observation]
    mistakes: tuple[Mistake, ...]
    hints: tuple[str, ...]
    also_right: tuple
    truth: str = "the right one"
    devices: int = 1
    requires: Callable[[], str] | None = None
    notebook: str = ""
    package: str = ""
