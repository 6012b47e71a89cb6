"""The run log, JSON lines beside the gradebook, with a line for each notebook as soon as it is judged.

It is what a run that was interrupted goes on from, and what the gradebook is written from; the same seed gives the same lines again.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from trainlean.exercises.verdicts import Verdict
from trainlean.grading.plan import Graded
from trainlean.workspace import CourseError

RUN_KEYS = {"seed", "fingerprint", "exercises"}  # of a run that can be gone on with


def log_path(output: Path) -> Path:
    """The run log that belongs to a gradebook."""
    return Path(output).with_suffix(".jsonl")


def read_log(path: Path) -> Iterator[dict]:
    """The lines of a run log, oldest first, one at a time; a line that was cut off is passed over."""
    if path.is_file():
        with open(path, encoding="utf-8", errors="replace") as file:
            for text in file:
                with contextlib.suppress(ValueError, RecursionError):
                    if isinstance(line := json.loads(text), dict):
                        yield line


def last_run(lines: Iterable[dict]) -> tuple[dict | None, list[Graded], bool]:
    """The first line of the last run, what it has graded (without what was seen), and whether it came to its end."""
    start: dict | None = None
    graded: list[Graded] = []
    ended = True
    for line in lines:
        event = line.get("event")
        if event == "run" and line.keys() >= RUN_KEYS:
            start, graded, ended = line, [], False
        elif event == "notebook" and start:
            with contextlib.suppress(KeyError, TypeError):  # of another version: graded again
                graded.append(from_line(line | {"seen": {}}))
        elif event == "end":
            ended = True
    return start, graded, ended


def to_line(graded: Graded) -> dict:
    """A judged notebook as a line of the log."""
    return {"event": "notebook"} | asdict(graded)


def from_line(line: dict) -> Graded:
    """The judged notebook that `to_line` wrote; entries that a Graded does not have are passed over."""
    fields = {name: value for name, value in line.items() if name in Graded.__dataclass_fields__}
    return Graded(
        **fields | {"verdicts": tuple(Verdict(**verdict) for verdict in line["verdicts"])}
    )


class Log:
    """Adds lines to a run log, which belongs to one run until `close`; each is on disk before the next submission is judged.

    CourseError where another run has it: two would mix their lines, and each write the other's gradebook.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115  open for the whole run, until `close`
        if not _lock(self.file):
            self.file.close()
            raise CourseError(
                f"Another run is writing to {path}: wait until it ends, or give this one another --output."
            )
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            self.file.write("\n")  # an interrupted write left half a line

    def add(self, line: dict) -> None:
        """Append a line and hand it to the system at once."""
        self.file.write(json.dumps(line, default=str) + "\n")
        self.file.flush()

    def close(self) -> None:
        """Close the file; no line can be added afterwards."""
        with contextlib.suppress(OSError):  # what could not be written has been told already
            self.file.close()


def _lock(file) -> bool:
    """Whether the file is now this process's alone; the system takes the lock back however the process ends."""
    with contextlib.suppress(ImportError):  # Windows, where nothing is graded
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system that knows no locks
            pass
    return True
