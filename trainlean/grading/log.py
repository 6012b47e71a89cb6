"""The run log, JSON lines beside the gradebook, with a line for each notebook as soon as it is judged.

It is what a run that was interrupted goes on from, and what the gradebook is written from; the same seed gives the same lines again.
"""

import contextlib
import json
from dataclasses import asdict
from pathlib import Path

from trainlean.exercises.verdicts import Verdict
from trainlean.grading.plan import Graded


def log_path(output: Path) -> Path:
    """The run log that belongs to a gradebook."""
    return Path(output).with_suffix(".jsonl")


def read_log(path: Path) -> list[dict]:
    """The lines of a run log, oldest first; a line that was cut off is passed over."""
    lines = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict)]


def last_run(lines: list[dict]) -> tuple[dict | None, list[Graded], bool]:
    """The first line of the last run, what it has graded, and whether it came to its end."""
    starts = [number for number, line in enumerate(lines) if line.get("event") == "run"]
    if not starts:
        return None, [], True
    run = lines[starts[-1] :]
    graded = [from_line(line) for line in run if line.get("event") == "notebook"]
    return run[0], graded, any(line.get("event") == "end" for line in run)


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
    """Adds lines to a run log; each is on disk before the next submission is judged."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        broken = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115  open for the whole run, until `close`
        if broken:
            self.file.write("\n")  # an interrupted write left half a line

    def add(self, line: dict) -> None:
        """Append a line and hand it to the system at once."""
        self.file.write(json.dumps(line, default=str) + "\n")
        self.file.flush()

    def close(self) -> None:
        """Close the file; no line can be added afterwards."""
        self.file.close()
