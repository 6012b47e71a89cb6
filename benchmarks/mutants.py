"""Every small edit of the exercises' solutions, put to the checks: which wrong answers are accepted?

    python benchmarks/mutants.py [EXERCISE ...] [--lesson UNIT/LESSON] [--processes N] [--seed N] [--short]

A mutant that is accepted is the same training and stands in equivalent_mutants.py with the reason,
or the probe lacks a question. `--short` runs one exercise. Linux and macOS: each mutant runs in a fork.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from equivalent_mutants import EQUIVALENT
from small_edits import Edit, small_edits

from trainlean.exercises.exercise import Exercise
from trainlean.exercises.finding import all_exercises, find_exercise
from trainlean.exercises.seeing import Seen, pack, see, unpack
from trainlean.exercises.solutions import answer_in, answer_of, edited_solution
from trainlean.exercises.verdicts import RIGHT, cannot_check, see_oracle, verdict
from trainlean.processes import server_context
from trainlean.workspace import CourseError

SHORT = "largest_batch"
PRELOADED = ["torch", "trainlean.exercises.verdicts", "trainlean.notebooks.notebook"]
SECONDS, TIMES = 8, 20  # on the clock, for one mutant: the more of this and of so many solutions
MEMORY = 4 << 30  # bytes that a mutant may take


@dataclass
class Outcome:
    """What became of an exercise's mutants."""

    mutants: int = 0
    refused: int = 0
    named: int = 0  # of those refused, under a known mistake's name
    same_training: list[Edit] = field(default_factory=list)
    accepted: list[Edit] = field(default_factory=list)
    not_run: str = ""  # why, in a sentence

    def __str__(self):
        if self.not_run:
            return f"not run: {self.not_run}"
        return (
            f"{self.mutants} mutants, {self.refused} refused ({self.named} under a known mistake's name), "
            f"{len(self.same_training)} the same training, {len(self.accepted)} accepted"
        )


# ---------------------------------------------------------------- one exercise


def put_to_the_check(exercise: Exercise, seed: int, processes: int, advance) -> Outcome:
    """Puts all mutants of an exercise to its check; `advance(done, of)` is called after each."""
    if cannot := cannot_check(exercise):
        return Outcome(not_run=cannot.message)
    edits = small_edits(_python(edited_solution(exercise, {})))
    known = [
        (mistake.name, number)
        for mistake in exercise.mistakes
        for number in range(len(mistake.answers))
    ]
    questions = [*known, *(edit.source for edit in edits)]
    cache, outcome = {}, Outcome(len(edits))
    waiting = dict(enumerate(edits, len(known)))
    seen = {}
    for number, answer in seen_by_processes(exercise, questions, seed, processes):
        if isinstance(answer, str):
            return Outcome(not_run=answer)
        seen[number] = answer
        advance(len(seen), len(questions))
    for number, name in enumerate(known):
        cache[exercise.name, seed, name] = seen[number].observation
    cache[exercise.name, seed, "oracle"] = see_oracle(exercise, seed)
    alike = EQUIVALENT.get(exercise.name, {})
    for number, edit in waiting.items():
        judged = verdict(exercise, seen[number], seed, cache)
        if judged.outcome != RIGHT:
            outcome.refused += 1
            outcome.named += bool(judged.mistake)
        elif (edit.old, edit.new) in alike:
            outcome.same_training.append(edit)
        else:
            outcome.accepted.append(edit)
    return outcome


def _python(source: str) -> str:
    first, _, rest = source.lstrip().partition("\n")
    return rest if first.startswith("%%") else source


# ---------------------------------------------------------------- processes


def seen_by_processes(
    exercise: Exercise, questions: list, seed: int, processes: int
) -> Iterator[tuple[int, Seen | str]]:
    """(number of the question, what was seen) as they come; a sentence where the solution itself is refused."""
    context = server_context(PRELOADED)
    numbered = list(enumerate(questions))
    running = {}
    for first in range(min(processes, len(numbered))):
        receiver, sender = context.Pipe(duplex=False)
        part = numbered[first::processes]
        worker = context.Process(target=_ask_all, args=(exercise.name, part, seed, sender))
        worker.start()  # runs this file again, in which `_ask_all` stands
        sender.close()
        running[receiver] = worker
    try:
        while running:
            for receiver in wait(list(running)):
                try:
                    number, data = receiver.recv()
                except EOFError:
                    running.pop(receiver).join()
                    continue
                yield number, data if isinstance(data, str) else unpack(data)
    finally:
        for worker in running.values():
            worker.terminate()
            worker.join()


def _ask_all(name: str, questions: list, seed: int, sender) -> None:
    """Runs in a worker: the solution first, which brings every import in, then each question in a fork."""
    import torch

    torch.set_num_threads(1)
    exercise = find_exercise(name)
    start = time.monotonic()
    seen = _seen(exercise, edited_solution(exercise, {}), seed)
    seconds = time.monotonic() - start
    judged = verdict(exercise, seen, seed)
    forked = _ask_in_fork(exercise, edited_solution(exercise, {}), seed, max(60, TIMES * seconds))
    for found in (judged, verdict(exercise, forked, seed)):
        if found.outcome != RIGHT:
            sender.send((-1, f"its solution is not right here ({found.message})"))
            return
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # for what a mutant writes, wherever it lets it lie
        os.chdir(folder)
        for number, question in questions:
            seen = _ask_in_fork(exercise, question, seed, max(SECONDS, TIMES * seconds))
            sender.send((number, pack(seen)))
        os.chdir("/")


def _ask_in_fork(exercise: Exercise, question: str | tuple, seed: int, seconds: float) -> Seen:
    """What is seen of a source, or of a known mistake (name, number of the answer), in a process of its own."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(exercise, question, seed, sender))
    process.start()
    sender.close()
    try:
        if receiver.poll(seconds):
            return unpack(receiver.recv_bytes())
        return Seen({"raised": f"TimeoutError: no answer within {seconds:.0f} s"})
    except EOFError:
        return Seen({"raised": "RuntimeError: the process ended without an answer"})
    finally:
        process.kill()
        process.join()


def _answer(exercise: Exercise, question: str | tuple, seed: int, sender) -> None:
    import resource

    import psutil

    limit = psutil.Process().memory_info().vms + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    sender.send_bytes(pack(_seen(exercise, question, seed)))


def _seen(exercise: Exercise, question: str | tuple, seed: int) -> Seen:
    try:
        if isinstance(question, str):
            answer = answer_in(exercise, question)
        else:
            name, number = question
            mistake = next(mistake for mistake in exercise.mistakes if mistake.name == name)
            answer = answer_of(exercise, mistake.answers[number])
    except Exception as error:
        return Seen({"raised": f"{type(error).__name__}: {error} (while its cell was run)"})
    return see(exercise, answer, seed)


# ---------------------------------------------------------------- the command


def main(arguments=None) -> int:
    """Prints the outcomes; returns 1 where a mutant was accepted that is not known as the same training."""
    from rich.console import Console
    from rich.progress import Progress

    parser = argparse.ArgumentParser(description="Small edits of the solutions, put to the checks.")
    parser.add_argument("exercise", nargs="*", help="all where none is named")
    parser.add_argument("--lesson", help="only its exercises, such as 1_accumulation/1_pytorch")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help=f"only {SHORT}")
    options = parser.parse_args(arguments)
    total = Outcome()
    try:
        chosen = choose([SHORT] if options.short else options.exercise, options.lesson)
    except CourseError as error:
        parser.error(str(error))
    ran = 0
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for exercise in chosen:
            bar = progress.add_task(exercise.name, total=None)
            outcome = put_to_the_check(
                exercise,
                options.seed,
                options.processes,
                lambda done, of, bar=bar: progress.update(bar, completed=done, total=of),
            )
            progress.remove_task(bar)
            print(f"{exercise.name}: {outcome}", flush=True)
            for edit in outcome.accepted:
                print(_shown("  accepted: ", edit.old), _shown("       now: ", edit.new), sep="\n")
            sys.stdout.flush()
            ran += not outcome.not_run
            total.mutants += outcome.mutants
            total.refused += outcome.refused
            total.named += outcome.named
            total.same_training += outcome.same_training
            total.accepted += outcome.accepted
    print(f"{ran} of {len(chosen)} exercises: {total}")
    return int(bool(total.accepted))


def choose(names: list[str], lesson: str | None) -> list[Exercise]:
    """The exercises of these names, or all of a lesson's, or all; raises CourseError where there is none."""
    exercises = [find_exercise(name) for name in names] or list(all_exercises().values())
    if lesson:
        lessons = dict.fromkeys(exercise.notebook for exercise in exercises)
        exercises = [exercise for exercise in exercises if exercise.notebook == lesson]
        if not exercises:
            raise CourseError(
                f"no exercises of {lesson!r}; there are those of {', '.join(lessons)}"
            )
    return exercises


def _shown(label: str, lines: str) -> str:
    return label + (lines or "(dropped)").replace("\n", "\n" + " " * len(label))


if __name__ == "__main__":
    sys.exit(main())
