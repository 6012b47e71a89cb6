"""A run of a class that is killed again and again, and gone on with by the same command, ends in the gradebook of a run that was left alone.

    python benchmarks/interrupted.py [--short] [--kills 20] [--workers 2] [--isolation bubblewrap|namespaces|none] [--cluster]

Each time something is killed (SIGKILL) at a random moment after at least one notebook more was judged: the run, which leaves half
a line in the log; with `--cluster` in turn the run, an engine with its worker (the run goes on, or ends with a sentence) and the
controller (it ends with a sentence). Every notebook must be in the log once, the gradebook must be the same to the letter, and
nothing that a run has started may be left. `--short` kills once, with one worker (three times, with two engines).
Isolation is the first that works, if none is named.
"""

import argparse
import multiprocessing
import os
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.figure  # noqa: F401  once for all runs
import psutil
from hostile_class import LESSON, ONE, TWO, Class, honest

from trainlean.grading import classroom, cluster
from trainlean.grading.log import last_run, log_path, read_log
from trainlean.grading.options import GradeOptions
from trainlean.grading.overlay import exercises_with
from trainlean.grading.sandbox import BUBBLEWRAP, NAMESPACES, NONE, UNPROTECTED, find_isolation
from trainlean.workspace import CourseError

SEED = 11
AT_A_TIME = 2  # notebooks that are to be judged between two kills, on average; 1 in the short form
LIMIT_SECONDS = 600  # for one run
ENDING_SECONDS = 30  # for what watches an engine to end after it
REFUSED = 2  # exit status of a run that ended with a sentence
RUN, ENGINE, CONTROLLER = "run", "engine", "controller"
# A lost engine is to be found out soon.
CONTROLLER_SETTINGS = "c.HeartMonitor.period = 1000\nc.HeartMonitor.max_heartmonitor_misses = 5\n"
FORKS = multiprocessing.get_context(
    "fork"
)  # of this process, which has imported everything and computed nothing


@dataclass(frozen=True)
class Grading:
    """A class that is graded with so many workers: here, in an isolation that may be named, or on a cluster of this machine's engines."""

    where: Path
    workers: int
    isolation: str | None
    on_cluster: bool

    def start(self, output: Path) -> multiprocessing.process.BaseProcess:
        """A run in a process of its own, whose errors go to a file beside the gradebook."""
        process = FORKS.Process(target=self._run, args=(output,))
        process.start()
        return process

    def _run(self, output: Path) -> None:
        with open(os.devnull, "w") as nowhere, open(errors_of(output), "w") as errors:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(errors.fileno(), 2)
        os.setsid()
        two = {name: exercise for name, exercise in exercises_with().items() if name in (ONE, TWO)}
        classroom.exercises_with = lambda overlay=None: two
        if self.isolation == NONE:
            classroom.find_isolation = lambda trust: UNPROTECTED
        elif self.isolation:
            classroom.find_isolation = lambda trust: find_isolation(kinds=(self.isolation,))
        cluster.ASK_SECONDS, cluster.ANSWER_SECONDS = 2, 10
        options = GradeOptions(
            self.where,
            output,
            lessons=[LESSON],
            seed=SEED,
            workers=self.workers,
            trust_submissions=not self.isolation,
            cluster="default" if self.on_cluster else None,
        )
        try:
            sys.exit(classroom.grade_class(options))
        except CourseError as error:
            print(error, file=sys.stderr)
            sys.exit(REFUSED)


def errors_of(output: Path) -> Path:
    return output.with_suffix(".errors")


def judged(output: Path) -> int:
    return len(last_run(read_log(log_path(output)))[1])


def killed(grading: Grading, output: Path, what: str, choose: random.Random, wait: int) -> str:
    """Start the run and kill something in the middle. How it ended: killed; told, with a sentence; done, before anything was killed; else its last words."""
    process, at_work = grading.start(output), True

    def more(count: int) -> None:
        wanted, until = judged(output) + count, time.monotonic() + LIMIT_SECONDS
        while process.is_alive() and judged(output) < wanted and time.monotonic() < until:
            time.sleep(0.05)

    more(choose.randint(1, 2 * wait - 1))
    time.sleep(choose.random() * 0.3)
    if at_work := process.is_alive():
        if what == CONTROLLER:
            end(started("ipyparallel.controller$"))
            process.join(LIMIT_SECONDS)
        elif what == ENGINE:
            engine = choose.choice(started("ipyparallel.engine$"))
            end([engine, *engine.children(recursive=True)])
            more(1)
    running = process.is_alive()
    process.kill()
    process.join()
    if not at_work:
        return "done"
    if running:
        with log_path(output).open("a") as log:
            log.write(
                '{"event": "notebook", "cut o'
            )  # as a kill in the middle of a write leaves it
        return "killed"
    said = errors_of(output).read_text()
    told = process.exitcode == REFUSED and "the same command" in said
    return "told" if told else f"exit status {process.exitcode}: {said[-500:]}"


def started(of: str) -> list[psutil.Process]:
    """The processes of the clusters that the runs have started, in whose environment their folder is named, by a word of their command."""
    found, folder = [], os.environ["IPYTHONDIR"]
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("IPYTHONDIR") == folder and process.pid != os.getpid()
            found += [process] * (mine and any(re.match(of, word) for word in process.cmdline()))
        except psutil.Error:
            continue
    return found


def end(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue  # it ended with another


def ended(grading: Grading, output: Path) -> list[str]:
    """Let a run come to its end; a sentence where it was none as it must be."""
    process = grading.start(output)
    process.join(LIMIT_SECONDS)
    process.kill()
    process.join()
    said = errors_of(output).read_text()[-500:]
    return [f"{output} was ended with {process.exitcode}: {said}"] * bool(process.exitcode)


def main(kills: int, workers: int, at_a_time: int, isolation: str | None, on_cluster: bool) -> int:
    """Returns how much was not as it must be."""
    choose, found, how = random.Random(0), [], Counter()
    exercises_with()  # read once for all runs
    with TemporaryDirectory() as folder:
        where, once, often = (Path(folder, name) for name in ("class", "once", "often"))
        count = (
            2 * at_a_time * kills + 2 * workers
        )  # some more are judged before the kill takes effect
        honest(Class(where), count)
        os.environ["IPYTHONDIR"] = str(Path(folder, "ipython"))
        profile = Path(folder, "ipython", "profile_default")
        profile.mkdir(parents=True)
        (profile / "ipcontroller_config.py").write_text(f"c = get_config()\n{CONTROLLER_SETTINGS}")
        grading = Grading(where, workers, isolation, on_cluster)
        for output in (once, often):
            output.mkdir()
        found += ended(grading, once / "grades.csv")
        turns = cycle([RUN, ENGINE, CONTROLLER] if on_cluster else [RUN])
        for what, _ in zip(turns, range(kills), strict=False):
            ending = killed(grading, often / "grades.csv", what, choose, at_a_time)
            how[f"{what} {ending}"] += 1
            if ending not in ("killed", "told"):
                found.append(f"{what} killed: {ending}")
        found += ended(grading, often / "grades.csv")
        texts = [path.read_text() for path in (once / "grades.csv", often / "grades.csv")]
        if texts[0] != texts[1]:
            found.append(f"the gradebooks differ:\n{texts[0]}\n{texts[1]}")
        lines = read_log(log_path(often / "grades.csv"))
        seen = Counter(line["where"] for line in lines if line["event"] == "notebook")
        if len(seen) != count or set(seen.values()) != {1}:
            found.append(f"{count} notebooks, in the log {seen}")
        _, left = psutil.wait_procs(started("ipyparallel"), ENDING_SECONDS)
        found += [f"left of a cluster: {' '.join(process.cmdline())}" for process in left]
        end(left)
    print("\n".join(found))
    print(*(f"{times} times: {what}" for what, times in how.items()), sep=", ")
    print(
        f"interrupted: killed {sum(how.values())} times over {count} notebooks, {workers} workers; not as it must be: {len(found)}"
    )
    return len(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--isolation", choices=(BUBBLEWRAP, NAMESPACES, NONE))
    parser.add_argument("--cluster", action="store_true", help="on two engines of this machine")
    parser.add_argument("--short", action="store_true", help="as few kills as there are kinds")
    given = parser.parse_args()
    form = (given.kills, given.workers, AT_A_TIME)
    if given.short:
        form = (3, 2, 1) if given.cluster else (1, 1, 1)
    sys.exit(bool(main(*form, given.isolation, given.cluster)))
