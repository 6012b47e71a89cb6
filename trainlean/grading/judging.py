"""Verdicts from what a worker brought, which is not believed to be in good form."""

import io
import re
import zipfile

import numpy as np

from trainlean.exercises.checking import judge_seen
from trainlean.exercises.comparing import Observation
from trainlean.exercises.exercise import Exercise
from trainlean.exercises.seeing import NUMBERS, Seen, unpack
from trainlean.exercises.verdicts import (
    CRASHED,
    NOT_ATTEMPTED,
    RIGHT,
    Verdict,
    cannot_check,
    see_oracle,
)
from trainlean.grading.plan import Answers, Graded, Plan
from trainlean.grading.sandbox import Limits
from trainlean.workspace import CourseError

TEXT_LIMIT = 4000  # letters of a message, traceback or print that are kept
NUMBERS_KEPT = 64  # of an array, in the run log
ALL = "all"  # of a notebook, in `short_of`: it could not be read
WORKER = "its worker"  # what an answer was short of when the worker ended that collected it
NAMES_KEPT = 5000  # of an observation
HEAD_LIMIT = (
    4 << 20
)  # bytes of what an observation holds beside arrays: as JSON a hundred times that in memory
WANTED = {
    "processes": re.compile(r"can't start new thread|Resource temporarily unavailable|Errno 11\b"),
    "memory": re.compile(r"MemoryError|[Cc]annot allocate memory|can't allocate memory"),
    "time": re.compile(r"TimeoutError|timed out|never arrived"),
}  # how an error says what it wanted


def judge_answers(
    answers: Answers, plan: Plan, cache: dict
) -> tuple[list[Verdict], dict[str, Observation]]:
    """The verdicts, and what was seen. Every judgement of a run happens in one thread: probes draw from torch's one random state.

    CourseError: an oracle failed, so that nothing can be judged.
    """
    verdicts, observations = [], {}
    for name in answers.exercises:
        exercise = plan.exercises[name]
        head, blob = answers.given.get(name, ({}, b""))
        if blob:
            _cache_oracle(exercise, plan.seed, cache)
        cells = (
            [cell for cell in head.get("cells", []) if isinstance(cell, int)][:20]
            if isinstance(head.get("cells"), list)
            else []
        )
        answer: Seen | Verdict
        try:
            if blob:
                _look_at_archive(blob, plan.limits)
                answer = trusted_form(unpack(blob), plan.limits)
                observations[name] = answer.observation
            else:
                outcome = NOT_ATTEMPTED if head.get("outcome") == NOT_ATTEMPTED else CRASHED
                answer = Verdict(
                    name,
                    exercise.notebook,
                    outcome,
                    0,
                    exercise.points,
                    clean_text(head.get("message") or f"{name} gave no answer."),
                )
            judged = cannot_check(exercise) or judge_seen(exercise, answer, cells, plan.seed, cache)
        except Exception as error:  # whatever a forged answer leads to, it is no answer
            message = f"{name} answered with something that is no observation ({clean_text(type(error).__name__)})."
            judged = Verdict(
                name,
                exercise.notebook,
                CRASHED,
                0,
                exercise.points,
                message,
            )
        verdicts.append(judged)
    return verdicts, observations


def short_of(graded: Graded, answers: Answers) -> dict[str, str]:
    """The exercises of a notebook that failed for want of something that others may have taken: {name: what}."""
    found = {}
    if graded.problem and answers.short_of:
        return {ALL: clean_text(answers.short_of)}
    for verdict in graded.verdicts:
        if verdict.outcome in (RIGHT, NOT_ATTEMPTED):
            continue
        head, _ = answers.given.get(verdict.exercise, ({}, b""))
        said = f"{graded.seen.get(verdict.exercise, {}).get('raised', '')} {verdict.traceback}"
        what = str(head.get("short_of") or "")
        what = what or next((what for what, words in WANTED.items() if words.search(said)), "")
        if what:
            found[verdict.exercise] = clean_text(what)
    return found


def _cache_oracle(exercise: Exercise, seed: int, cache: dict) -> None:
    """Have the oracle's observation in the cache; where it fails (twice: a busy machine is forgiven), no learner is to blame."""
    key = (exercise.name, seed, "oracle")  # as `verdict` keeps it
    for attempt in (1, 2):
        try:
            if key not in cache:
                cache[key] = see_oracle(exercise, seed)
            return
        except Exception as error:
            if attempt == 2:
                raise CourseError(
                    f"The oracle of {exercise.name} failed on this machine ({type(error).__name__}: {error}); the same command goes on from here."
                ) from None


def _look_at_archive(blob: bytes, limits: Limits) -> None:
    """ValueError for an archive that is more in memory than it is as bytes: packed (numpy.savez packs nothing), or of too many parts."""
    if blob.count(b"PK\x01\x02") > NAMES_KEPT + 1:  # how each entry of the list begins
        raise ValueError("more arrays than any probe shows")
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("an archive that is packed")
    if sum(member.file_size for member in members) > limits.answer:
        raise ValueError("an archive that grows")
    if any(m.filename == "head.npy" and m.file_size > HEAD_LIMIT for m in members):
        raise ValueError("more words than any probe needs")


def trusted_form(seen: Seen, limits: Limits) -> Seen:
    """The same with nothing in it but numbers, short text and arrays of numbers; ValueError when it holds anything else."""
    if len(seen.observation) > NAMES_KEPT:
        raise ValueError("more than any probe names")
    plain: Observation = {}
    for name, value in seen.observation.items():
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in NUMBERS or value.nbytes > limits.answer:
                raise ValueError("an array of something else")
        elif isinstance(value, str):
            value = clean_text(value)
        elif not isinstance(value, bool | int | float | None):
            raise ValueError("neither number nor text")
        plain[clean_text(name)] = value
    texts = (clean_text(text) for text in (seen.traceback, seen.printed, seen.beside))
    return Seen(plain, bool(seen.attempted), *texts)


def clean_text(text: object) -> str:
    """Text as it may be shown: no more than a page, nothing that steers a terminal."""
    kept = str(text)[-TEXT_LIMIT:] if len(str(text)) > TEXT_LIMIT else str(text)
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in kept)


def noted(observation: Observation) -> dict:
    """An observation for the run log: long arrays by their shape and first numbers."""

    def one(value):
        if not isinstance(value, np.ndarray):
            return value
        first = value.ravel()[:NUMBERS_KEPT].tolist()
        return (
            first
            if value.ndim == 1 and value.size <= NUMBERS_KEPT
            else {"shape": list(value.shape), "first": first}
        )

    return {name: one(value) for name, value in observation.items()}
